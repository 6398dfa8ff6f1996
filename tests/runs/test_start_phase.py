"""The phase before the first round: what it computes, what it costs, and how it is resumed."""

from __future__ import annotations

import math
import shutil
import sqlite3
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from torch.nn import functional

import undergrowth as ug
from undergrowth.core import Context, Packet, RunError
from undergrowth.data import load
from undergrowth.methods import METHODS
from undergrowth.runs import schema, store
from undergrowth.runs.execution import start
from undergrowth.runs.federation_builder import federate

from ..conformance import experiment
from ..double_precision import double_data, double_model
from ..stopping import facts
from .objects import digest

PHASE = {"data": {"name": "digits", "train_samples": 300}, "epochs": 3, "warm_rounds": 2, "warm_epochs": 2}
SMALL = {"model": "logistic", "data": {"clients": 4, "partition": "dirichlet:1", "train_samples": 200}}


def raw(out: str | Path, **sections: Any) -> dict[str, Any]:
    return {**SMALL, "train": {"rounds": 2}, "start": PHASE, **sections, "run": {"out": str(out), "seed": 5}}


def weights_of(step: ug.Result) -> Path:
    return step.folder / "model.safetensors"


def sgd(weights: dict, x, y, orders, batch: int, lr: float, momentum: float, decay: float) -> dict:
    """Plain SGD of a linear classifier over the given orders of its samples."""
    weights = {name: value.clone().requires_grad_() for name, value in weights.items()}
    velocity = {name: torch.zeros_like(value) for name, value in weights.items()}
    for order in orders:
        for indices in order.split(batch):
            (matrix, bias) = (weights[name] for name in sorted(weights, key=lambda name: -weights[name].dim()))
            loss = functional.cross_entropy(x[indices].flatten(1) @ matrix.T + bias, y[indices])
            gradients = torch.autograd.grad(loss, list(weights.values()))
            for name, gradient in zip(list(weights), gradients, strict=True):
                velocity[name] = momentum * velocity[name] + gradient + decay * weights[name].detach()
                weights[name] = (weights[name].detach() - lr * velocity[name]).requires_grad_()
    return {name: value.detach() for name, value in weights.items()}


def test_warm_rounds_are_a_plain_loop_over_all_devices(out: str) -> None:
    """Sampling, selector, deadline and faults of the experiment would all change the result if they counted."""
    data = double_data("digits", train_samples=200)
    model = double_model(data, "logistic")
    result = ug.run(
        data=data, model=model, clients=4, partition="dirichlet:1", rounds=1, batch=16, lr=0.05, momentum=0.5, seed=5,
        weight_decay=0.01, schedule="cosine", sample=0.5, selector="random:0.3", dropout=0.5, quorum=0.5,
        fleet="mixed-edge", deadline=0.5, start={"warm_rounds": 2, "warm_epochs": 3}, out=out,
    )  # fmt: skip
    plain = {"data": {"clients": 4, "partition": "dirichlet:1"}, "run": {"seed": 5}}
    federation = federate(ug.runs.config.parse_experiment(plain), None, data, model)
    shards = {name: federation.population.train(name) for name in federation.population.devices}
    weights = federation.task.model.initial(Context(5, "server", 0).key("model"))
    seed = Context(5, "server", 0).key("warm rounds")
    for number in range(2):
        trained, total = [], sum(map(len, shards.values()))
        for device, shard in shards.items():
            generator = Context(seed, device, number, number).generator("order")
            orders = [torch.randperm(len(shard), generator=generator) for _ in range(3)]
            trained.append((len(shard) / total, sgd(weights, shard.x, shard.y, orders, 16, 0.05, 0.5, 0.01)))
        weights = {name: sum(share * each[name] for share, each in trained) for name in weights}
    found = load_file(weights_of(result.start["warm rounds"]))
    torch.testing.assert_close(found, dict(weights), rtol=1e-9, atol=1e-12)
    rows = list(result.start["warm rounds"].ledger.rows())
    assert len(rows) == 2 * 4 and {row.outcome for row in rows} == {"arrived"}


