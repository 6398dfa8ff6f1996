"""The vector engine gives what the serial engine gives, and runs clients that cannot be stacked one by one."""

from __future__ import annotations

import weakref
from dataclasses import dataclass, replace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import undergrowth as ug
from undergrowth.core import Batch, Carry, Context, LoopClient, Method, Model, Packet, Task, Train
from undergrowth.data import partition_dataset
from undergrowth.engines import EngineSettings, Job, Outcome, SerialEngine, VectorEngine, World
from undergrowth.engines.vector import stacked_steps
from undergrowth.engines.vector.carries import stack_carries
from undergrowth.learning import AveragingServer, GradientClient
from undergrowth.learning.reference import FisherClient, MeasuringClient
from undergrowth.methods import Adapt, FedAvg, FedProx, Local
from undergrowth.runs.execution import start

from ..double_precision import double_data, double_model

DATA = double_data("digits", train_samples=500)
POPULATION = partition_dataset(DATA, "dirichlet:0.5", 7, 0, holdout=0)
RTOL, ATOL = 1e-9, 1e-10  # in float64, whatever the CPU


def outcomes(
    engine: SerialEngine | VectorEngine,
    method: Method,
    model: str,
    combine: bool = True,
    limit: int | None = None,
    **train: Any,
) -> dict[str, Outcome]:
    norm = {"norm": train.pop("norm")} if "norm" in train else {}
    functional = Model(double_model(DATA, model, **norm))
    task = Task(functional, DATA.classes, Train(**{"batch": 16, "lr": 0.05, **train}))
    world = World(task, method.client, {"server": method.server}, POPULATION)
    engine.open(world)
    down = Packet(functional.initial(3))
    jobs = [Job("server", name, down, Context(1, name, 0), combine, limit) for name in POPULATION.devices]
    found = {",".join(outcome.sent): outcome for outcome in engine.run(jobs)}
    return found if not combine else {"all": next(iter(found.values()))}


def check_same(a: dict[str, Outcome], b: dict[str, Outcome]) -> None:
    assert a.keys() == b.keys()
    for key, one in a.items():
        other = b[key]
        assert one.up is not None and other.up is not None
        assert one.sent == other.sent and one.refused_bytes == other.refused_bytes
        for name, value in one.up.tensors.items():
            torch.testing.assert_close(other.up.tensors[name], value, rtol=RTOL, atol=ATOL)


@pytest.mark.parametrize(
    ("model", "train"),
    [
        ("logistic", {}),
        ("mlp", {"momentum": 0.9, "weight_decay": 1e-3}),
        ("mlp", {"epochs": 3, "batch": 10**9}),  # no room is made for samples that nobody has
        ("cnn", {}),
        ("wrn-10-1", {}),
        ("wrn-10-1", {"norm": "group", "batch": 10**9}),
        ("resnet-8", {"momentum": 0.5}),
        ("mlp", {"optimiser": "adam", "lr": 0.001}),
    ],
)
def test_many_clients_at_once_give_what_each_gives_alone(model: str, train: dict[str, Any]) -> None:
    vector = VectorEngine()
    check_same(outcomes(SerialEngine(), FedAvg(), model, **train), outcomes(vector, FedAvg(), model, **train))
    assert vector.facts() == {"stacked": 7.0, "not_stacked": 0.0}


@pytest.mark.parametrize("chunk", [1, 3, 100])
def test_the_size_of_a_stack_changes_nothing(chunk: int) -> None:
    method = FedProx(mu=0.5)
    check_same(
        outcomes(SerialEngine(), method, "mlp", epochs=2),
        outcomes(VectorEngine(EngineSettings(chunk=chunk)), method, "mlp", epochs=2),
    )


def test_uploads_that_are_not_combined_come_one_by_one_and_partial_work_stops_in_time() -> None:
    for limit in (1, 4):
        apart = outcomes(SerialEngine(), FedAvg(), "mlp", combine=False, limit=limit)
        assert len(apart) == 7
        check_same(apart, outcomes(VectorEngine(), FedAvg(), "mlp", combine=False, limit=limit))


