"""The advice of a plan: every figure and every change that it names is what a run or another plan gives."""

from __future__ import annotations

import importlib.util
import math
from pathlib import Path
from typing import Any

import pytest
from torch import nn

import undergrowth as ug
from undergrowth.core import InputError
from undergrowth.report.plan_advice import advise
from undergrowth.runs.advice import best_method, find_next_class, round_up
from undergrowth.runs.config import parse_experiment
from undergrowth.runs.planning import Planner, Row, describe_left_out, takes_part

from ..fleet_files import fleet_file

SMALL: dict[str, Any] = {"data_options": {"train_samples": 200}, "model": "mlp", "clients": 6, "partition": "iid"}


def planned(rows_of: list[str], **sections: Any) -> tuple[Planner, list[Row]]:
    data = {"clients": 6, "partition": "iid", "train_samples": 200}
    planner = Planner(parse_experiment({"data": data, "model": "mlp", **sections}))
    return planner, list(planner.price_all(rows_of))


@pytest.mark.parametrize("method", ["fedavg", "fedprox"])
def test_the_energy_of_the_run_is_what_the_ledger_books(method: str, tmp_path: Path) -> None:
    """Half of the devices cannot hold the work. Those of fedprox stop early to meet the deadline."""
    small = {"memory": 2e6, "runtime": 1.99e6, "share": 0.5}
    fleet = fleet_file(tmp_path, slow={"flops": 20e6, "share": 0.5}, small=small)
    settings = {"fleet": fleet, "batch": 8, "rounds": 3, **SMALL}
    if method == "fedprox":
        settings["deadline"] = 0.9 * ug.plan(method, **settings)[0]["seconds"]
    rows = ug.plan(method, **settings)
    assert [row["verdict"] for row in rows] == ["fits", "too big"]
    energy = sum(row["run_joules"] for row in rows)
    result = ug.run(method, out=tmp_path, progress=False, engine="serial", **settings)
    assert energy == pytest.approx(result.ledger.joules)
    half = sum(row["run_joules"] for row in ug.plan(method, sample=0.5, **settings))
    assert half == pytest.approx(energy / 2)


def test_late_devices_count_until_the_deadline(tmp_path: Path) -> None:
    fleet = fleet_file(tmp_path, fast={"flops": 1e9, "share": 0.5}, slow={"flops": 1e6, "share": 0.5})
    settings = {"fleet": fleet, "deadline": 0.3, "rounds": 2, **SMALL}
    rows = ug.plan("fedavg", **settings)
    assert [row["verdict"] for row in rows] == ["fits", "too slow"]
    result = ug.run("fedavg", out=tmp_path, progress=False, engine="serial", **settings)
    assert sum(row["run_joules"] for row in rows) == pytest.approx(result.ledger.joules)


def test_the_energy_of_a_run_is_that_of_all_rounds_of_edge_servers_until_it_stops(tmp_path: Path) -> None:
    settings = {**SMALL, "clients": 6, "topology": "tree:2x3", "sample": 0.5, "rounds": 5, "stop": {"rounds": 3}}
    rows = ug.plan("hierfavg", **settings)
    result = ug.run("hierfavg", out=tmp_path, progress=False, engine="serial", **settings)
    arrived = sum(entry.child.startswith("device") for entry in result.ledger.rows())
    assert sum(row["run_jobs"] for row in rows) == pytest.approx(arrived) == 3 * 2 * 4
    assert sum(row["run_joules"] for row in rows) == pytest.approx(result.ledger.joules, rel=0.01)


@pytest.mark.parametrize(("options", "arrivals"), [({"buffer": 4, "concurrency": 6}, 4), ({"buffer": 2}, 2)])
def test_a_round_of_an_asynchronous_method_is_a_number_of_arrivals(options: dict[str, int], arrivals: int) -> None:
    rows = ug.plan("fedbuff", options=options, rounds=5, **SMALL)  # all devices are equal
    assert sum(row["run_jobs"] for row in rows) == pytest.approx(5 * arrivals)
    assert sum(row["run_joules"] for row in rows) == pytest.approx(5 * arrivals * rows[0]["joules"], rel=0.05)


