"""The vector engine on a real GPU: recorded steps, waves and kernels of its own give what the serial engine gives."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from undergrowth.core import Context, Model, Packet, Task, Train
from undergrowth.data import load, partition
from undergrowth.engines import Engine, Job, Serial, Vector, World
from undergrowth.engines.vector.stack import WAVE
from undergrowth.engines.world import set_torch, torch_restored
from undergrowth.methods import FedAvg
from undergrowth.models import builder

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")]

DATA = load("digits")
DEVICES = 3 * WAVE
ROUNDS = 3  # in the first, some steps are not recorded yet


def last_round(engine: Engine, model: str, tf32: bool) -> Tensor:
    """All weights, one after the other, after the last of some rounds from the same start."""
    method, functional = FedAvg(), Model(builder(model, DATA.shape, DATA.classes)).to("cuda")
    population = partition(DATA, "dirichlet:1", DEVICES, 0, holdout=0)
    with torch_restored():
        set_torch(tf32)
        task = Task(functional, DATA.classes, Train(batch=4, lr=0.05))
        engine.open(World(task, method.client, {"server": method.server}, population, device="cuda"))
        down = Packet(functional.initial(3))
        for _ in range(ROUNDS):
            (outcome,) = engine.run(
                [Job("server", name, down, Context(1, name, 0), True) for name in population.devices]
            )
    assert outcome.up is not None and len(outcome.sent) == DEVICES
    return torch.cat([value.flatten() for value in outcome.up.tensors.values()])


@pytest.mark.parametrize("model", ["logistic", "cnn"])
@pytest.mark.parametrize(("tf32", "allowed"), [(False, 1e-4), (True, 1e-2)])
def test_a_round_gives_what_the_serial_engine_gives(model: str, tf32: bool, allowed: float) -> None:
    engine = Vector()
    found, wanted = last_round(engine, model, tf32), last_round(Serial(), model, False)
    assert engine.facts() == {"stacked": float(DEVICES), "not_stacked": 0.0}
    assert float((found - wanted).norm() / wanted.norm()) < allowed
    assert torch.equal(last_round(Vector(), model, tf32), found)
