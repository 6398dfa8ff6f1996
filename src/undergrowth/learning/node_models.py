"""Servers with a model of their own at every node of a topology, and options that have a value for every level."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeVar

from undergrowth.core import Context, InputError, Packet, Plan, State, Task, View, model_in
from undergrowth.core.names import MODEL, ROUND, SAMPLES
from undergrowth.learning.servers import AveragingServer, has_no_samples

Value = TypeVar("Value")


def at_level(values: Value | tuple[Value, ...], level: int) -> Value:
    """The value of a level, counted from 0. The last value holds for all further levels, a single one for all."""
    return values[min(level, len(values) - 1)] if isinstance(values, tuple) else values


def check_levels(**options: object) -> None:
    """Raise an InputError if an option with a value for every level has none."""
    for name, values in options.items():
        if values == ():
            raise InputError(f"method.{name} is empty; give at least one value, which holds for all levels")


def run_round(task: Task, state: State, context: Context) -> dict[str, float]:
    """The scalars that tell devices the round of the run, which a schedule of the learning rate depends on.

    Empty with a constant rate. A node below the root may count more rounds than the run has.
    """
    return {} if task.train.schedule == "constant" else {ROUND: state.get(ROUND, float(context.round))}


def round_received(down: Packet) -> State:
    """The part of a node's state with the round of the run that its parent sent, if it sent one."""
    return {ROUND: down.scalars[ROUND]} if ROUND in down.scalars else {}


@dataclass(frozen=True)
class ModelServer(AveragingServer):
    """Averages the models of its children over several rounds, and answers its parent with the resulting model.

    The model has the weight of the samples behind the last round in which a child answered.
    """

    def adopt(self, task: Task, state: State, down: Packet, context: Context) -> State:
        return {MODEL: dict(down.tensors), **round_received(down)}

    def plan(self, task: Task, state: State, view: View, context: Context) -> Plan:
        return self.ask(task, view, context, Packet(model_in(state), run_round(task, state, context)))

    def step(self, task: Task, state: State, combined: Packet, context: Context) -> State:
        stepped = super().step(task, state, combined, context)
        return stepped if has_no_samples(combined) else {**stepped, SAMPLES: combined.scalars[SAMPLES]}

    def report(self, task: Task, state: State, partial: Packet | None, context: Context) -> Packet | None:
        return Packet(state[MODEL], {SAMPLES: state[SAMPLES]}) if SAMPLES in state else None
