"""The section `public` of an experiment: its forms, what is refused, and that a resumed run has the same data."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import undergrowth as ug
from undergrowth.core import InputError, Shard
from undergrowth.methods import FedAvg
from undergrowth.runs.config import parse_experiment
from undergrowth.runs.execution import start
from undergrowth.runs.experiment_file import assign_text
from undergrowth.runs.federation import Federation
from undergrowth.runs.federation_builder import federate

from .objects import Own, dataset, linear


def federation(public: Any, **sections: Any) -> Federation:
    data = {"clients": 4, "partition": "dirichlet:1", **sections.pop("data", {})}
    tree = {"public": public, "data": data, "model": "logistic", **sections}
    return federate(parse_experiment(tree), FedAvg())


def test_a_share_is_taken_before_the_samples_are_spread() -> None:
    whole, some = federation({}), federation(0.1)
    assert whole.task.public is None and some.task.public is not None
    sizes = [sum(f.population.size(d) + len(f.population.test(d)) for d in f.population.devices) for f in (whole, some)]
    assert len(some.task.public) == 144 and sizes[0] - sizes[1] == 144
    public = {tuple(x.flatten().tolist()) for x in some.task.public.x}
    held = [shard for d in some.population.devices for shard in (some.population.train(d), some.population.test(d))]
    assert public.isdisjoint(tuple(x.flatten().tolist()) for shard in held for x in shard.x)


def test_all_forms_of_the_section_give_the_same_data() -> None:
    bare, spelled = federation(0.1).task.public, federation({"share": 0.1, "labelled": True}).task.public
    counted = federation({"samples": 144}).task.public
    assert torch.equal(bare.x, spelled.x) and torch.equal(bare.y, spelled.y) and torch.equal(bare.x, counted.x)
    tree: dict[str, Any] = {}
    assign_text(tree, "public=0.1")
    assert parse_experiment(tree).public.share == 0.1


def test_missing_classes_and_hidden_labels() -> None:
    assert set(federation({"share": 0.2, "missing": [0, 9]}).task.public.y.tolist()) == set(range(1, 9))
    assert set(federation({"share": 0.2, "labelled": False}).task.public.y.tolist()) == {-1}


def npz(path: Path, shape: tuple[int, ...], classes: int = 3, count: int = 30) -> str:
    x = np.random.default_rng(0).normal(size=(count, *shape)).astype("float32")
    np.savez(path, x=x, y=np.arange(count) % classes, ward=np.arange(count) % 5)
    return str(path)


def test_another_data_set_gives_its_inputs_and_keeps_its_labels(tmp_path: Path) -> None:
    path = npz(tmp_path / "other.npz", (1, 8, 8))
    found = federation({"name": "npz", "path": path, "samples": 10}).task.public
    assert found.x.shape == (10, 1, 8, 8) and set(found.y.tolist()) == {-1}
    ten = npz(tmp_path / "ten.npz", (1, 8, 8), classes=10, count=60)
    assert set(federation({"name": "npz", "path": ten, "labelled": True}).task.public.y.tolist()) == set(range(10))
    with pytest.raises(InputError, match=r"public\.labelled true: data set 'other' has 3 classes and 'digits' has 10"):
        federation({"name": "npz", "path": path, "labelled": True})


def test_inputs_of_another_shape_are_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"have shape \(7,\) and those of the devices \(1, 8, 8\)"):
        federation({"name": "npz", "path": npz(tmp_path / "other.npz", (7,))})


def test_natural_groups_get_the_remaining_samples(tmp_path: Path) -> None:
    data = {"name": "npz", "path": npz(tmp_path / "wards.npz", (6,), count=100), "partition": "natural:ward"}
    found = federation(0.2, data={**data, "clients": None})
    assert len(found.population.devices) == 5 and len(found.task.public) == 16  # of 80; 20 are the central test set


@pytest.mark.parametrize(
    ("public", "words"),
    [
        (2, "public.share 2 should be less than or equal to 1"),
        (0, "public.share 0 should be greater than 0"),
        (1, "leave some to devices"),
        ({"share": 0.1, "samples": 5}, "has share and samples; give one of them"),
        ({"share": 0.1, "mising": [1]}, "has 'mising', which is not a known key; did you mean 'missing'?"),
        ({"missing": [1]}, "does not say how much; give share or samples, or name another data set"),
        ({"share": 0.1, "path": "x"}, "has a path; give the name of the data set there"),
        ({"share": 0.1, "missing": [10]}, "public.missing 10 is not a class of data set 'digits'"),
        ({"share": 0.1, "missing": [-1]}, "public.missing.0 -1 should be greater than or equal to 0"),
        ("digit", "did you mean 'digits'?"),
    ],
)
def test_a_wrong_section_is_refused_in_one_sentence(run: Any, out: str, public: Any, words: str) -> None:
    with pytest.raises(InputError) as caught:
        run(public=public)
    assert words in str(caught.value) and "\n" not in str(caught.value)
    assert not Path(out).exists()


def test_a_population_object_has_its_own_public_samples(run: Any) -> None:
    with pytest.raises(InputError, match="spread over its devices already"):
        run(data=Own(), model=linear, public=0.1)
    given = Own()
    given.public = Shard(torch.zeros(3, 6), torch.zeros(3, dtype=torch.int64))  # type: ignore[attr-defined]
    assert len(federate(parse_experiment({}), FedAvg(), given, linear).task.public) == 3
    run(data=dataset(), model=linear, public=0.1)
    run(data=replace(dataset(), fields={"ward": torch.arange(60) % 4}), partition="natural", clients=None, model=linear)


def test_a_resumed_run_has_the_same_data(out: str, interrupted: Any) -> None:
    tree = {
        "method": {"name": "fedkad", "pretrain_epochs": 1},
        "public": {"share": 0.1, "missing": [2], "labelled": False},
        "model": {"name": "mlp", "hidden": [16, 8], "ladder": [{"name": "mlp", "hidden": [n, 8]} for n in (4, 6)]},
        "data": {"clients": 4},
        "train": {"rounds": 3},
    }
    interrupted(tree, after=1)
    resumed = ug.resume("last", out, progress=False)
    assert resumed.summary["model_digest"] == start({**tree, "run": {"out": out}}).summary["model_digest"]
