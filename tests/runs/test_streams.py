"""Runs on streams: engines, resume, training between rounds, scores over time, recovery, bad input."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch.nn import functional

import undergrowth as ug
from undergrowth.core import Context, InputError, Metric
from undergrowth.data import Dataset, StreamedPopulation
from undergrowth.report import write_report
from undergrowth.runs.api import parse_arguments
from undergrowth.runs.config import parse_experiment
from undergrowth.runs.evaluation_interval import evaluation_flops
from undergrowth.runs.execution import start
from undergrowth.runs.federation_builder import federate
from undergrowth.runs.stream_scores import Recovery, StreamScores, recovery
from undergrowth.simulation.own_training import OWN_TRAINING

from ..double_precision import ATOL, RTOL, double_data, double_model
from ..packed_pages import figures_of
from ..stopping import facts, stopped_and_resumed

DATA = {"name": "digits", "train_samples": 300, "clients": 4, "partition": "dirichlet:0.5"}
STREAM = {"memory": 20, "arrive": 8, "shift": "gradual", "every": 2, "over": 2}
SMALL: dict[str, Any] = {
    "method": "fedavg",
    "data": DATA,
    "model": "logistic",
    "train": {"rounds": 4},
    "stream": STREAM,
}
OWN: dict[str, Any] = {
    **SMALL,
    "method": {"name": "bhfl", "leaf": "moon"},
    "topology": "tree:2x2",
    "fleet": "mixed-edge",
    "train": {"rounds": 4, "sample": 0.5},
    "stream": {**STREAM, "local_epochs": 2},
}


def experiment(raw: dict[str, Any], out: Path, **run: Any) -> dict[str, Any]:
    return {**raw, "run": {"out": str(out), **run}}


def test_a_memory_for_all_samples_without_a_shift_changes_no_bit(tmp_path: Path) -> None:
    plain, streamed = {**SMALL, "stream": {}}, {**SMALL, "stream": {"memory": 300, "arrive": 7}}
    results = [start(experiment(raw, tmp_path, engine="serial")) for raw in (plain, streamed)]
    assert results[0].summary["model_digest"] == results[1].summary["model_digest"]
    assert results[0].clients == results[1].clients
    assert list(results[0].ledger.rows()) == list(results[1].ledger.rows())
    assert results[0].stream is None
    assert "stream" not in results[0].summary


@pytest.mark.parametrize(
    ("raw", "engine"),
    [
        (OWN, "vector"),
        (OWN, "processes"),
        pytest.param(SMALL, "vector", marks=pytest.mark.slow),
        pytest.param(SMALL, "processes", marks=pytest.mark.slow),
        pytest.param(OWN, "ray", marks=pytest.mark.slow),
    ],
)
def test_engines_agree(raw: dict[str, Any], engine: str, tmp_path: Path) -> None:
    data = double_data("digits", train_samples=300)
    raw = {**raw, "data": {key: DATA[key] for key in ("clients", "partition")}, "model": {"name": "logistic"}}
    objects: dict[str, Any] = {"data": data, "model": double_model(data, "logistic")}
    one, other = (
        start(experiment(raw, tmp_path, engine=name, **({"workers": 2} if name == engine else {})), **objects)
        for name in ("serial", engine)
    )
    for name, value in one.model.state_dict().items():
        torch.testing.assert_close(other.model.state_dict()[name], value, rtol=RTOL, atol=ATOL)
    assert one.stream == other.stream
    assert list(one.ledger.rows()) == list(other.ledger.rows())


@pytest.mark.parametrize("raw", [SMALL, OWN], ids=["fedavg", "own training"])
def test_a_resumed_run_is_the_same_bit_for_bit(raw: dict[str, Any], tmp_path: Path) -> None:
    raw = {**raw, "run": {"engine": "serial"}}
    whole = start(experiment(raw, tmp_path / "whole", engine="serial"))
    resumed = stopped_and_resumed(raw, 2, str(tmp_path / "parts"))
    assert facts(whole) == facts(resumed)
    assert whole.stream == resumed.stream


def test_an_asynchronous_run_on_a_stream_resumes(tmp_path: Path) -> None:
    method = {"name": "bhfl", "execution": "asynchronous", "buffer": 2}
    raw = {**OWN, "method": method, "topology": "star", "run": {"engine": "serial"}}
    whole = start(experiment(raw, tmp_path / "whole", engine="serial"))
    assert facts(whole) == facts(stopped_and_resumed(raw, 3, str(tmp_path / "parts")))


def held(raw: dict[str, Any]) -> StreamedPopulation:
    population = federate(parse_experiment(raw)).population
    assert isinstance(population, StreamedPopulation)
    return population


def test_training_between_rounds_is_plain_gradient_descent(tmp_path: Path) -> None:
    stream = {"memory": 20, "arrive": 8, "local_epochs": 2}
    raw = {**SMALL, "method": "local", "train": {"rounds": 2, "lr": 0.05}, "stream": stream}
    data = double_data("digits", train_samples=300)
    raw["data"] = {key: DATA[key] for key in ("clients", "partition")}
    build = double_model(data, "logistic")
    seen: dict[str, Any] = {}

    def keep(row: Any, execution: Any) -> None:
        seen.update({name: dict(own["model"]) for name, own in execution.federation.world.states.all().items()})
        seen["federation"] = execution.federation

    start(experiment(raw, tmp_path, engine="serial"), data=data, model=build, on_round=keep)
    federation = seen["federation"]
    seed = int(federation.driver.root.state["seed"])
    for device in federation.population.devices[:2]:
        weights = dict(federation.task.model.initial(seed))
        for number in range(2):
            shard = federation.population.at(number).train(device)
            for turn, epochs in ((number, 1), (-1, 2)):  # asked; on its own
                generator = Context(0, device, number, turn).generator("order")
                for order in [torch.randperm(len(shard), generator=generator) for _ in range(epochs)]:
                    for batch in order.split(32):
                        leaves = {name: value.detach().requires_grad_() for name, value in weights.items()}
                        loss = functional.cross_entropy(federation.task.model(leaves, shard.x[batch]), shard.y[batch])
                        slopes = torch.autograd.grad(loss, list(leaves.values()))
                        weights = {
                            name: value - 0.05 * slope
                            for (name, value), slope in zip(leaves.items(), slopes, strict=True)
                        }
        for name, value in weights.items():
            torch.testing.assert_close(seen[device][name], value, rtol=RTOL, atol=ATOL)


def test_training_between_rounds_costs_and_takes_time(tmp_path: Path) -> None:
    stream = {"memory": 20, "arrive": 8, "local_epochs": 3}
    raw = {**SMALL, "method": "ditto", "train": {"rounds": 2, "epochs": 3}, "stream": stream, "fleet": "mixed-edge"}
    entries = list(start(experiment(raw, tmp_path, engine="serial")).ledger.rows())
    asked = {(each.round, each.child): each for each in entries if each.outcome == "arrived"}
    own = {(each.round, each.child): each for each in entries if each.outcome == OWN_TRAINING}
    assert asked.keys() == own.keys()
    first_round = max(each.end for (number, _), each in asked.items() if number == 1)
    for (number, device), entry in own.items():
        assert entry.bytes_down == entry.bytes_up == entry.seconds_down == entry.seconds_up == 0
        # Ditto trains two models when it is asked, and only its own between rounds.
        assert entry.flops == pytest.approx(asked[number, device].flops / 2, rel=0.05)
        assert entry.joules > 0
        if number == 1:
            assert entry.start == first_round
            assert asked[2, device].start == pytest.approx(entry.end)  # busy until then
    experiment_of_plan, _ = parse_arguments({**_arguments(raw), "options": None})
    assert experiment_of_plan["stream"]["local_epochs"] == 3
    planned = ug.plan("ditto", **{key: value for key, value in _arguments(raw).items() if key != "method"})
    for row in planned:
        first = asked[1, row["example"]], own[1, row["example"]]
        assert row["flops"] == pytest.approx(sum(each.flops for each in first))
        assert row["joules"] == pytest.approx(sum(each.joules for each in first))


def _arguments(raw: dict[str, Any]) -> dict[str, Any]:
    data = {"data": "digits", "clients": 4, "partition": "dirichlet:0.5", "data_options": {"train_samples": 300}}
    train = {"rounds": 2, "epochs": 3}
    return {
        "method": raw["method"],
        **data,
        "model": raw["model"],
        "fleet": raw["fleet"],
        "stream": raw["stream"],
        **train,
    }


def test_devices_that_are_not_asked_train_too(tmp_path: Path) -> None:
    result = start(experiment({**OWN, "train": {"rounds": 6, "sample": 0.25}}, tmp_path, engine="serial"))
    own = [entry for entry in result.ledger.rows() if entry.outcome == OWN_TRAINING]
    asked = {(entry.round, entry.child) for entry in result.ledger.rows() if entry.outcome == "arrived"}
    assert any((entry.round, entry.child) not in asked for entry in own)
    assert {entry.parent for entry in own} <= {"edge-00", "edge-01"}


ACCURACY, LOSS = Metric("accuracy"), Metric("loss", higher=False)


@pytest.mark.parametrize(
    ("metric", "values", "expected"),
    [
        # The shift is in round 4, the next one in round 8. 90 % of 0.8 are 0.72.
        (ACCURACY, [0.5, 0.7, 0.8, 0.4, 0.71, 0.72, 0.9, 0.1], (0.8, 0.4, 2)),
        (ACCURACY, [0.5, 0.7, 0.8, 0.75, 0.73, 0.8, 0.9, 0.1], (0.8, 0.73, 1)),
        (ACCURACY, [0.5, 0.7, 0.8, 0.79, 0.5, 0.7, 0.71, 0.9], (0.8, 0.5, None)),
        (ACCURACY, [0.5, 0.7, 0.8, 0.8, 0.8, 0.8, 0.8, 0.1], (0.8, 0.8, 0)),
        (LOSS, [3.0, 1.0, 1.0, 2.0, 1.2, 1.1, 0.5, 9.0], (1.0, 2.0, 2)),
    ],
)
def test_recovery_of_a_hand_made_curve(metric: Metric, values: list[float], expected: tuple[Any, ...]) -> None:
    curve = list(enumerate(values, 1))
    assert recovery(metric, curve, shift=4, end=8) == Recovery(4, *expected)


def test_recovery_of_devices() -> None:
    scores = [{"a": 0.8, "b": 0.6}, {"a": 0.2, "b": 0.6}, {"a": 0.8, "b": 0.5}, {"a": 0.8, "b": 0.5, "c": 0.1}]
    found = StreamScores(ACCURACY, (2, 4, 6, 8), tuple(scores), shifts=(3, 9))
    first, second = found.recoveries
    assert first == Recovery(3, pytest.approx(0.7), pytest.approx(0.4), 3, devices=2, devices_back=1)
    assert (second.before, second.lowest, second.rounds, second.devices) == (pytest.approx(1.4 / 3), None, None, 0)
    assert found.worst_tenth == [0.6, 0.2, 0.5, 0.1]
    assert found.band[0][0] == pytest.approx(0.62)


def test_scores_over_time_in_the_result_the_history_and_the_page(tmp_path: Path) -> None:
    stream = {"memory": 20, "arrive": 20, "shift": "sudden", "every": 3, "kind": "rotation"}
    raw = {**SMALL, "stream": stream, "train": {"rounds": 6}}
    result = start({**raw, "run": {"out": str(tmp_path), "evaluate_every": 2, "engine": "serial"}})
    found = result.stream
    assert found is not None
    assert (found.rounds, found.shifts) == ((1, 2, 4, 6), (4,))
    assert result.history[3]["accuracy/own samples"] == pytest.approx(found.mean[2])
    assert result.history[3]["accuracy/worst tenth"] == pytest.approx(found.worst_tenth[2])
    assert "device_scores" not in result.history[3]
    assert {
        each["device"]: each["accuracy"] for each in result.clients if each["accuracy"] is not None
    } == found.scores[-1]
    (shift,) = result.summary["stream"]["shifts"]
    assert (shift["round"], shift["before"]) == (4, pytest.approx(found.mean[1]))
    path = write_report([result.run], tmp_path, tmp_path / "page.html")
    drawn = {each["layout"]["title"]["text"]: each for each in figures_of(path.read_text()).values()}
    assert drawn["Accuracy of the devices"]["layout"]["shapes"][0]["x0"] == 3.5
    assert len(drawn["Accuracy of each device"]["data"][0]["z"]) == len(found.devices)


def test_phases_before_and_after_the_rounds_have_fixed_samples(tmp_path: Path) -> None:
    raw = {
        **SMALL,
        "method": "ditto",
        "stream": {**STREAM, "local_epochs": 1},
        "start": {"warm_rounds": 2, "warm_epochs": 1},
        "personal": {"evaluate": True, "epochs": 2, "adapt": ["freeze"]},
    }
    result = start(experiment(raw, tmp_path, engine="serial"))
    sizes = {each["device"]: each["samples"] for each in result.clients}
    population = held({**raw, "start": {}})
    assert sizes == {device: population.at(3).size(device) for device in population.devices}
    before, after = result.start["warm rounds"], ug.load("last", result.folder / "personal")
    assert {each["device"]: each["samples"] for each in before.clients} == {
        device: population.size(device) for device in population.devices
    }
    assert {each["device"]: each["samples"] for each in after.clients} == sizes


def test_an_interval_by_auto_counts_the_test_samples_of_the_devices() -> None:
    plain, streamed = (federate(parse_experiment({**SMALL, "stream": each})) for each in ({}, STREAM))
    own = sum(len(plain.population.test(device)) for device in plain.population.devices)
    assert evaluation_flops(streamed) / evaluation_flops(plain) == pytest.approx(1 + own / len(plain.test))


BAD = {
    "no memory": ({"arrive": 5}, "stream {'arrive': 5} has arrive without memory; give the samples"),
    "no shift": ({"memory": 5, "every": 3}, "has every without a shift; give shift: sudden, gradual or recurring"),
    "over": (
        {"memory": 5, "shift": "sudden", "over": 2},
        "has over, which is for a gradual shift, and shift is sudden",
    ),
    "too long": (
        {"memory": 5, "shift": "gradual", "every": 2, "over": 3},
        "has over 3 and every 2; a shift must end before the next one",
    ),
    "a name": ({"memory": 5, "shift": "suden"}, "stream.shift 'suden' should be 'none', 'sudden', 'gradual' or 'recur"),
    "a key": ({"memroy": 5}, "stream.memroy is not a known key; did you mean 'memory'?"),
    "a number": ({"memory": 0}, "stream.memory 0 should be greater than or equal to 1"),
    "too many": ({"memory": 10**7}, "stream.memory 10000000 should be less than or equal to 1000000"),
    "pooled": ({"memory": 5, "local_epochs": 1}, "the devices of method central keep no model"),
    "a method": (
        {"memory": 5, "local_epochs": 1},
        "the devices of method fedavg keep no model to train between rounds",
    ),
}


@pytest.mark.parametrize("name", BAD)
def test_bad_input_is_refused(name: str, tmp_path: Path) -> None:
    stream, message = BAD[name]
    with pytest.raises(InputError) as caught:
        start(
            experiment(
                {**SMALL, "stream": stream, "method": "central" if name == "pooled" else "fedavg"}, tmp_path / "runs"
            )
        )
    assert message in str(caught.value)
    assert not (tmp_path / "runs").exists()


def test_cached_features_refuse_a_stream(tmp_path: Path) -> None:
    method = {"name": "fedft", "split": "head", "cache_features": True}
    with pytest.raises(InputError, match="cached features are those of samples that stay"):
        start(experiment({**SMALL, "model": "cnn", "method": method}, tmp_path))


def test_the_argument_of_run_is_a_dictionary() -> None:
    with pytest.raises(InputError, match="stream 5 must be a dictionary, such as stream="):
        ug.run(stream=5)  # type: ignore[arg-type]


def test_a_data_set_of_the_user_is_a_stream_too(tmp_path: Path) -> None:
    generator = torch.Generator().manual_seed(0)
    x, y = torch.randn(60, 3, generator=generator).numpy(), torch.randint(0, 2, (60,), generator=generator).numpy()
    data = Dataset("own", x, y, x[:10], y[:10], classes=2)
    result = ug.run(
        data=data,
        clients=3,
        model="logistic",
        rounds=2,
        stream={"memory": 6, "arrive": 2},
        out=tmp_path,
        engine="serial",
    )
    assert [each["samples"] for each in result.clients] == [6, 6, 6]
