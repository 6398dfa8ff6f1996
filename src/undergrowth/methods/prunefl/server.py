"""The server of PruneFL: averages the weights that are left, and chooses from time to time which are left."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import torch

from undergrowth.core import Context, Packet, Plan, Server, State, Task, View, WeightedMean
from undergrowth.core.names import MODEL, PHASE
from undergrowth.learning.servers import has_no_samples
from undergrowth.methods.prunefl.client import ADAPTING, GRADIENT, INITIAL, MASK, TRAINING, USES
from undergrowth.methods.prunefl.masks import (
    largest_weights,
    most_important_weights,
    pack,
    prunable,
    put_back,
    take_left,
)

if TYPE_CHECKING:
    from undergrowth.methods.prunefl import PruneFL

ATTEMPT = "attempt"  # scalar of a packet to an edge server before the initial pruning


@dataclass(frozen=True)
class PruneFLServer(Server):
    """state: the `model` of full size with zeros, and the `masks` by tensor; empty before the initial pruning.

    Below the root, `packet` is what the root sent.
    """

    options: PruneFL
    reducer = WeightedMean()

    def init(self, task: Task, context: Context) -> State:
        return {**super().init(task, context), "masks": {}}

    def steady_state(self, task: Task, state: State) -> State:
        """A round with as many weights removed as there may be, in which the mask stays."""
        masks = state["masks"] or largest_weights(state[MODEL], prunable(task.model), self.options.ratio)
        return {**state, "masks": masks, PHASE: TRAINING}

    def adopt(self, task: Task, state: State, down: Packet, context: Context) -> State:
        return {"packet": down}

    def plan(self, task: Task, state: State, view: View, context: Context) -> Plan:
        packet = state.get("packet") or self._packet(state, context)
        if packet.tags[PHASE] != INITIAL:
            return self.ask(task, view, context, packet)
        return Plan(self._initial_ask(task, view, context, packet))

    def _initial_ask(self, task: Task, view: View, context: Context, packet: Packet) -> dict[str, Packet]:
        """The packet for one child: an edge server or, without any, the fastest device that can train the whole model.

        As long as nobody answers, every round is another attempt, with the next child in this order.
        """
        bare, fewest = replace(packet, scalars={}), task.model.smallest_batch()

        def rank(device: str) -> tuple[bool, float]:
            knowledge = view.knowledge
            able = knowledge.samples(device) >= fewest and knowledge.seconds(device, bare) < math.inf
            return able, knowledge.speed(device)

        nodes = [child for child in view.idle if child in view.nodes]
        order = [*nodes, *sorted(view.devices, key=rank, reverse=True)]
        if not order:
            return {}
        further, place = divmod(int(packet.scalars.get(ATTEMPT, context.round)), len(order))
        chosen = order[place]
        # An edge server gets how often all children here were tried before, and goes on among its own.
        return {chosen: replace(bare, scalars={ATTEMPT: further}) if chosen in view.nodes else bare}

    def _packet(self, state: State, context: Context) -> Packet:
        adapts = context.round % self.options.every == 0
        phase = state.get(PHASE) or (ADAPTING if adapts else TRAINING) if state["masks"] else INITIAL
        masks = {MASK + name: pack(mask) for name, mask in state["masks"].items()}
        return Packet({**take_left(state[MODEL], state["masks"]), **masks}, tags={PHASE: phase})

    def check(self, task: Task, up: Packet) -> str | None:
        for name, value in up.tensors.items():
            bare = name.removeprefix(GRADIENT)
            if bare not in task.model.shapes:
                return f"'{bare}' is not a tensor of the model"
            if name != bare and value.shape != task.model.shapes[bare]:
                return f"'{name}' has shape {tuple(value.shape)} and the model's is {tuple(task.model.shapes[bare])}"
        return None

    def step(self, task: Task, state: State, combined: Packet, context: Context) -> State:
        if has_no_samples(combined):
            return state
        old, sent = state[MODEL], combined.tensors
        mean = {name: value for name, value in sent.items() if not name.startswith(GRADIENT)}
        whole = put_back(mean, state["masks"])
        model = {name: whole[name].to(value.dtype) for name, value in old.items()}
        gradients = {name.removeprefix(GRADIENT): value for name, value in sent.items() if name.startswith(GRADIENT)}
        if not gradients:
            return {**state, MODEL: model}
        uses = {name: combined.scalars[USES + name] for name in gradients}
        masks = most_important_weights(model, gradients, uses, self.options.ratio, self.options.overhead)
        model.update({name: torch.where(mask, model[name], 0.0) for name, mask in masks.items()})
        return {**state, MODEL: model, "masks": masks}
