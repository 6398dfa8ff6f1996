"""The device and the server of `adapt`: a device trains a model of its own from the federated one, and stops early.

The device trains in one job after the other, usually an epoch each. With `validation` it holds out a part of its
training samples. After every job it measures the loss on that part and remembers the model with the lowest loss, the
received model included. After `patience` jobs without a lower loss it stops; with `patience: 0` it never does. A device
whose every epoch made the loss worse is left with the received model.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from undergrowth.core import Carry, Context, Packet, Plan, Server, Shard, State, Steps, Sum, Task, View, Weights
from undergrowth.core.client import Loop
from undergrowth.core.names import BUFFERS, FINISH, MODEL, PARAMETERS, PROBLEM, SAMPLES, SEED
from undergrowth.learning import GradientClient, Trained
from undergrowth.learning.adaptation import VALIDATION, initial_weights, received_model, trained_model, validate
from undergrowth.learning.kept_model import check_models, problem_tags
from undergrowth.learning.planning import ask_each
from undergrowth.learning.reference import FISHER

if TYPE_CHECKING:
    from undergrowth.methods.adapt import Adapt

STOPPED = "stopped"  # scalar of an upload: 1 if the device has stopped early
BEST, LOSS, WAITED = "best", "loss", "waited"  # parts of a device's own state
FEDERATED, INFORMATION = "federated", "information"
FIRST = "first"  # in ``carry["finish"]``: whether the device has not yet validated a model


@dataclass(frozen=True, kw_only=True)
class AdaptationClient(GradientClient):
    """Continues to train its own model, and sends only its number of samples and whether it has stopped.

    own: `model` are the weights after the last job; `best` those with the lowest validation loss, if these are others;
    `loss` is that loss and `waited` the number of jobs since then. An objective that compares with the received model
    needs that as `federated`, and the Fisher `information` of it if it consolidates weights.
    """

    options: Adapt
    keeps_federated: bool = False  # whether the objective compares with the received model in every job

    def start(self, task: Task, down: Packet, own: State) -> Weights:
        kept = own.get(FEDERATED if self.keeps_federated else MODEL)
        received = kept or down.tensors or initial_weights(task.model, int(down.scalars[SEED]))
        information = own.get(INFORMATION, {})  # of the received model, so it is computed once
        return {
            **{name: received[name] for name in task.model.shapes},  # one order for all devices
            **{FISHER + name: information[name] for name in task.model.parameters if name in information},
        }

    def begin(self, task: Task, down: Packet, shard: Shard, own: State, context: Context) -> tuple[Carry, Steps]:
        carry, steps = super().begin(task, down, shard, own, context)
        if self.keeps_federated and MODEL in own:
            # `received` stays the federated model, with which the objective compares.
            for part in (PARAMETERS, BUFFERS):
                carry[part] = {name: own[MODEL][name] for name in carry[part]}
        carry[FINISH][FIRST] = LOSS not in own
        return carry, steps

    def after_steps(self, task: Task, loops: Sequence[Loop]) -> list[Carry]:
        carries = check_models(loops)
        if not self.held_out:
            return carries
        loops = [loop._replace(carry=carry) for loop, carry in zip(loops, carries, strict=True)]

        def compared(loop: Loop) -> list[Weights]:
            return [trained_model(task, loop), *([received_model(task, loop)] if loop.carry[FINISH][FIRST] else [])]

        return validate(task, loops, self.held_out, compared)

    def upload(self, trained: Trained) -> tuple[Packet, State]:
        names = trained.task.model.shapes
        received = {name: trained.received[name] for name in names}
        weights = {name: trained.tensors.get(name, received[name]) for name in names}
        own: State = {MODEL: weights}
        if self.keeps_federated:
            own[FEDERATED] = received
            information = {name: trained.received.get(FISHER + name) for name in trained.task.model.parameters}
            if any(value is not None for value in information.values()):
                own[INFORMATION] = information
        stopped = self._validate(trained, received, own)
        scalars = {SAMPLES: float(trained.samples), STOPPED: float(stopped)}
        return Packet(scalars=scalars, tags=problem_tags(trained)), own

    def _validate(self, trained: Trained, received: Weights, own: State) -> bool:
        """Adds to `own` what early stopping needs; returns whether the device stops."""
        if not trained.finish.get(VALIDATION):
            return False
        before = trained.own
        loss, *of_received = trained.finish[VALIDATION]
        # A device may have samples to validate with only later, because those of a stream change.
        lowest, best = (of_received[0], received) if of_received else (before[LOSS], before.get(BEST, before[MODEL]))
        if loss < lowest:
            own.update({LOSS: loss, WAITED: 0})
            return False
        own.update({BEST: best, LOSS: lowest, WAITED: before.get(WAITED, 0) + 1})
        return has_stopped(self.options, own)


def has_stopped(options: Adapt, own: State) -> bool:
    """Whether a device with this state has stopped early."""
    return bool(options.patience and own.get(WAITED, 0) >= options.patience)


def adapted_model(own: State) -> Weights | None:
    """The model that a device keeps after adaptation; None if it has not adapted."""
    kept: Weights | None = own.get(BEST, own.get(MODEL))
    return kept


@dataclass(frozen=True)
class AdaptationServer(Server):
    """Sends its model once to every device, then asks those that have not stopped for more. It learns nothing.

    `alone`: it sends the seed of the initial weights instead, so that a device trains as if there were no federation.
    """

    alone: bool = False
    reducer = Sum()

    def init(self, task: Task, context: Context) -> State:
        return {**super().init(task, context), **({SEED: context.key("model")} if self.alone else {})}

    def adopt(self, task: Task, state: State, down: Packet, context: Context) -> State:
        received: dict[str, object] = {MODEL: dict(down.tensors)} if down.tensors else {}
        return {**state, **received, **({SEED: down.scalars[SEED]} if SEED in down.scalars else {})}

    def plan(self, task: Task, state: State, view: View, context: Context) -> Plan:
        first = Packet(scalars={SEED: state[SEED]}) if self.alone else Packet(state[MODEL])
        again = Packet()
        idle = [child for child in view.idle if child in view.nodes or not _heard_stop(view.heard, child)]
        packets = {child: again if child in view.heard else first for child in idle}
        return ask_each(self, task, replace(view, idle=tuple(idle)), context, packets)

    def check(self, task: Task, up: Packet) -> str | None:
        return up.tags.get(PROBLEM)

    def step(self, task: Task, state: State, combined: Packet, context: Context) -> State:
        return state


def _heard_stop(heard: Mapping[str, Mapping[str, float]], child: str) -> bool:
    return bool(heard.get(child, {}).get(STOPPED))
