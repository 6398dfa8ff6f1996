"""The server's part of FedMeZO: keeps the mean slopes of all rounds and sends each device those that it missed."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch

from undergrowth.core import Context, Packet, Plan, Server, State, Task, View, WeightedMean
from undergrowth.core.names import MODEL, SEED
from undergrowth.learning.servers import has_no_samples
from undergrowth.learning.zeroth_order import ZerothOrderOptions
from undergrowth.methods.fedmezo.replica import ROUND, SLOPES, RoundOf, as_bits, replay

FIRST = "first"  # state: the round of the first row of `slopes`
STEADY = "steady"  # state: price a round of devices that took part in the round before


@dataclass(frozen=True)
class FedMeZOServer(Server):
    """state: `seed`, the `model` and its `round`, and the bits of the mean `slopes` of all rounds before it.

    An edge server has the rounds since it was first asked. With initial="seed", it has no model.
    """

    options: ZerothOrderOptions
    sends_model: bool
    reducer = WeightedMean()

    def init(self, task: Task, context: Context) -> State:
        seed = context.key("model")
        weights = task.model.initial(seed)
        in_double = any(weights[name].dtype == torch.float64 for name in task.model.parameters)
        kind = torch.int64 if in_double else torch.int32
        none = torch.empty(0, self.options.directions, dtype=kind, device=task.model.torch_device)
        return {MODEL: weights, SEED: seed, ROUND: 0, FIRST: 0, SLOPES: none}

    def steady_state(self, task: Task, state: State) -> State:
        none = state[SLOPES]
        return {**state, ROUND: 1, FIRST: 0, SLOPES: none.new_zeros(1, *none.shape[1:]), STEADY: True}

    def adopt(self, task: Task, state: State, down: Packet, context: Context) -> State:
        (seed, number), bits = RoundOf.read(down), down.tensors[SLOPES]
        weights = down.part(MODEL).tensors
        if weights or ROUND not in state:
            model = {MODEL: dict(weights)} if weights else {}
            return {**model, SEED: seed, ROUND: number, FIRST: number - len(bits), SLOPES: bits}
        new = bits[len(bits) - (number - state[ROUND]) :]
        state = {**state, ROUND: number, SLOPES: torch.cat([state[SLOPES], new])}
        if MODEL in state:
            state[MODEL] = replay(task, self.options, state[MODEL], RoundOf(seed, number - len(new)), new)
        return state

    def plan(self, task: Task, state: State, view: View, context: Context) -> Plan:
        packets: dict[int, Packet] = {}  # by the round of the child's model
        plan = self.ask(task, view, context, self._packet(state, state[ROUND]))
        chosen = {}
        for child in plan.packets:
            known = self._known_round(state, view, child)
            if known not in packets:
                packets[known] = self._packet(state, known)
            chosen[child] = packets[known]
        return replace(plan, packets=chosen)

    def _known_round(self, state: State, view: View, child: str) -> int:
        """The round of the model that a child has; -1: none, or one that is older than the slopes kept here."""
        if STEADY in state:
            return int(state[ROUND]) - 1
        # That of a node below is a mean over its devices, which rounding may have made a little too small.
        heard = view.heard.get(child, {ROUND: -1})
        number = round(heard.get(ROUND, state[ROUND] - 1))  # without it, what is asked is the price of a later round
        return number if number >= state[FIRST] else -1

    def _packet(self, state: State, known: int) -> Packet:
        """The packet for a child with the model of round `known`; -1: it has none."""
        tensors = {ROUND: RoundOf(state[SEED], state[ROUND]).write(state[SLOPES])}
        if known < 0 and self.sends_model:
            model = Packet.join({MODEL: Packet(state[MODEL])})
            return Packet({**tensors, SLOPES: state[SLOPES][:0], **model.tensors})
        return Packet({**tensors, SLOPES: state[SLOPES][max(0, known) - state[FIRST] :]})

    def check(self, task: Task, up: Packet) -> str | None:
        slopes = up.tensors.get(SLOPES)
        if slopes is None or slopes.shape != (self.options.directions,):
            found = "no slopes" if slopes is None else f"slopes of shape {tuple(slopes.shape)}"
            return f"it holds {found}, and a slope for each of {self.options.directions} directions is needed"
        return None

    def step(self, task: Task, state: State, combined: Packet, context: Context) -> State:
        if has_no_samples(combined):
            return state
        bits = as_bits(combined.tensors[SLOPES].unsqueeze(0))
        weights = replay(task, self.options, state[MODEL], RoundOf(state[SEED], state[ROUND]), bits)
        return {**state, MODEL: weights, ROUND: state[ROUND] + 1, SLOPES: torch.cat([state[SLOPES], bits])}