def test_pretraining_is_a_plain_loop_over_the_source(out: str) -> None:
    keys = {"batch": 64, "lr": 0.2, "momentum": 0.9, "weight_decay": 5e-4, "schedule": "cosine"}
    result = start(raw(out, start={"data": PHASE["data"], "epochs": 3, **keys}))
    first = Context(5, "server", 0).key("model")
    weights = federate(ug.runs.config.parse_experiment(SMALL)).task.model.initial(first)
    population = federate(ug.runs.config.parse_experiment(stored(result.start["pretraining"]))).population
    x, y = population.train("pool").x, population.train("pool").y
    seed = Context(5, "server", 0).key("pretraining")
    for epoch in range(3):
        generator = Context(seed, "pool", epoch, epoch).generator("order")
        lr = 0.2 * (1 + math.cos(math.pi * epoch / 3)) / 2
        weights = sgd(weights, x, y, [torch.randperm(300, generator=generator)], 64, lr, 0.9, 5e-4)
    torch.testing.assert_close(load_file(weights_of(result.start["pretraining"])), weights, rtol=1e-3, atol=1e-4)


def stored(result: ug.Result) -> dict[str, Any]:
    store = ug.runs.Store(result.folder.parent)
    settings: dict[str, Any] = store.run(result.run)["experiment"]["settings"]
    store.close()
    return settings


@pytest.mark.parametrize("method", ["local", "central", {"name": "fedft", "split": "head"}], ids=str)
def test_every_method_starts_from_the_model_of_the_phase(out: str, method: Any) -> None:
    """The same run from the file of the phase's model is the same, bit for bit, and books nothing apart."""
    whole = start(raw(out, method=method))
    assert list(whole.start) == ["pretraining", "warm rounds"]
    again = start(raw(out, method=method, start={"weights": str(weights_of(whole.start["warm rounds"]))}))
    assert facts(again) == facts(whole)
    assert digest(again) != digest(start(raw(out, method=method, start={})))
    assert again.start == {} and again.ledger.start is None and "start" not in again.summary


@pytest.mark.slow
@pytest.mark.parametrize("method", [name for name, kind in METHODS.items() if not kind().begins_with])
def test_any_method_starts_from_the_model_of_the_phase(method: str, tmp_path: Path) -> None:
    """With the options, ladder and public data of the tests of conformance.

    A method that begins with another one is left out: from the file, that one would run once more.
    """
    small = experiment(method, tmp_path)
    whole = start({**small, "start": {"warm_rounds": 1, "warm_epochs": 2}})
    again = start({**small, "start": {"weights": str(weights_of(whole.start["warm rounds"]))}})
    assert facts(again) == facts(whole)
    assert digest(again) != digest(start(small))


def test_the_phase_is_booked_apart(out: str) -> None:
    result = start(raw(out, fleet="mixed-edge"))
    warm, source = result.start["warm rounds"].ledger, result.start["pretraining"].ledger
    costs = result.ledger.start
    assert costs is not None and asdict(costs) == result.summary["start"]
    for name in ("bytes_down", "bytes_up", "flops", "joules", "simulated_seconds", "peak_device_bytes"):
        assert getattr(costs, name) == getattr(warm, name) > 0
    assert costs.compute_seconds == pytest.approx(warm.compute_seconds)
    assert costs.server_flops == source.flops > 0
    assert [row["round"] for row in result.history] == [1, 2] and len(list(result.ledger.rows())) == 2 * 4
    shutil.rmtree(result.folder / "start" / result.start["warm rounds"].run)  # analyses need the final model only
    found = ug.report.analyse([result.run], ["efficiency", "entropy"], out)
    assert "problem" not in found["entropy"][result.run]
    found = found["efficiency"][result.run]
    best, rows = max(row["accuracy"] for row in result.history), list(result.ledger.rows())
    spent = sum(row.seconds_compute for row in rows)
    assert found["learning_efficiency"] == pytest.approx(best / spent)
    assert found["learning_efficiency_with_start"] == pytest.approx(best / (spent + warm.compute_seconds))


