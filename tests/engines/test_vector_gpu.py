"""The vector engine on a real GPU: recorded steps, waves and Triton kernels give what the serial engine gives."""

from __future__ import annotations

from dataclasses import dataclass, replace
from statistics import median

import pytest
import torch
from torch import Tensor

from undergrowth.bench.engines import CONTESTS
from undergrowth.core import Batch, Carry, Context, Method, Model, Packet, Shard, Task, Train
from undergrowth.data import load, partition_dataset
from undergrowth.engines import (
    Engine,
    Job,
    Outcome,
    SerialEngine,
    VectorEngine,
    World,
    restore_torch_settings,
    set_torch,
)
from undergrowth.engines.vector import recording
from undergrowth.engines.vector.stack import FIRST_WAVE
from undergrowth.learning import GradientClient
from undergrowth.methods import FedAvg
from undergrowth.models import builder

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")]

DATA = load("digits")
DEVICES = 3 * FIRST_WAVE
POPULATION = partition_dataset(DATA, "dirichlet:1", DEVICES, 0, holdout=0)
METHOD = FedAvg()
ROUNDS = 3  # in the first, some steps are not recorded yet


def task_with(model: str) -> Task:
    return Task(Model(builder(model, DATA.shape, DATA.classes)).to("cuda"), DATA.classes, Train(batch=4, lr=0.05))


def all_weights(packet: Packet | None) -> Tensor:
    """All tensors of a packet as one vector."""
    assert packet is not None
    return torch.cat([value.flatten() for value in packet.tensors.values()])


def last_round(
    engine: Engine, task: Task, rounds: int, tf32: bool = False, combine: bool = True, method: Method = METHOD
) -> list[Outcome]:
    """The outcomes of the last of `rounds` rounds, which all start from the same weights."""
    with restore_torch_settings():
        set_torch(tf32)
        engine.open(World(task, method.client, {"server": method.server}, POPULATION, torch_device="cuda"))
        down = Packet(task.model.initial(3))
        for _ in range(rounds):
            found = list(
                engine.run([Job("server", name, down, Context(1, name, 0), combine) for name in POPULATION.devices])
            )
    assert sum(len(outcome.sent) for outcome in found) == DEVICES
    return found


def mean_of(engine: Engine, model: str, tf32: bool, rounds: int = ROUNDS) -> Tensor:
    (outcome,) = last_round(engine, task_with(model), rounds, tf32)
    return all_weights(outcome.up)


@pytest.mark.parametrize("model", ["logistic", "mlp", "cnn", "wrn-10-1"])
@pytest.mark.parametrize(("tf32", "allowed"), [(False, 1e-4), (True, 1e-2)])
def test_a_round_gives_what_the_serial_engine_gives(model: str, tf32: bool, allowed: float) -> None:
    engine = VectorEngine()
    found, wanted = mean_of(engine, model, tf32), mean_of(SerialEngine(), model, tf32=False)
    assert engine.facts() == {"stacked": float(DEVICES), "not_stacked": 0.0}
    assert float((found - wanted).norm() / wanted.norm()) < allowed
    assert torch.equal(mean_of(VectorEngine(), model, tf32), found)
    assert torch.equal(
        mean_of(VectorEngine(), model, tf32, rounds=1), found
    )  # as after a resume, when nothing is recorded yet


def test_a_batch_size_far_above_the_data_gives_what_the_serial_engine_gives() -> None:
    task = task_with("mlp")
    task = replace(task, train=replace(task.train, batch=10**9, epochs=20))
    wanted = all_weights(last_round(SerialEngine(), task, 1)[0].up)
    found = [all_weights(last_round(VectorEngine(), task, rounds)[0].up) for rounds in (1, ROUNDS)]
    assert torch.equal(*found)
    assert float((found[0] - wanted).norm() / wanted.norm()) < 1e-4