def test_a_battery_lasts_as_many_rounds_as_the_run_shows(tmp_path: Path) -> None:
    joules = ug.plan("fedavg", **SMALL)[0]["joules"]
    fleet = fleet_file(tmp_path, cell={"flops": 10e9, "compute_watts": 5, "battery": 3.5 * joules, "share": 1.0})
    found = ug.plan("fedavg", fleet=fleet, rounds=5, **SMALL)
    assert found[0]["battery_rounds"] == 3
    assert "cell 3 rounds" in found.advice[2] and "less than the run" in found.advice[2]
    result = ug.run("fedavg", fleet=fleet, rounds=5, out=tmp_path, progress=False, engine="serial", **SMALL)
    example = [row.outcome for row in result.ledger.rows() if row.child == found[0]["example"]]
    assert example == ["arrived"] * 3 + ["lost"]


BOTH_LINKS = {"links.up": "int8", "links.down": "int8"}


@pytest.mark.parametrize(
    ("weak", "settings", "words"),
    [
        ({"flops": 5e6}, ["fleet.deadline", "train.epochs", "method"], "train.epochs=2 instead of 4"),
        ({"down": 0.07e6, "up": 0.1e6}, ["fleet.deadline", *BOTH_LINKS, "method"], "links.up=int8 and links.down=int8"),
    ],
    ids=["slow processor", "slow link"],
)
def test_every_change_lets_the_next_class_take_part(
    weak: dict[str, float], settings: list[str], words: str, tmp_path: Path
) -> None:
    fleet = {"name": fleet_file(tmp_path, strong={"share": 0.5}, weak={**weak, "share": 0.5}), "deadline": 1.0}
    planner, rows = planned(["fedavg"], fleet=fleet, train={"epochs": 4})
    found = find_next_class(planner, rows, "fedavg")
    assert found is not None and (found.row["device"], found.row["verdict"]) == ("weak", "too slow")
    assert [path for change in found.changes for path in change.settings] == settings
    for change in found.changes:
        changed: dict[str, Any] = {"fleet": dict(fleet), "train": {"epochs": 4}}
        for path, value in change.settings.items():
            section, _, key = path.partition(".")
            if section != "method":
                changed.setdefault(section, {})[key] = value
        method = change.settings.get("method", "fedavg")
        again = [row for row in planned([method], **changed)[1] if row["device"] == "weak"]
        assert again == [change.row] and change.row["verdict"] == "fits"
    needed = found.row["shortest_deadline"]
    assert needed <= found.changes[0].settings["fleet.deadline"] <= needed * 1.01
    sentence = advise(rows, planner.planned, "fedavg", found)[-1]
    assert "weak, which is too slow; it fits with fleet.deadline=" in sentence and "instead of 1 " in sentence
    assert words in sentence and "method heterofl, ratio 0." in sentence


def test_a_smaller_batch_for_a_class_with_too_little_memory(tmp_path: Path) -> None:
    settings = {**SMALL, "model": "cnn", "model_options": {"hidden": 8}}
    memory = ug.plan("fedavg", batch=8, **settings)[0]["memory_bytes"]
    small = {"runtime": 1_000_000, "memory": 1_000_000 + memory, "share": 0.5}
    found = ug.plan("fedavg", fleet=fleet_file(tmp_path, large={"share": 0.5}, small=small), batch=32, **settings)
    assert [row["verdict"] for row in found] == ["fits", "too big"]
    assert "small, which needs 2." in found.advice[-1] and "train.batch=8 instead of 32 (3 of 3)" in found.advice[-1]
    full = {**small, "memory": 900_000}
    found = ug.plan("fedavg", fleet=fleet_file(tmp_path, large={"share": 0.5}, full=full), **settings)
    assert "no single change of deadline, epochs, batch, links or method lets it in" in found.advice[-1]