def test_late_devices_are_left_out_of_one_figure_of_efficiency(out: str) -> None:
    result = start(raw(out, fleet="mixed-edge", train={"rounds": 2, "quorum": 0.5}, start={}))
    found = ug.report.analyse([result.run], ["efficiency"], out)["efficiency"][result.run]
    best, rows = max(row["accuracy"] for row in result.history), list(result.ledger.rows())
    in_time = sum(row.seconds_compute for row in rows if row.outcome != "late")
    assert any(row.outcome == "late" and row.seconds_compute for row in rows)
    assert found["learning_efficiency_without_late"] == pytest.approx(best / in_time)
    assert found["learning_efficiency_with_start"] == found["learning_efficiency"] < best / in_time


def test_a_head_for_other_classes_is_replaced(out: str, tmp_path: Path) -> None:
    few = load("digits").shard(np.arange(300))
    kept = few.y < 4
    np.savez(tmp_path / "source.npz", x=few.x[kept].numpy(), y=few.y[kept].numpy())
    source = {"name": "npz", "path": str(tmp_path / "source.npz")}
    models: list[Any] = []
    start(
        raw(out, model={"name": "mlp", "hidden": [16]}, start={"data": source, "epochs": 2}),
        on_start=lambda execution: models.append(execution.federation.task.model.initial(7)),
    )
    fresh, started = models
    trained = load_file(next(Path(out).glob("*/start/*/model.safetensors")))
    head = {name for name in started if started[name].shape != trained[name].shape}
    assert {name.partition(".")[0] for name in head} == {"head"}
    for name in started:
        assert torch.equal(started[name], (fresh if name.startswith("head") else trained)[name])


STOPS = [("pretraining", done) for done in (0, 2, 3)] + [("warm rounds", done) for done in (0, 1, 2)]


@pytest.fixture(scope="module")
def stopped(tmp_path_factory: pytest.TempPathFactory) -> tuple[ug.Result, Path]:
    """A run with a phase, and copies of its folder as `kill -9` leaves it behind at each of the STOPS."""
    folder = tmp_path_factory.mktemp("phase")

    def copy(step: str, done: int, rounds: int) -> None:
        if (step, done) in STOPS:
            shutil.copytree(folder / "whole", folder / f"{step} {done}")

    return start(raw(folder / "whole", method="fedavgm"), on_phase=copy), folder


@pytest.mark.parametrize(("step", "done"), STOPS)
def test_a_phase_that_is_killed_is_resumed_bit_for_bit(stopped: Any, step: str, done: int) -> None:
    whole, folder = stopped
    seen: list[tuple[str, int]] = []
    result = ug.runs.execution.resume(
        "last", folder / f"{step} {done}", on_phase=lambda name, number, _: seen.append((name, number))
    )
    assert facts(result) == facts(whole)
    for name, part in whole.start.items():
        assert digest(result.start[name]) == digest(part)
        assert list(result.start[name].ledger.rows()) == list(part.ledger.rows())
        assert part.notes and result.start[name].notes == part.notes
    assert result.notes == whole.notes, "notes are neither lost nor said twice"
    rounds = [("pretraining", number) for number in range(4)] + [("warm rounds", number) for number in range(3)]
    assert seen == rounds[rounds.index((step, done)) :], "what was finished is not done again"