def test_steps_are_recorded_again_after_all_recordings_were_deleted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(recording, "STEPS_BEFORE_RECORDING_NEW", 0)
    task, engine = task_with("logistic"), VectorEngine()
    whole = all_weights(last_round(engine, task, 1)[0].up)
    down = Packet(task.model.initial(3))
    jobs = [Job("server", name, down, Context(1, name, 0), True) for name in POPULATION.devices]
    for _ in range(3):
        engine.stack_runner._recordings.clear()
        torch.cuda.empty_cache()
        (outcome,) = engine.run(jobs)
        assert torch.equal(all_weights(outcome.up), whole)


class Looking(GradientClient):
    """Reads a value in every step, so that the CPU waits for the GPU."""

    def step(self, task: Task, carry: Carry, batch: Batch) -> Carry:
        assert bool(batch["x"].isfinite().all())
        return super().step(task, carry, batch)


def test_a_step_that_reads_a_value_is_stacked_but_not_recorded() -> None:
    @dataclass(frozen=True)
    class Careful(FedAvg):
        client = Looking()

    engine = VectorEngine()
    (found,) = last_round(engine, task_with("mlp"), ROUNDS, method=Careful())
    assert engine.facts() == {"stacked": float(DEVICES), "not_stacked": 0.0}
    assert torch.equal(all_weights(found.up), mean_of(VectorEngine(), "mlp", tf32=False))


def test_rounding_does_not_decide_whether_clients_are_stacked() -> None:
    """Adam's first step has full length even where a gradient is only rounding; a resumed run must decide the same."""
    train = Train(batch=2, lr=0.003, optimiser="adamw", weight_decay=1e-3)
    task = replace(task_with("cnn"), train=train)
    coarse = {name: (value * 7 / value.abs().max()).round() for name, value in task.model.initial(3).items()}
    down = Packet({name: value * 0.01 for name, value in coarse.items()})
    world = World(task, METHOD.client, {"server": METHOD.server}, POPULATION, torch_device="cuda")
    with restore_torch_settings():
        set_torch(False)
        for pair in zip(POPULATION.devices[:24:2], POPULATION.devices[1:24:2], strict=True):
            engine = VectorEngine()
            engine.open(world)
            list(engine.run([Job("server", name, down, Context(1, name, 0)) for name in pair]))
            assert engine.facts() == {"stacked": 2.0, "not_stacked": 0.0}


def test_clients_of_the_benchmark_end_where_they_do_in_double_precision() -> None:
    """`pytest -s` shows the differences of both engines. The serial one uses cuDNN's convolutions."""
    contest = CONTESTS["cnn"]
    task = Task(contest.module().to("cuda"), contest.classes, Train(batch=20, lr=0.1))
    start = Packet({name: value.to("cuda") for name, value in contest.initial().items()})
    devices = [contest.population.devices[number] for number in contest.cohorts()[0]]

    def all_alone(kind: torch.dtype) -> dict[str, Tensor]:
        down = Packet({name: value.to(kind) for name, value in start.tensors.items()})
        found = {}
        for device in devices:
            shard = contest.population.train(device).to("cuda")
            shard = Shard(shard.x.to(kind), shard.y)
            found[device] = all_weights(METHOD.client.local(task, down, shard, {}, Context(1, device, 0))[0])
        return found

    with restore_torch_settings():
        set_torch(False)
        wanted, serial = all_alone(torch.float64), all_alone(torch.float32)
        world = World(task, METHOD.client, {"server": METHOD.server}, contest.population, torch_device="cuda")
        engine = VectorEngine()
        engine.open(world)
        jobs = [Job("server", device, start, Context(1, device, 0)) for device in devices]
        vector = {device: all_weights(outcome.up) for outcome in engine.run(jobs) for device in outcome.sent}
    for name, found in (("serial", serial), ("vector", vector)):
        far = sorted(float((found[device] - wanted[device]).norm() / wanted[device].norm()) for device in devices)
        print(f"{name}: median {median(far):.1e}, largest {far[-1]:.1e}, over 1e-4: {sum(each > 1e-4 for each in far)}")
    assert median(far) < 1e-6  # the vector engine's
