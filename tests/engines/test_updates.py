"""Clients with several updates: run one after the other, stacked separately, priced as their sum."""

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
    join_updates,
    split_limit,
)  # fmt: skip
from undergrowth.data import partition_dataset
from undergrowth.devices import Tracer
from undergrowth.engines import Job, SerialEngine, VectorEngine, World
from undergrowth.engines.world import Outcome
from undergrowth.learning import GradientClient, Trained

from ..double_precision import double_data, double_model

DATA = double_data("digits", train_samples=400)
POPULATION = partition_dataset(DATA, "dirichlet:0.5", 6, 0, holdout=0)


@dataclass(frozen=True)
class Personal(GradientClient):
    """Trains the last layer of a personal model, and sends only the number of its samples."""

    def start(self, task: Task, down: Packet, own: State) -> Mapping[str, torch.Tensor]:
        return own.get("mine", down.tensors)

    def upload(self, trained: Trained) -> tuple[Packet, State]:
        mine = {**self.start(trained.task, trained.down, trained.own), **trained.tensors}
        return Packet(scalars={"personal": trained.scalars["samples"]}), {"mine": mine}


@dataclass(frozen=True)
class Unstackable(GradientClient):
    """Reads a single value in its step, which fails in a stack."""

    def step(self, task: Task, carry: Any, batch: Any) -> Any:
        float(batch["y"].sum() if "weight" not in batch else batch["y"])
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
    return Task(Model(double_model(DATA, model)), DATA.classes, Train(batch=16, lr=0.05))


def outcomes(
    engine: SerialEngine | VectorEngine, client: Updates, task: Task, limit: int | None = None, only: str = ""
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
    vector, task = VectorEngine(), task_of(model)
    apart, there = outcomes(SerialEngine(), Both(), task, limit, only)
    together, here = outcomes(vector, Both(), task, limit, only)
    assert vector.facts() == {"stacked": 6.0, "not_stacked": 0.0}
    assert apart.keys() == together.keys() == set(POPULATION.devices)
    for place, name in enumerate(POPULATION.devices):
        one, other = apart[name].up, together[name].up
        assert one is not None and other is not None and one.scalars == other.scalars
        torch.testing.assert_close(dict(other.tensors), dict(one.tensors), rtol=1e-9, atol=1e-10)
        kept, expected = here.states.get(name), there.states.get(name)
        assert kept.keys() == expected.keys() == ({"mine"} if not only or not place % 2 else set())
        if kept:
            torch.testing.assert_close(kept["mine"], expected["mine"], rtol=1e-9, atol=1e-10)
            head, below = task.model.trainable("head")[0], task.model.parameters[0]
            assert not torch.equal(kept["mine"][head], task.model.initial(3)[head])
            assert torch.equal(kept["mine"][below], task.model.initial(3)[below])


def test_a_job_runs_alone_if_one_of_its_updates_cannot_be_stacked() -> None:
    vector, task = VectorEngine(), task_of()
    client = Both(personal=Unstackable(split="head"))
    apart, _ = outcomes(SerialEngine(), client, task, only="shared")
    together, _ = outcomes(vector, client, task, only="shared")
    assert vector.facts() == {"stacked": 3.0, "not_stacked": 3.0}
    for name, outcome in apart.items():
        assert outcome.up is not None
        torch.testing.assert_close(dict(together[name].up.tensors), dict(outcome.up.tensors), rtol=1e-9, atol=1e-10)  # type: ignore[union-attr]


def test_the_price_is_the_sum_and_the_memory_the_larger() -> None:
    task = task_of("wrn-10-1")
    down, shard = (
        Packet(task.model.initial(3)),
        Shard(torch.randn(48, *DATA.shape, dtype=torch.float64), torch.arange(48) % 10),
    )
    both, shared, personal = (
        Tracer(task, client, DATA.shape, torch.float64).work(down, 48)
        for client in (Both(), Both().shared, Both().personal)
    )
    with FlopCounterMode(display=False) as counter:
        Both().local(task, down, shard, {}, Context(0, "a", 0))
    assert both.flops == shared.flops + personal.flops == pytest.approx(counter.get_total_flops(), rel=0.01)
    assert (both.steps, both.samples) == (shared.steps + personal.steps, shared.samples + personal.samples)
    assert both.memory == max(shared.memory, personal.memory)
    assert both.bytes_up == shared.bytes_up + personal.bytes_up
    with FlopCounterMode(display=False) as counter:
        Both().local(task, down, shard, {}, Context(0, "a", 0), limit=3)
    assert both.flops * both.fraction(3) == pytest.approx(counter.get_total_flops(), rel=0.01)


def test_a_limit_is_divided_among_the_updates() -> None:
    assert split_limit(10, [30, 10]) == [7, 2]
    assert split_limit(3, [30, 1, 0]) == [2, 1, 0]
    assert split_limit(100, [30, 10]) == [30, 10]
    assert split_limit(5, [12]) == [5] and split_limit(5, [0]) == [0] and split_limit(0, [3, 4]) == [0, 0]


def test_a_state_that_no_update_changed_is_the_same_object() -> None:
    own: State = {"a": torch.zeros(2), "b": 1}
    up, kept = join_updates(own, [(Packet({"x": torch.ones(1)}), own), (Packet(scalars={"n": 2.0}), own)])
    assert kept is own and set(up.tensors) == {"x"} and up.scalars == {"n": 2.0}
    _, kept = join_updates(own, [(Packet(), {**own, "b": 2}), (Packet(), {"c": 3})])
    assert kept == {"a": own["a"], "b": 2, "c": 3} and own["b"] == 1
