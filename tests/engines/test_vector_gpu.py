"""The vector engine on a real GPU: recorded steps, waves and kernels of its own give what the serial engine gives."""

from __future__ import annotations

from statistics import median

import pytest
import torch
from torch import Tensor

from undergrowth.core import Context, Model, Packet, Shard, Task, Train
from undergrowth.data import load, partition
from undergrowth.engines import Engine, Job, Outcome, Serial, Vector, World
from undergrowth.engines.vector.stack import WAVE
from undergrowth.engines.world import set_torch, torch_restored
from undergrowth.methods import FedAvg
from undergrowth.models import builder

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")]

DATA = load("digits")
DEVICES = 3 * WAVE
POPULATION = partition(DATA, "dirichlet:1", DEVICES, 0, holdout=0)
METHOD = FedAvg()
ROUNDS = 3  # in the first, some steps are not recorded yet


def task_with(model: str) -> Task:
    return Task(Model(builder(model, DATA.shape, DATA.classes)).to("cuda"), DATA.classes, Train(batch=4, lr=0.05))


def all_weights(packet: Packet | None) -> Tensor:
    """One after the other."""
    assert packet is not None
    return torch.cat([value.flatten() for value in packet.tensors.values()])


def last_round(engine: Engine, task: Task, rounds: int, tf32: bool = False, fold: bool = True) -> list[Outcome]:
    """The last of some rounds, all from the same start."""
    with torch_restored():
        set_torch(tf32)
        engine.open(World(task, METHOD.client, {"server": METHOD.server}, POPULATION, device="cuda"))
        down = Packet(task.model.initial(3))
        for _ in range(rounds):
            found = list(
                engine.run([Job("server", name, down, Context(1, name, 0), fold) for name in POPULATION.devices])
            )
    assert sum(len(outcome.sent) for outcome in found) == DEVICES
    return found


def mean_of(engine: Engine, model: str, tf32: bool, rounds: int = ROUNDS) -> Tensor:
    (outcome,) = last_round(engine, task_with(model), rounds, tf32)
    return all_weights(outcome.up)


@pytest.mark.parametrize("model", ["logistic", "mlp", "cnn", "wrn-10-1"])
@pytest.mark.parametrize(("tf32", "allowed"), [(False, 1e-4), (True, 1e-2)])
def test_a_round_gives_what_the_serial_engine_gives(model: str, tf32: bool, allowed: float) -> None:
    engine = Vector()
    found, wanted = mean_of(engine, model, tf32), mean_of(Serial(), model, tf32=False)
    assert engine.facts() == {"stacked": float(DEVICES), "not_stacked": 0.0}
    assert float((found - wanted).norm() / wanted.norm()) < allowed
    assert torch.equal(mean_of(Vector(), model, tf32), found)
    assert torch.equal(mean_of(Vector(), model, tf32, rounds=1), found)  # as after a resume: nothing is recorded


def test_a_client_ends_where_it_does_in_double_precision() -> None:
    task = task_with("cnn")
    start = Packet({name: value.double() for name, value in task.model.initial(3).items()})

    def far(outcome: Outcome) -> float:
        (device,) = outcome.sent
        shard = POPULATION.train(device).to("cuda")
        shard = Shard(shard.x.double(), shard.y)
        wanted = all_weights(METHOD.client.local(task, start, shard, {}, Context(1, device, 0))[0])
        return float((all_weights(outcome.up) - wanted).norm() / wanted.norm())

    found = last_round(Vector(), task, ROUNDS, fold=False)
    assert median(map(far, found)) < 1e-6
