"""Clients of several updates: one after the other, stacked each by itself, priced as their sum."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

from undergrowth.core import (
    Context,
    LoopClient,
    Model,
    Packet,
    Server,
    Shard,
    State,
    Sum,
    Task,
    Train,
    Updates,
    joined,
    shares,
)  # fmt: skip
from undergrowth.data import load, partition_dataset
from undergrowth.devices import Tracer
from undergrowth.engines import Job, Serial, Vector, World
from undergrowth.engines.world import Outcome
from undergrowth.learning import GradientClient
from undergrowth.models import builder

DATA = load("digits")
POPULATION = partition_dataset(DATA, "dirichlet:0.5", 6, 0, holdout=0)


@pytest.fixture(autouse=True)
def _one_thread() -> Any:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@dataclass(frozen=True)
class Personal(GradientClient):
    """Trains the last layer of a model of its own, and sends only how long that took."""

    def start(self, task: Task, down: Packet, own: State) -> Mapping[str, torch.Tensor]:
        return own.get("mine", down.tensors)

    def send(self, task: Task, down: Packet, trained: Packet, own: State) -> tuple[Packet, State]:
        mine = {**self.start(task, down, own), **trained.tensors}
        return Packet(scalars={"personal": trained.scalars["samples"]}), {"mine": mine}


@dataclass(frozen=True)
class Unstackable(GradientClient):
    """Looks at single values in its step, which no stack can."""

    def step(self, task: Task, carry: Any, batch: Any) -> Any:
        float(batch["y"].sum() if "share" not in batch else batch["y"])
        return super().step(task, carry, batch)


@dataclass(frozen=True)
class Both(Updates):
    shared: LoopClient = GradientClient()
    personal: LoopClient = Personal(split="head", epochs=2, batch=8)

    def updates(self, task: Task, down: Packet) -> Mapping[str, LoopClient]:
        if down.tags.get("only") == "shared":
            return {"shared": self.shared}
        return {"shared": self.shared, "personal": self.personal}


class Adding(Server):
    reducer = Sum()


def task_of(model: str = "mlp") -> Task:
    return Task(Model(builder(model, DATA.shape, DATA.classes)), DATA.classes, Train(batch=16, lr=0.05))


def outcomes(
    engine: Serial | Vector, client: Updates, task: Task, limit: int | None = None, only: str = ""
) -> tuple[dict[str, Outcome], World]:
    world = World(task, client, {"server": Adding()}, POPULATION)
    engine.open(world)
    down = Packet(task.model.initial(3))
    plain = replace(down, tags={"only": only}) if only else down
    jobs = [  # with `only`, for every other device
        Job("server", name, plain if place % 2 else down, Context(1, name, 0), False, limit)
        for place, name in enumerate(POPULATION.devices)
    ]
    return {next(iter(outcome.sent)): outcome for outcome in engine.run(jobs)}, world


@pytest.mark.parametrize(("model", "limit", "only"), [("mlp", None, ""), ("wrn-10-1", 7, ""), ("mlp", None, "shared")])
def test_a_stack_gives_what_one_after_the_other_gives(model: str, limit: int | None, only: str) -> None:
    vector, task = Vector(), task_of(model)
    apart, there = outcomes(Serial(), Both(), task, limit, only)
    together, here = outcomes(vector, Both(), task, limit, only)
    assert vector.facts() == {"stacked": 6.0, "not_stacked": 0.0}
    assert apart.keys() == together.keys() == set(POPULATION.devices)
    for place, name in enumerate(POPULATION.devices):
        one, other = apart[name].up, together[name].up
        assert one is not None and other is not None and one.scalars == other.scalars
        torch.testing.assert_close(dict(other.tensors), dict(one.tensors), rtol=1e-3, atol=2e-5)
        kept, expected = here.states.get(name), there.states.get(name)
        assert kept.keys() == expected.keys() == ({"mine"} if not only or not place % 2 else set())
        if kept:
            torch.testing.assert_close(kept["mine"], expected["mine"], rtol=1e-3, atol=2e-5)
            head, below = task.model.trainable("head")[0], task.model.parameters[0]
            assert not torch.equal(kept["mine"][head], task.model.initial(3)[head])
            assert torch.equal(kept["mine"][below], task.model.initial(3)[below])


def test_a_job_is_done_alone_if_one_of_its_updates_cannot_be_stacked() -> None:
    vector, task = Vector(), task_of()
    client = Both(personal=Unstackable(split="head"))
    apart, _ = outcomes(Serial(), client, task, only="shared")
    together, _ = outcomes(vector, client, task, only="shared")
    assert vector.facts() == {"stacked": 3.0, "not_stacked": 3.0}
    for name, outcome in apart.items():
        assert outcome.up is not None
        torch.testing.assert_close(dict(together[name].up.tensors), dict(outcome.up.tensors), rtol=1e-3, atol=2e-5)  # type: ignore[union-attr]


def test_the_price_is_the_sum_and_the_memory_the_larger() -> None:
    task = task_of("wrn-10-1")
    down, shard = Packet(task.model.initial(3)), Shard(torch.randn(40, *DATA.shape), torch.arange(40) % 10)
    both, shared, personal = (
        Tracer(task, client, DATA.shape).work(down, 40) for client in (Both(), Both().shared, Both().personal)
    )
    with FlopCounterMode(display=False) as counter:
        Both().local(task, down, shard, {}, Context(0, "a", 0))
    assert both.flops == shared.flops + personal.flops == pytest.approx(counter.get_total_flops(), rel=0.01)
    assert (both.steps, both.samples) == (shared.steps + personal.steps, shared.samples + personal.samples)
    assert both.memory == max(shared.memory, personal.memory)
    assert both.bytes_up == shared.bytes_up + personal.bytes_up


def test_with_a_limit_each_update_does_its_share() -> None:
    assert shares(10, [30, 10]) == [7, 2]
    assert shares(3, [30, 1, 0]) == [2, 1, 0]
    assert shares(100, [30, 10]) == [30, 10]
    assert shares(5, [12]) == [5] and shares(5, [0]) == [0] and shares(0, [3, 4]) == [0, 0]


def test_what_no_update_changed_is_the_same_object() -> None:
    own: State = {"a": torch.zeros(2), "b": 1}
    up, kept = joined(own, [(Packet({"x": torch.ones(1)}), own), (Packet(scalars={"n": 2.0}), own)])
    assert kept is own and set(up.tensors) == {"x"} and up.scalars == {"n": 2.0}
    _, kept = joined(own, [(Packet(), {**own, "b": 2}), (Packet(), {"c": 3})])
    assert kept == {"a": own["a"], "b": 2, "c": 3} and own["b"] == 1
