"""The device's part of FedMeZO: catches up, then measures slopes with forward passes."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch

from undergrowth.core import Batch, Carry, Context, LoopClient, Packet, RunError, Shard, State, Steps, Task, Weights
from undergrowth.core.names import BUFFERS, FINISH, LOSS, MODEL, PARAMETERS, SAMPLES, WEIGHT, X, Y
from undergrowth.learning.zeroth_order import (
    IGNORED_SETTINGS,
    ZerothOrderOptions,
    direction,
    loss_sum,
    private_copy,
    shift,
)
from undergrowth.methods.fedmezo.replica import ROUND, SLOPES, RoundOf, replay, shared_initial

MEASURED = "measured"  # own state: whether the model was perturbed and returned in its round


@dataclass(frozen=True)
class FedMeZOClient(LoopClient):
    """own: `model` and its `round`.

    A real device changes its model in place (`in_place`). In a simulation, devices share tensors, so the client
    perturbs a copy and keeps the model as it was. The next replay includes the perturbations.
    """

    options: ZerothOrderOptions
    in_place: bool = False

    @property
    def ignored_settings(self) -> frozenset[str]:
        return IGNORED_SETTINGS | {"train.epochs"}

    def on_device(self) -> FedMeZOClient:
        return replace(self, in_place=True)

    def begin(self, task: Task, down: Packet, shard: Shard, own: State, context: Context) -> tuple[Carry, Steps]:
        weights = self._catch_up(task, down, own)
        order = torch.arange(len(shard))
        # A power of two where fewer samples are enough: engines compute devices together whose batch size is the same.
        batch = min(task.train.batch, 1 << max(0, len(shard) - 1).bit_length())
        passes = 2 * self.options.directions
        carry = {
            PARAMETERS: {name: weights[name] for name in task.model.parameters},
            BUFFERS: {name: weights[name] for name in task.model.buffers},
            "key": RoundOf.read(down).key(shard.x.device),
            "losses": torch.zeros(passes, dtype=torch.float64, device=shard.x.device),
            "batches": -(-len(shard) // batch),  # of a pass
            "done": 0,
            FINISH: {MODEL: weights},
        }
        return carry, Steps({X: shard.x, Y: shard.y}, (order,) * passes, batch)

    def _catch_up(self, task: Task, down: Packet, own: State) -> Weights:
        """The model of this round: the received one, or the device's own one, or the initial one after a replay."""
        (seed, number), bits = RoundOf.read(down), down.tensors[SLOPES]
        first = number - len(bits)
        weights: Weights = down.part(MODEL).tensors
        start, measured = first, False
        if not weights and own:
            weights, start, measured = own[MODEL], own[ROUND], own.get(MEASURED, False)
        elif not weights:
            private = self.in_place or bits.is_meta
            weights, start = task.model.initial(seed) if private else shared_initial(task, seed), 0
        if bits.is_meta:
            start = first
        elif not first <= start <= number:
            raise RunError(f"its model is that of round {start + 1}, and it received the slopes from {first + 1} on")
        if self.in_place:
            weights = {name: value.contiguous() for name, value in weights.items()}
        missed = bits[start - first :]
        return replay(task, self.options, weights, RoundOf(seed, start), missed, self.in_place, measured)

    def step(self, task: Task, carry: Carry, batch: Batch) -> Carry:
        """A batch of one of the passes: forward and backward along the first direction, then along the next."""
        parameters, key, done = carry[PARAMETERS], carry["key"], carry["done"]
        if not done and not self.in_place:
            parameters = private_copy(parameters, key)
        number, place = divmod(done, carry["batches"])
        if place == 0:
            self._perturb(parameters, key, number)
        losses = carry["losses"].clone()
        clients = len(losses) if WEIGHT in batch else None
        losses[..., number] += loss_sum(task, {**parameters, **carry[BUFFERS]}, batch, clients)
        return {**carry, PARAMETERS: parameters, "losses": losses, "done": done + 1}

    def _perturb(self, parameters: Weights, key: torch.Tensor, number: int) -> None:
        """Moves the model to where pass `number` measures; after the last pass, back to the start."""
        forward, backward, back = self.options.walk
        position, is_backward = divmod(number, 2)
        if is_backward:
            shift(parameters, direction(key, position), [backward])
            return
        if position:
            shift(parameters, direction(key, position - 1), [back])
        if position < self.options.directions:
            shift(parameters, direction(key, position), [forward])

    def finish(
        self, task: Task, down: Packet, carry: Carry, shard: Shard, own: State, context: Context
    ) -> tuple[Packet, State]:
        losses = carry["losses"] / max(1, len(shard))
        slopes = self.options.slopes(losses[0::2], losses[1::2])
        in_double = any(value.dtype == torch.float64 for value in carry[PARAMETERS].values())
        number, weights = RoundOf.read(down).number, carry[FINISH][MODEL]
        scalars = {SAMPLES: float(len(shard)), ROUND: float(number)}
        if task.sampler.needs_loss:
            scalars[LOSS] = float(losses.mean())
        kept = {MODEL: dict(weights), ROUND: number}
        if self.in_place:
            self._perturb(carry[PARAMETERS], carry["key"], len(losses))
            kept[MEASURED] = True
        return Packet({SLOPES: slopes if in_double else slopes.float()}, scalars), kept