def test_the_best_method_lets_most_devices_take_part(tmp_path: Path) -> None:
    fleet = fleet_file(tmp_path, strong={"share": 0.5}, weak={"down": 0.2e6, "up": 0.1e6, "share": 0.5})
    with pytest.warns(UserWarning, match="left out: fedmd, fedat, fedkad, reft, fedkd: public: the method needs data"):
        found = ug.plan(fleet=fleet, deadline=0.4, **SMALL)
    devices = takes_part(found)
    best = best_method(found)
    assert devices[best] == max(devices.values()) == 6 > devices["fedavg"] == 3
    assert found.advice[0].startswith(f"Most devices can take part by the deadline with {best}: 6 of 6 devices")
    one = ug.plan("fedavg", fleet=fleet, **SMALL)
    assert one.advice[0] == "fedavg: 6 of 6 devices can take part, in 2 of 2 device classes."


def test_the_advice_says_which_methods_do_not_fit_and_where(tmp_path: Path) -> None:
    needed = {row["method"]: row["memory_bytes"] for row in ug.plan(["fedavg", "fedmezo"], **SMALL)}
    assert needed["fedmezo"] > 1.5 * needed["fedavg"], "the model is small, and slopes are measured on large batches"
    small, middle = ({"memory": factor * needed["fedavg"], "share": 1 / 3} for factor in (1.1, 1.4))
    fleet = fleet_file(tmp_path, small=small, middle=middle, large={"flops": 1e5, "share": 1 / 3})
    found = ug.plan(["fedmezo", "fedavg", "distmezo"], fleet=fleet, **SMALL)
    assert found.advice[0] == "Most devices can take part with fedavg: 6 of 6 devices, in 3 of 3 device classes."
    assert found.advice[1] == "Fewer devices can take part with fedmezo, distmezo: 2 (too big for small, middle)."
    late = ug.plan(["fedmezo", "fedavg"], fleet=fleet, deadline=5, **SMALL)
    assert late.advice[1].endswith("with fedmezo: 0 (too big for small, middle; too slow for large).")


def test_the_same_plan_gives_the_same_advice() -> None:
    first, second = (ug.plan(["fedavg", "heterofl"], fleet="phones", deadline=0.2, **SMALL) for _ in range(2))
    assert first == second and first.advice == second.advice and len(first.advice) == 5


class OwnNet(nn.Sequential):
    """A model that some methods cannot train: it has no named levels."""

    def __init__(self) -> None:
        super().__init__(nn.Flatten(), nn.Linear(64, 10))


def test_a_plan_for_an_own_model_has_rows_reasons_and_a_page(tmp_path: Path) -> None:
    with pytest.warns(UserWarning, match="left out: "):
        found = ug.plan(model=OwnNet, clients=4, partition="iid")
    assert isinstance(found, list) and found.rows == found and type(found.rows) is list
    priced = {row["method"] for row in found}
    left_out = set(ug.methods.METHODS) - priced - {"central"}
    assert left_out and all(any(name in note for note in found.notes) for name in left_out)
    path = found.page(tmp_path / "plan.html")
    text = path.read_text(encoding="utf-8")
    assert "ownnet on digits" in text and "Advice" in text and "Energy of all devices in 10 rounds" in text


def test_rows_as_a_table_of_pandas() -> None:
    found = ug.plan("fedavg", model="logistic", clients=3)
    if importlib.util.find_spec("pandas") is None:
        with pytest.raises(InputError, match="pip install pandas"):
            found.to_pandas()
    else:
        assert found.to_pandas().to_dict("records") == found.rows
        tree = ug.plan("fedavg", model="logistic", clients=3, topology="tree:1x3")
        assert list(tree.to_pandas()) == list(found.to_pandas()) and len(tree.to_pandas(tree=True)) == 2


@pytest.mark.parametrize("seconds", [0.35, 84.01, 1e-4, 999.5, 0.0012345, 3.0])
def test_deadlines_are_rounded_up_to_three_digits(seconds: float) -> None:
    rounded = round_up(seconds)
    assert seconds <= rounded <= seconds * 1.01 and math.isclose(float(f"{rounded:.3g}"), rounded)


def test_methods_that_are_left_out_for_one_reason_are_named_together() -> None:
    reason = "model.lora: the model has no linear layer"
    assert describe_left_out({"lora": reason, "slora": reason}) == [f"left out: lora, slora: {reason}"]
    assert describe_left_out({"moon": "method moon needs maps"}) == ["left out: moon: the method needs maps"]