def test_an_interrupt_in_the_phase_can_be_resumed(out: str) -> None:
    def stop(step: str, done: int, rounds: int) -> None:
        if (step, done) == ("warm rounds", 1):
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        start(raw(out), on_phase=stop)
    store = ug.runs.Store(out)
    (row,) = store.runs()
    store.close()
    assert row["status"] == "interrupted"
    (record,) = ug.report.run_record.load_records(ug.runs.Store(out), ["last"])
    assert record.totals["start"]["bytes_up"] > 0 and record.rounds == []
    assert digest(ug.resume("last", out)) == digest(start(raw(out)))


@pytest.mark.parametrize(
    ("folder", "sections"), [("start", {}), ("personal", {"start": {}, "personal": {"epochs": 1, "adapt": []}})]
)
def test_a_full_disk_in_a_phase_says_how_to_resume(
    out: str, monkeypatch: pytest.MonkeyPatch, folder: str, sections: Any
) -> None:
    """That is the only advice: another folder would not help a run that has begun."""

    def connect(path: Path, *arguments: Any) -> sqlite3.Connection:
        if path.parent.name == folder:
            raise sqlite3.OperationalError("disk I/O error")
        return schema.connect(path, *arguments)

    with monkeypatch.context() as patch:
        patch.setattr(store, "connect", connect)
        said = r"^the run store '[^']*' could not be written: disk I/O error; `undergrowth resume \S+ --out \S+` cont"
        with pytest.raises(RunError, match=said):
            start(raw(out, **sections))
    assert digest(ug.resume("last", out)) == digest(start(raw(out, **sections)))


@pytest.mark.parametrize("engine", ["vector", "processes"])
def test_the_phase_runs_on_every_engine(out: str, engine: str) -> None:
    serial, other = (ug.run(**each, out=out) for each in (arguments("serial"), arguments(engine)))
    torch.testing.assert_close(other.model.state_dict(), serial.model.state_dict(), rtol=1e-3, atol=1e-4)
    assert stored(other.start["warm rounds"])["run"]["engine"] == engine


def arguments(engine: str) -> dict[str, Any]:
    workers = {"workers": 2} if engine == "processes" else {}
    return {"model": "logistic", "clients": 4, "rounds": 1, "engine": engine, "start": {"warm_rounds": 1}, **workers}


def test_a_tree_and_public_data_keep_their_samples_in_the_phase(out: str) -> None:
    """The server's samples are taken out of the devices' data in the warm rounds, too."""
    sections = {"topology": "tree:2x2", "public": 0.25, "start": {"warm_rounds": 1}}
    result = start(raw(out, **sections, data={**SMALL["data"], "holdout": 0}))
    devices = [row for row in result.start["warm rounds"].ledger.rows() if row.child.startswith("device")]
    assert len(devices) == 4
    assert sum(each["samples"] for each in result.start["warm rounds"].clients) == 150
    assert [each["samples"] for each in result.start["warm rounds"].clients] == [
        each["samples"] for each in result.clients
    ]


def test_weights_start_a_model_object(out: str, tmp_path: Path) -> None:
    def net() -> torch.nn.Module:
        return torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(64, 10))

    given = net()
    torch.save(given.state_dict(), tmp_path / "net.pt")
    seen: list[Packet] = []
    ug.runs.execution.start(
        raw(out, start={"weights": str(tmp_path / "net.pt")}),
        model=net,
        on_start=lambda execution: seen.append(execution.federation.first_round.packets["device-000"]),
    )
    assert all(torch.equal(seen[0].tensors[name], value) for name, value in given.state_dict().items())


def test_adapters_of_pretrained_weights_are_resumed_after_warm_rounds(out: str) -> None:
    def stop(*_: Any) -> None:
        raise KeyboardInterrupt

    start(raw(out, model="mlp", start={}))
    file = str(next(Path(out).glob("*/model.safetensors")))
    sections = {"model": {"name": "mlp", "lora": {"rank": 1}}, "start": {"weights": file, "warm_rounds": 1}}
    with pytest.raises(KeyboardInterrupt):
        start(raw(out, **sections), on_round=stop)
    assert digest(ug.resume("last", out)) == digest(start(raw(out, **sections)))
