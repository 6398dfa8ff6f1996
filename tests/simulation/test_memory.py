"""Memory does not grow with the rounds, nor with devices that are not asked."""

from __future__ import annotations

import gc
import tracemalloc

import pytest
import torch

from undergrowth.core import Server
from undergrowth.learning import AveragingServer

from .federations import Buffer, federation


def tensors() -> int:
    gc.collect()
    return sum(issubclass(type(thing), torch.Tensor) for thing in gc.get_objects())


@pytest.mark.parametrize(
    ("server", "topology"),
    [
        pytest.param(AveragingServer(), "star", marks=pytest.mark.slow),
        (AveragingServer(), "tree:2x3"),
        pytest.param(Buffer(), "star", marks=pytest.mark.slow),
    ],
)
def test_memory_does_not_grow_with_the_rounds(server: Server, topology: str):
    simulation, world = federation(server, count=6, topology=topology, rounds=61)  # neither mark is its last
    alive, traced = {}, {}
    tracemalloc.start()
    try:
        for ends in simulation.rounds():
            simulation.ledger.take()  # which a run writes to its store
            world.client.asked.clear()
            for number in (end.round + 1 for end in ends if end.round + 1 in (20, 60)):
                alive[number] = tensors()
                traced[number] = tracemalloc.get_traced_memory()[0]
    finally:
        tracemalloc.stop()
    assert alive[60] <= alive[20]
    assert traced[60] - traced[20] < 40 * 1000  # Python has caches of its own, which grow a little


def test_memory_does_not_grow_with_devices_that_are_not_asked():
    """A hundred more devices, of whom nobody is asked, leave no tensor and no bookkeeping behind."""
    few, _ = federation(Buffer(goal=2, concurrency=3), count=3, rounds=20)
    many, world = federation(Buffer(goal=2, concurrency=3), count=103, rounds=20)
    for simulation in (few, many):
        for _ in simulation.rounds():
            simulation.ledger.take()
    assert len({name for name, _, _ in world.client.asked}) == 3
    assert len(many.root.snapshot()["turns"]) == len(few.root.snapshot()["turns"]) == 3
    assert set(world.states.all()) == {"device-0", "device-1", "device-2"}
