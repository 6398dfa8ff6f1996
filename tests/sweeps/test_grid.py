"""From the dictionary of an experiment with choices to the variants of a sweep."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from undergrowth.core import InputError
from undergrowth.data import load
from undergrowth.runs import data_builder
from undergrowth.sweeps.grid import expand
from undergrowth.sweeps.planned_sweep import plan_sweep


def experiments(raw: dict[str, Any]) -> dict[str, list[dict[str, Any]]]:
    return {variant.name: list(variant.raws.values()) for variant in expand(raw)}


def test_an_experiment_without_choices_is_one_variant() -> None:
    raw = {"method": "fedavg", "train": {"lr": 0.1}}
    assert experiments(raw) == {"fedavg": [{"method": {"name": "fedavg"}, "train": {"lr": 0.1}}]}


def test_lists_become_a_grid_and_seeds_do_not_make_variants() -> None:
    raw = {"method": ["fedavg", {"name": "fedprox", "mu": [0.01, 0.1]}], "run": {"seed": [0, 1, 2], "out": "runs"}}
    found = expand(raw)
    assert [variant.name for variant in found] == ["fedavg", "fedprox, mu 0.01", "fedprox, mu 0.1"]
    assert [list(variant.raws) for variant in found] == [[0, 1, 2]] * 3
    assert found[2].raws[1] == {"method": {"name": "fedprox", "mu": 0.1}, "run": {"seed": 1, "out": "runs"}}


def test_the_last_choice_varies_fastest() -> None:
    raw = {"train": {"lr": [0.1, 0.2], "batch": [8, 16]}, "topology": ["star", "tree:2x2"]}
    assert list(experiments(raw))[:3] == [
        "lr 0.1, batch 8, star",
        "lr 0.1, batch 8, tree:2x2",
        "lr 0.1, batch 16, star",
    ]
    assert len(experiments(raw)) == 8


@pytest.mark.parametrize(
    "raw",
    [
        {"model": {"name": "cnn", "ladder": [{"name": "cnn", "hidden": 16}, "logistic"]}},
        {"model": {"name": "mlp", "hidden": [32, 16]}},
        {"public": {"share": 0.1, "missing": [0, 5, 8]}},
        {"method": {"name": "heterofl", "ratios": [1.0, 0.5]}},
        {"data": {"name": "cifar10", "normalise": {"mean": [0.5], "std": [0.2]}}},
    ],
    ids=["ladder", "hidden", "missing", "ratios", "normalise"],
)
def test_a_setting_that_is_a_list_by_nature_keeps_its_list(raw: dict[str, Any]) -> None:
    assert experiments(raw) == {raw.get("method", {"name": "fedavg"})["name"]: [raw]}


def test_a_list_of_lists_is_a_choice_between_lists() -> None:
    raw = {"model": {"name": "mlp", "hidden": [[32], [64, 32]]}, "public": {"share": 0.1, "missing": [[], [1, 2]]}}
    found = [(each["model"]["hidden"], each["public"]["missing"]) for (each,) in experiments(raw).values()]
    assert found == [([32], []), ([32], [1, 2]), ([64, 32], []), ([64, 32], [1, 2])]


def test_whether_an_option_is_a_list_depends_on_the_name() -> None:
    raw = {"model": {"name": ["mlp", "cnn"], "hidden": [16, 32]}}
    found = [each["model"] for (each,) in experiments(raw).values()]
    assert found == [
        {"name": "mlp", "hidden": [16, 32]}, {"name": "cnn", "hidden": 16}, {"name": "cnn", "hidden": 32},
    ]  # fmt: skip


def test_choices_inside_a_nested_section() -> None:
    raw = {"start": {"data": {"name": "digits", "train_samples": [50, 100]}, "epochs": 2}}
    found = [each["start"]["data"]["train_samples"] for (each,) in experiments(raw).values()]
    assert found == [50, 100]


def test_named_variants_change_the_rest_of_the_file() -> None:
    raw = {
        "method": {"name": "fedprox", "mu": 0.1}, "train": {"lr": 0.1, "rounds": 3}, "run": {"seed": [0, 1]},
        "sweep": [{"name": "slow", "train": {"lr": 0.01}}, {"name": "plain", "method": "fedavg"}],
    }  # fmt: skip
    found = {variant.name: variant.raws[1] for variant in expand(raw)}
    assert found["slow"] == {
        "method": {"name": "fedprox", "mu": 0.1}, "train": {"lr": 0.01, "rounds": 3}, "run": {"seed": 1},
    }  # fmt: skip
    assert found["plain"]["method"] == {"name": "fedavg"} and list(found) == ["slow", "plain"]


def test_named_variants_with_choices() -> None:
    sweep = [{"name": "a", "train": {"lr": [0.1, 0.2]}}, {"name": "b", "method": {"epochs": 2}}]
    raw = {"method": ["fedft", "fedft-rds"], "sweep": sweep}
    assert list(experiments(raw)) == [
        "a, fedft, lr 0.1", "a, fedft, lr 0.2", "a, fedft-rds, lr 0.1", "a, fedft-rds, lr 0.2",
        "b, fedft", "b, fedft-rds",
    ]  # fmt: skip
    assert experiments(raw)["b, fedft"] == [{"method": {"name": "fedft", "epochs": 2}}]


def test_a_choice_of_bare_values_is_named_by_its_section() -> None:
    assert list(experiments({"personal": [True, False]})) == ["personal True", "personal False"]
    assert list(experiments({"topology": ["star", "tree:2x2"]})) == ["star", "tree:2x2"]


@pytest.mark.parametrize(
    ("raw", "message"),
    [
        ({"train": {"lr": []}}, r"train.lr \[\] is an empty list of choices"),
        ({"method": []}, r"method \[\] is an empty list of choices"),
        ({"run": {"seed": [1, 1]}}, "two runs of the sweep are equal, with run.seed 1; write every choice once"),
        ({"method": ["fedavg", "fedavg"]}, "two runs of the sweep are equal, with run.seed 0"),
        ({"sweep": {"name": "a"}}, "sweep .* should be a list of variants"),
        ({"sweep": [{"train": {"lr": 1}}]}, "sweep: variant 1 needs a name"),
        ({"sweep": [{"name": "a"}, {"name": "a"}]}, "two variants have the name 'a'"),
        ({"fleet": [{}, {"deadline": None}]}, "two variants of the sweep are 'default'"),
    ],
)
def test_wrong_choices_are_refused(raw: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        expand(raw)


def test_variants_with_the_same_data_load_it_once(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    loaded: list[str] = []

    def count(name: str, *given: Any, **options: Any) -> Any:
        loaded.append(name)
        return load(name, *given, **options)

    monkeypatch.setattr(data_builder, "load", count)
    methods = ["fedavg", {"name": "fedprox", "mu": [0.1, 0.2]}, "central"]
    raw = {"data": {"clients": 2}, "method": methods, "model": "logistic", "public": {"samples": 20}}
    assert len(plan_sweep(raw, tmp_path).jobs) == 4
    assert len(loaded) == 1
    assert len(plan_sweep({**raw, "data": {"clients": [2, 3]}}, tmp_path).jobs) == 8
    assert len(loaded) == 3
    with pytest.raises(InputError, match=r"variant 'fedprox, mu -1': method.mu -1"):
        plan_sweep({**raw, "method": ["fedavg", {"name": "fedprox", "mu": -1}]}, tmp_path)


def test_millions_of_combinations_are_refused() -> None:
    with pytest.raises(InputError, match="the lists of the sweep have 4,000,000 combinations; write at most 100,000"):
        expand({"train": {"rounds": list(range(1, 2001)), "epochs": list(range(1, 2001))}})