class Clipped(GradientClient):
    """Computes a norm over all parameters, which mixes the clients of a stack."""

    def step(self, task: Task, carry: Carry, batch: Batch) -> Carry:
        carry = super().step(task, carry, batch)
        norm = torch.stack([value.norm() for value in carry["parameters"].values()]).norm()
        return {**carry, "parameters": {name: value / norm for name, value in carry["parameters"].items()}}


@dataclass(frozen=True)
class Clipping(Method):
    client = Clipped()
    server = AveragingServer()


def test_a_step_that_cannot_be_stacked_runs_serially_and_is_counted() -> None:
    vector = VectorEngine()
    check_same(outcomes(SerialEngine(), Clipping(), "mlp"), outcomes(vector, Clipping(), "mlp"))
    assert vector.facts() == {"stacked": 0.0, "not_stacked": 7.0}


class Odd(nn.Module):
    """A model that mixes the samples of a batch."""

    def __init__(self) -> None:
        super().__init__()
        self.head = nn.Linear(64, 10)

    def forward(self, x: Tensor) -> Tensor:
        flat = x.flatten(1)
        return self.head(flat - flat.mean(0))


class Deciding(nn.Linear):
    """A model that reads a number of its samples, and one of a constant, which the first step does not show."""

    def __init__(self, reads: bool = True) -> None:
        super().__init__(64, 10)
        self.reads = reads
        self.register_buffer("on", torch.ones(()), persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        scale = -1.0 if self.reads and bool(x.mean() > 0.9) else float(self.on)  # type: ignore[arg-type]
        return super().forward(scale * x.flatten(1))


@pytest.mark.parametrize("model", [Odd, Deciding])
def test_a_model_that_mixes_samples_is_not_stacked(model: Any, tmp_path: Any) -> None:
    runs = {
        engine: ug.run(model=model, rounds=2, clients=5, engine=engine, out=str(tmp_path))
        for engine in ("serial", "vector")
    }
    assert runs["vector"].history[-1]["not_stacked"] == 5
    assert runs["vector"].summary["model_digest"] == runs["serial"].summary["model_digest"]
    noted = {engine: sum("one by one" in note for note in result.notes) for engine, result in runs.items()}
    assert noted == {"serial": 0, "vector": 1}


def test_a_model_that_reads_a_constant_is_stacked(tmp_path: Any) -> None:
    result = ug.run(model=lambda: Deciding(False), rounds=1, clients=5, engine="vector", out=str(tmp_path))
    assert result.history[-1]["not_stacked"] == 0 and not any("one by one" in note for note in result.notes)


@pytest.mark.parametrize("batch", [1, 16])
def test_a_model_that_mixes_samples_is_recognised_with_one_client(batch: int) -> None:
    def last(engine: SerialEngine | VectorEngine) -> Outcome:
        functional = Model(lambda: Odd().double())
        task = Task(functional, 10, Train(batch=batch, lr=0.05))
        engine.open(World(task, FedAvg().client, {"server": AveragingServer()}, POPULATION))
        down = Packet(functional.initial(3))
        jobs = [Job("server", name, down, Context(1, name, 0), True) for name in POPULATION.devices]
        list(engine.run(jobs[:1]))
        return next(iter(engine.run(jobs)))

    vector = VectorEngine()
    check_same({"": last(SerialEngine())}, {"": last(vector)})
    assert vector.facts() == {"stacked": 0.0, "not_stacked": 7.0}


def test_a_client_without_steps_sends_what_it_received() -> None:
    def all_of(engine: SerialEngine | VectorEngine) -> dict[str, Outcome]:
        functional = Model(double_model(DATA, "mlp"))
        task = Task(functional, 10, Train(batch=16, lr=0.05))
        engine.open(World(task, FedAvg().client, {"server": AveragingServer()}, POPULATION))
        down = Packet(functional.initial(3))
        names = POPULATION.devices
        rounds = [[0] * 7, [0, 3, 0, 2, 1, 0, 5]]  # limits of steps; no client has a step in the first round
        for limits in rounds:
            jobs = [
                Job("server", name, down, Context(1, name, 0), False, most)
                for name, most in zip(names, limits, strict=True)
            ]
            found = {",".join(outcome.sent): outcome for outcome in engine.run(jobs)}
        return found

    vector = VectorEngine()
    check_same(all_of(SerialEngine()), all_of(vector))
    assert vector.facts() == {"stacked": 7.0, "not_stacked": 0.0}


def test_an_update_that_is_not_finite_is_refused_by_name_and_the_others_count() -> None:
    def spoiled(engine: SerialEngine | VectorEngine) -> Outcome:
        task = Task(Model(double_model(DATA, "mlp")), 10, Train(batch=16, lr=0.05))
        world = World(task, FedAvg().client, {"server": AveragingServer()}, POPULATION)
        engine.open(world)
        start = task.model.initial(3)
        bad = Packet({**start, "head.bias": start["head.bias"] * float("nan")})
        jobs = [
            Job("server", name, bad if place == 2 else Packet(start), Context(1, name, 0), True)
            for place, name in enumerate(POPULATION.devices)
        ]
        return next(iter(engine.run(jobs)))

    one, other = spoiled(SerialEngine()), spoiled(VectorEngine())
    assert set(one.refused) == set(other.refused) == {POPULATION.devices[2]}
    assert "not finite" in other.refused[POPULATION.devices[2]]
    check_same({"all": one}, {"all": other})


def test_batch_statistics_are_those_of_each_clients_real_samples() -> None:
    vector = outcomes(VectorEngine(), FedAvg(), "wrn-10-1", combine=False)
    for name, serial in outcomes(SerialEngine(), FedAvg(), "wrn-10-1", combine=False).items():
        assert serial.up is not None and vector[name].up is not None
        for key in serial.up.tensors:
            if "running" in key or "tracked" in key:
                torch.testing.assert_close(vector[name].up.tensors[key], serial.up.tensors[key], rtol=RTOL, atol=ATOL)


def test_own_states_stay_with_their_devices() -> None:
    states = []
    for engine in (SerialEngine(), VectorEngine()):
        task = Task(Model(double_model(DATA, "mlp")), 10, Train(batch=16, lr=0.05))
        world = World(task, Local().client, {"server": Local().server}, POPULATION)
        engine.open(world)
        for round in range(2):
            jobs = [
                Job("server", name, Packet(scalars={"seed": 3.0}), Context(1, name, round), True)
                for name in POPULATION.devices
            ]
            list(engine.run(jobs))
        states.append({device: dict(state) for device, state in world.states.all().items()})
    torch.testing.assert_close(states[1], states[0], rtol=RTOL, atol=ATOL)


@pytest.mark.parametrize("client", [FisherClient, MeasuringClient])
def test_work_around_the_steps_is_computed_for_all_clients_at_once(
    client: type[LoopClient], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The Fisher information takes a step for each sample, and the validation one for each of two models.

    The samples of one client are divided, so that their steps are computed at once, too.
    """
    steps, plain = [0], client.step

    def counted(self: Any, task: Task, carry: Carry, batch: Batch) -> Carry:
        steps[0] += 1
        return plain(self, task, carry, batch)

    monkeypatch.setattr(client, "step", counted)
    method, found = Adapt("ewc:1", validation=0.1, patience=1), []
    for engine in (SerialEngine(), VectorEngine()):
        steps[0] = 0
        found.append((outcomes(engine, method, "mlp"), steps[0]))
    sizes = [len(POPULATION.train(device)) for device in POPULATION.devices]
    samples = [size - round(0.1 * size) for size in sizes]
    serial, most = (sum(samples), max(samples)) if client is FisherClient else (2 * len(sizes), 2)
    tried = 3  # whether a stack gives what two clients give: one step in it, and one of each alone
    # Two clients are computed first, then all others.
    assert found[0][1] == serial and found[1][1] < (most if client is FisherClient else 2 * most + tried + 1)
    assert found[0][0]["all"].scalars == found[1][0]["all"].scalars


def test_clients_with_different_settings_are_in_different_stacks() -> None:
    task = Task(Model(double_model(DATA, "mlp")), 10, Train(batch=16, lr=0.05, rounds=4, schedule="linear"))
    down = Packet(task.model.initial(3))
    names = POPULATION.devices
    jobs = [Job("server", name, down, Context(1, name, place % 2), True) for place, name in enumerate(names)]
    found = []
    for engine in (SerialEngine(), VectorEngine()):
        engine.open(World(task, FedAvg().client, {"server": AveragingServer()}, POPULATION))
        found.append({"all": next(iter(engine.run(jobs)))})
    check_same(*found)
    assert replace(task.train, lr=1.0).lr == 1.0


@pytest.mark.parametrize("model", ["cnn", pytest.param("wrn-10-1", marks=pytest.mark.slow)])
def test_training_in_bfloat16_stays_near_float32(model: str, tmp_path: Any) -> None:
    settings = {"model": model, "clients": 3, "rounds": 1, "batch": 64, "lr": 0.01, "out": str(tmp_path)}
    settings["data_options"] = {"train_samples": 300}
    whole = ug.run(engine="serial", **settings)
    for engine in ("serial", "vector"):
        short = ug.run(engine=engine, precision="bf16", **settings)
        assert short.summary["model_digest"] != whole.summary["model_digest"]
        assert all(value.dtype == torch.float32 for value in short.model.parameters())
        assert short.loss == pytest.approx(whole.loss, rel=0.02)
        assert short.history[-1].get("not_stacked", 0) == 0


def test_equal_tensors_are_stacked_like_shared_ones() -> None:
    """A resumed run has copies where an uninterrupted one shares a tensor, and both must give the same bits."""
    value = torch.randn(3, 5)
    carry = stack_carries([{"kept": value}, {"kept": value.clone()}, {"kept": value}])
    assert carry["kept"].stride(0) == 0
    other = stack_carries([{"kept": value}, {"kept": value + 1}])
    assert other["kept"].stride(0) and torch.equal(other["kept"][1], value + 1)


def test_kinds_that_no_longer_occur_are_forgotten(tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every learning rate of a schedule is a kind. A kind that comes back is tested again, with the same result."""
    known: list[int] = []

    def look(row: Any, execution: Any) -> None:
        runner = execution.federation.engine.stack_runner
        known.append(len(runner._kinds))
        assert runner._last_round.keys() == runner._stackable.keys() == set(runner._kinds.values())
        assert len(runner._job_bytes) == 1

    def run(schedule: str) -> str:
        train = {"rounds": 8, "schedule": schedule, "sample": 0.5}
        data = {"clients": 4, "train_samples": 60}
        raw = {"model": "logistic", "data": data, "train": train, "run": {"engine": "vector", "out": str(tmp_path)}}
        known.clear()
        return str(start(raw, on_round=look).summary["model_digest"])

    whole, constant = run("cosine"), run("constant")
    assert known == [1] * 8
    monkeypatch.setattr(stacked_steps, "MAX_UNUSED_ROUNDS", 2)
    assert run("cosine") == whole
    assert known == [1, 2, 3, 3, 3, 3, 3, 3]
    monkeypatch.setattr(stacked_steps, "MAX_UNUSED_ROUNDS", 0)
    assert run("constant") == constant


def test_a_closed_engine_does_not_wait_for_the_garbage_collector() -> None:
    """Otherwise a GPU holds samples and recordings of a phase for many rounds of the next one."""
    engine = VectorEngine()
    outcomes(engine, FedAvg(), "logistic")
    samples = weakref.ref(engine.world.samples)
    engine.close()
    engine.close()
    del engine
    assert samples() is None
