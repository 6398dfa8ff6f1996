"""FedFT, FedFT-RDS and FedFT-EDS: special cases, messages, frozen layers, costs and stragglers."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import torch

import undergrowth as ug
from tests.methods.test_methods import play
from tests.stopping import stopped_and_resumed
from undergrowth.core import Context, Model, Packet, Shard, Task, Train
from undergrowth.data import load
from undergrowth.methods import FedAvg, FedFT, FedFTEDS, FedFTRDS
from undergrowth.models import builder
from undergrowth.runs.config import parse_experiment
from undergrowth.runs.execution import start
from undergrowth.runs.federation_builder import federate
from undergrowth.runs.preview import price_devices

Run = Callable[..., ug.Result]
SMALL = {"clients": 5, "rounds": 3, "model": "cnn", "model_options": {"hidden": 16}, "partition": "dirichlet:1"}
FEW = {"train_samples": 500, "test_samples": 100}
SMALL["data_options"] = FEW


@pytest.fixture
def run(tmp_path: Path) -> Run:
    def go(method: str, settings: dict[str, Any] | None = None, **options: Any) -> ug.Result:
        return ug.run(method, options=options, **{**SMALL, "out": str(tmp_path), **(settings or {})})

    return go


def digits(count: int, start: int = 0) -> Shard:
    data = load("digits", None)
    return Shard(*(torch.as_tensor(values[start : start + count]) for values in (data.x, data.y)))


def digits_task(name: str, **train: Any) -> Task:
    return Task(Model(builder(name, (1, 8, 8), 10)), 10, Train(**{"epochs": 1, "batch": 16, **train}))


def test_a_share_of_one_equals_fedft(run: Run) -> None:
    few = {"clients": 3, "rounds": 2}
    digest = run("fedft", few).summary["model_digest"]
    for method in ("fedft-rds", "fedft-eds"):
        assert run(method, few, share=1.0).summary["model_digest"] == digest
        assert run(method, few, share=0.5).summary["model_digest"] != digest


@pytest.mark.parametrize("cached", [False, True])
def test_eds_selects_the_samples_with_the_highest_entropy(cached: bool) -> None:
    task, shard = digits_task("wrn-10-1"), digits(120)
    weights = task.model.initial(3)
    client = FedFTEDS(share=0.25, temperature=0.2, epochs=5, cache_features=cached).client
    _, steps = client.begin(task, Packet(weights), shard, {}, Context(0, "a", 0))
    net = task.model.build().eval()
    net.load_state_dict(weights)
    with torch.no_grad():
        chances = (net(shard.x).double() / 0.2).softmax(1)
    entropy = -(chances * chances.clamp_min(1e-300).log()).sum(1)
    assert len(steps.epochs) == 5
    for order in steps.epochs:
        assert sorted(order.tolist()) == sorted(entropy.topk(30).indices.tolist())


@pytest.mark.parametrize("method", [FedFT(), FedFTEDS(share=0.5, cache_features=True)], ids=["plain", "cached"])
def test_frozen_layers_and_their_statistics_stay_as_they_were(method: FedFT | FedFTEDS) -> None:
    task = digits_task("wrn-10-1", lr=0.1, momentum=0.5)
    state, own = play(method, task, {"a": digits(20), "b": digits(31, 100)}, rounds=2)
    start = task.model.initial(Context(9, "root", 0).key("model"))
    upper = {*task.model.trainable("mid"), *task.model.upper_buffers("mid")}
    lower = start.keys() - upper
    assert {"stem.weight", "group2.0.norm1.running_mean"} <= lower
    assert all(torch.equal(state["model"][name], start[name]) for name in lower)
    assert all(torch.equal(kept["lower"][name], start[name]) for kept in own.values() for name in lower)
    assert not any(torch.equal(state["model"][name], start[name]) for name in upper)


def test_a_device_is_weighted_by_the_samples_that_it_selected() -> None:
    task, shard = digits_task("mlp"), digits(50)
    for method, count in ((FedFT(), 50), (FedFTRDS(share=0.1), 5), (FedFTEDS(share=0.3), 15)):
        up, _ = method.client.local(task, Packet(task.model.initial(0)), shard, {}, Context(0, "a", 0))
        assert up.scalars == {"samples": count}


def sizes(model: str = "cnn", split: str = "mid", hidden: int = 16) -> tuple[int, int]:
    """Returns the bytes of the model and of its upper part."""
    module = Model(builder(model, (1, 8, 8), 10, hidden=hidden))
    weights = module.initial(0)
    names = (*module.trainable(split), *module.upper_buffers(split))
    return Packet(weights).nbytes, Packet({name: weights[name] for name in names}).nbytes


@pytest.mark.parametrize("topology", ["star", "tree:2x3"])
def test_the_lower_part_is_sent_to_each_device_once(run: Run, topology: str) -> None:
    result = run("fedft", {"topology": topology, "clients": 6, "sample": 0.5, "rounds": 5})
    whole, upper = sizes()
    seen: set[str] = set()
    for row in sorted(result.ledger.rows(), key=lambda row: row.round):
        assert row.bytes_down == (upper if row.child in seen else whole), (row.round, row.child)
        if row.child.startswith("device"):
            assert row.bytes_up == upper + 8
        seen.add(row.child)
    assert len(seen) > 3 and upper < whole / 5


@pytest.mark.parametrize(("method", "options"), [("fedft", {}), ("fedft-eds", {"share": 0.5})])
def test_cached_features_change_the_costs_and_not_the_result(run: Run, method: str, options: dict[str, Any]) -> None:
    settings = {"start": {"warm_rounds": 1, "warm_epochs": 1}}
    plain, kept = (run(method, settings, cache_features=kept, **options) for kept in (False, True))
    weights = plain.model.state_dict()
    torch.testing.assert_close(kept.model.state_dict(), weights, rtol=1e-3, atol=1e-4)
    per_round = [
        [after["flops"] - before["flops"] for before, after in pairwise(result.history)] for result in (plain, kept)
    ]
    assert per_round[1][-1] < per_round[0][-1] / 20, "the convolutions are below the split"
    assert kept.ledger.bytes_up == plain.ledger.bytes_up


def test_every_saving_lowers_the_booked_flops(run: Run) -> None:
    def flops(method: str, **options: Any) -> float:
        return run(
            method, {"clients": 2, "rounds": 2, "epochs": 1 if "epochs" in options else 5}, **options
        ).ledger.flops

    frozen, kept = flops("fedft"), flops("fedft", cache_features=True)
    assert flops("fedft-rds", share=0.1, cache_features=True) < kept < flops("fedft-rds", share=0.5) < frozen
    assert frozen < flops("fedavg")
    assert flops("fedft", epochs=None) == pytest.approx(frozen / 5), "the run's epochs unless the option is given"
    assert flops("fedft", epochs=5) == pytest.approx(frozen)


@pytest.mark.parametrize(("model", "options"), [("cnn", {}), ("wrn-10-1", {"cache_features": True})])
def test_stacked_clients_give_what_serial_clients_give(run: Run, model: str, options: dict[str, Any]) -> None:
    settings = {"model": model, "model_options": None, "batch": 64, "lr": 0.01, "clients": 3}
    serial, vector = (run("fedft-eds", {**settings, "engine": e}, share=0.5, **options) for e in ("serial", "vector"))
    assert [row["not_stacked"] for row in vector.history] == [0, 0, 0]
    torch.testing.assert_close(vector.model.state_dict(), serial.model.state_dict(), rtol=2e-3, atol=1e-3)


@pytest.mark.parametrize("after", [pytest.param(1, marks=pytest.mark.slow), 2, pytest.param(3, marks=pytest.mark.slow)])
def test_the_states_of_devices_survive_a_restart(tmp_path: Path, run: Run, after: int) -> None:
    options = {"name": "fedft-eds", "share": 0.5, "cache_features": True}
    tree = {
        "method": options, "data": {"clients": 6, "partition": "dirichlet:1", **FEW}, "topology": "tree:2x3",
        "model": {"name": "cnn", "hidden": 16}, "train": {"rounds": 4, "sample": 0.7}, "run": {"out": str(tmp_path)},
    }  # fmt: skip
    resumed, whole = stopped_and_resumed(tree, after, str(tmp_path)), start(tree)
    assert resumed.summary["model_digest"] == whole.summary["model_digest"]
    assert resumed.ledger.bytes_down == whole.ledger.bytes_down


def test_an_unknown_level_is_refused_before_the_warm_rounds(run: Run, tmp_path: Path) -> None:
    with pytest.raises(ug.InputError, match="split 'middle' is not a level of this model; did you mean 'mid'"):
        run("fedft", {"start": {"warm_rounds": 1}}, split="middle")
    assert not list(tmp_path.iterdir())


def test_a_device_whose_answer_was_lost_gets_the_lower_part_again(run: Run) -> None:
    result = run("fedft", {"quorum": 0.4, "fleet": "mixed-edge", "rounds": 4}, cache_features=True)
    arrived: set[str] = set()
    whole, upper = sizes()
    for row in sorted(result.ledger.rows(), key=lambda row: (row.round, row.outcome != "arrived")):
        if row.outcome == "arrived":
            assert row.bytes_down == (upper if row.child in arrived else whole)
            arrived.add(row.child)
    assert result.history[-1]["late"] and result.accuracy > 0


def test_tuning_stragglers_gives_more_accuracy_than_dropping_them(run: Run) -> None:
    """12 of 20 devices cannot train the whole model by the deadline; at most 2 cannot tune its upper part.

    They are late in every round: receiving the lower part, which they lack until they have answered once, takes longer.
    """
    accuracies: dict[str, list[float]] = {"fedavg": [], "fedft-eds": []}
    for seed in (0, 1, 2):
        settings = {
            "clients": 20, "rounds": 6, "epochs": 5, "partition": "dirichlet:0.1", "fleet": "mixed-edge", "seed": seed,
            "model_options": {"hidden": 64}, "evaluate_every": 6, "data_options": None,
            "deadline": deadline_of(seed, {"name": "cnn", "hidden": 64}),
        }  # fmt: skip
        dropped = run("fedavg", settings)
        warm = {"warm_rounds": 1, "warm_epochs": 5}
        tuned = run("fedft-eds", {**settings, "start": warm}, share=0.5, cache_features=True)
        assert dropped.history[-1]["late"] == 12 and tuned.history[-1]["late"] <= 2
        assert tuned.ledger.flops < dropped.ledger.flops / 3
        accuracies["fedavg"].append(dropped.accuracy)
        accuracies["fedft-eds"].append(tuned.accuracy)
    assert sum(accuracies["fedft-eds"]) > sum(accuracies["fedavg"]) + 3 * 0.05


def deadline_of(seed: int, model: Any, able: int = 8) -> float:
    """The deadline in seconds by which `able` of twenty devices finish a round of FedAvg."""
    settings = parse_experiment(
        {
            "data": {"clients": 20, "partition": "dirichlet:0.1"},
            "model": model,
            "fleet": "mixed-edge",
            "train": {"epochs": 5},
            "run": {"seed": seed},
        }
    )
    times = sorted(prospect.timing.seconds for prospect in price_devices(federate(settings, FedAvg())))
    assert len(times) == 20
    return times[able - 1] * 1.0001 if able else times[0] * 0.9999
