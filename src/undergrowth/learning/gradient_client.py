"""GradientClient: local training by gradient descent, the device side of most methods."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import nullcontext
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from undergrowth.core import (
    All,
    Batch,
    Carry,
    Context,
    LoopClient,
    Packet,
    Selector,
    Shard,
    State,
    Steps,
    Task,
    Weights,
)
from undergrowth.learning.descent import Descent
from undergrowth.learning.objectives import CrossEntropy, Look, Objective
from undergrowth.learning.optimisers import Optimiser, Sgd, learning_rate, optimiser_of


@dataclass(frozen=True)
class GradientClient(LoopClient):
    """Trains the received model, or the part above `split`, for some epochs and sends back what it trained.

    Settings that are None are the run's; a packet with the number `epochs` says how many of these. A method that
    starts from something else than what came down, or sends or keeps something else than what was trained, overrides
    `start` or `send`.
    """

    objective: Objective = CrossEntropy()
    split: str | None = None
    selector: Selector | None = None
    optimiser: Optimiser | None = None
    lr: float | None = None
    epochs: int | None = None
    batch: int | None = None

    def start(self, task: Task, down: Packet, own: State) -> Weights:
        """The weights that training starts from."""
        return down.tensors

    def send(self, task: Task, down: Packet, trained: Packet, own: State) -> tuple[Packet, State]:
        """The upload and the device's own state, from what was trained and the number of samples."""
        return trained, own

    def begin(self, task: Task, down: Packet, shard: Shard, own: State, context: Context) -> tuple[Carry, Steps]:
        weights = self.start(task, down, own)
        chosen = ordered(
            task,
            weights,
            shard,
            self.selector or task.selector,
            int(down.scalars.get("epochs", task.train.epochs)) if self.epochs is None else self.epochs,
            self.batch or task.train.batch,
            context.generator("order"),
        )
        steps = able(chosen, task.model.smallest_batch(self.split))
        samples = len(chosen.epochs[0]) if chosen.epochs else len(shard)
        parameters = {name: weights[name] for name in task.model.trainable(self.split)}
        carry = {
            "parameters": parameters,
            "buffers": {name: weights[name] for name in task.model.buffers},
            "optimiser": self._optimiser(task).init(list(parameters.values())),
            "received": weights,
            "lr": learning_rate(task.train, context.round) if self.lr is None else self.lr,
            "finish": {"samples": float(samples) if len(steps) or not chosen.epochs else 0.0},
        }
        if task.selection.needs_loss:
            # Steps are counted as they are done: a deadline may leave room for only some of them.
            carry["loss"], carry["steps"] = torch.zeros(2, device=shard.x.device)
        return carry, steps

    def step(self, task: Task, carry: Carry, batch: Batch) -> Carry:
        optimiser, parameters = self._optimiser(task), dict(carry["parameters"])
        plain = optimiser == Sgd() and not task.model.mixed
        descent = Descent(carry["lr"], carry.get("descending")) if plain else None
        gradients, buffers, loss = gradients_of(
            task, self.objective, parameters, carry["buffers"], carry["received"], batch, self.split, descent
        )
        left = [name for name in parameters if descent is None or name not in descent.done]
        updated, state = optimiser.update(
            [parameters[name] for name in left], gradients, carry["optimiser"], carry["lr"], "stepped" in carry
        )
        parameters.update(zip(left, updated))
        carry = {**carry, "parameters": parameters, "buffers": buffers, "optimiser": state, "stepped": True}
        if descent is not None:
            carry["descending"] = descent.found
        if "loss" in carry:
            carry["loss"], carry["steps"] = carry["loss"] + loss.detach(), carry["steps"] + 1
        return carry

    def finish(
        self, task: Task, down: Packet, carry: Carry, shard: Shard, own: State, context: Context
    ) -> tuple[Packet, State]:
        buffers = {name: carry["buffers"][name] for name in task.model.upper_buffers(self.split)}
        scalars = {"samples": carry["finish"]["samples"]}
        if "loss" in carry:
            scalars["loss"] = float(carry["loss"] / carry["steps"].clamp_min(1))
        trained = Packet({**carry["parameters"], **buffers}, scalars)
        return self.send(task, down, trained, own)

    def _optimiser(self, task: Task) -> Optimiser:
        return optimiser_of(task.train) if self.optimiser is None else self.optimiser


def ordered(
    task: Task,
    weights: Weights,
    shard: Shard,
    selector: Selector,
    epochs: int,
    batch: int,
    generator: torch.Generator,
) -> Steps:
    """The chosen samples, in a fresh random order for every epoch."""
    orders = []
    picked = None
    for _ in range(epochs):
        if isinstance(selector, All):
            order = torch.randperm(len(shard), generator=generator)
        else:
            if picked is None or selector.again:
                picked = selector.pick(task, weights, shard, generator)
            order = picked[torch.randperm(len(picked), generator=generator)]
        orders.append(order)
    return Steps({"x": shard.x, "y": shard.y}, tuple(orders), batch)


def able(steps: Steps, smallest: int) -> Steps:
    """Without a last batch of an epoch that is too small for the model; the next epoch leaves out another sample."""
    rests = [len(order) % steps.batch for order in steps.epochs]
    if not any(0 < rest < smallest for rest in rests):
        return steps
    cut = (order[: len(order) - rest] if rest < smallest else order for order, rest in zip(steps.epochs, rests))
    return replace(steps, epochs=tuple(cut))


def gradients_of(
    task: Task,
    objective: Objective,
    parameters: Mapping[str, Tensor],
    buffers: Mapping[str, Tensor],
    received: Weights,
    batch: Batch,
    split: str | None = None,
    descent: Descent | None = None,
) -> tuple[list[Tensor], dict[str, Tensor], Tensor]:
    """Gradients of the objective with respect to `parameters`, the buffers after the forward pass, and the loss.

    With `split`, the part below it is frozen: it runs in evaluation mode and no gradient is computed through it.
    With `descent`, those parameters are left out that are taken a step further at once.
    """
    trained = {name: value.detach().requires_grad_() for name, value in parameters.items()}
    weights = {**received, **buffers, **trained}
    # An engine that computes many clients at once tells by this entry; the terms are then one number for each.
    clients = len(next(iter(trained.values()))) if "share" in batch else None
    with nullcontext() if descent is None else descent.over(trained):
        output = task.model.run(weights, batch["x"], training=split or True, maps=objective.maps)
        loss = objective(Look(task, batch, output, trained, received, clients))
    left = [value for name, value in trained.items() if descent is None or name not in descent.done]
    gradients = torch.autograd.grad(loss.sum(), left, allow_unused=True, materialize_grads=True)
    return list(gradients), dict(output.buffers), loss
