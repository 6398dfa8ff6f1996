"""GradientClient: local training by gradient descent, the device side of most methods."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from undergrowth.core import AllSelector, Context, InputError, Model, Packet, Selector, Shard, State, Task, Weights
from undergrowth.core.client import Batch, Carry, Loop, LoopClient, Steps
from undergrowth.core.names import (
    AUGMENT,
    BUFFERS,
    EPOCHS,
    FINISH,
    KEYS,
    LOSS,
    MODEL_NAME,
    PARAMETERS,
    RECEIVED,
    ROUND,
    RUNG,
    SAMPLES,
    STEPS_DONE,
    WEIGHT,
    X,
    Y,
)
from undergrowth.learning.descent import Descent
from undergrowth.learning.objectives import LossInputs, Objective, TaskLoss
from undergrowth.learning.optimisers import Optimiser, Sgd, build_optimiser, learning_rate


@dataclass(frozen=True)
class Trained:
    """The result of local training, from which `GradientClient.upload` makes the packet to send."""

    task: Task  # with the device's model
    down: Packet
    tensors: Mapping[str, Tensor]  # trained parameters, and the buffers that training changed
    scalars: Mapping[str, float]  # samples; also the loss, and the rung of the ladder, if the server needs them
    shard: Shard
    own: State  # before this job
    context: Context
    lr: float
    optimiser: Optimiser
    steps: int  # steps that were done; fewer than planned if a deadline cut them short
    received: Weights  # what `start` returned: the weights that training started from, and what it added to them
    finish: Mapping[str, Any]  # the values that `begin` put into ``carry["finish"]``

    @property
    def samples(self) -> int:
        """The number of samples trained on, which is the weight of the upload in `WeightedMean()`."""
        return int(self.scalars[SAMPLES])

    @property
    def packet(self) -> Packet:
        """Tensors and scalars as a packet."""
        return Packet(self.tensors, self.scalars)


# The settings of an experiment that each field of a `GradientClient` replaces.
_REPLACED_BY = {
    "selector": ("train.selector",),
    "optimiser": ("train.optimiser", "train.momentum", "train.weight_decay"),
    "lr": ("train.lr", "train.schedule"),
    "epochs": ("train.epochs",),
    "batch": ("train.batch",),
}


@dataclass(frozen=True)
class GradientClient(LoopClient):
    """Trains the received model, or the part above `split`, and sends what it trained with its number of samples.

    A setting that is None has the run's value. The scalar `epochs` of a packet replaces the run's epochs, and its tag
    `model` names the device's model in the run's ladder. A method overrides `start`, `batches` or `upload` to train
    from other weights, on other data, or to send something else.
    """

    objective: Objective = TaskLoss()
    split: str | None = None
    selector: Selector | None = None
    optimiser: Optimiser | None = None
    lr: float | None = None
    epochs: int | None = None
    batch: int | None = None
    view: Callable[[Model], Model] | None = None  # trains `view(model)`, such as a slice of the model
    held_out: float = 0.0  # fraction of the samples that are not trained on, see `split_samples`

    @property
    def ignored_settings(self) -> frozenset[str]:
        replaced = (paths for field, paths in _REPLACED_BY.items() if getattr(self, field) is not None)
        return frozenset(path for paths in replaced for path in paths)

    def start(self, task: Task, down: Packet, own: State) -> Weights:
        """The weights that training starts from.

        Further tensors under names that the model does not have are not trained; a term of the objective finds them
        in `inputs.received`, and `upload` in `trained.received`.
        """
        return down.tensors

    def batches(self, task: Task, down: Packet, steps: Steps, shard: Shard, own: State, context: Context) -> Steps:
        """The steps of training. A method may add entries to the batches, or samples to the shard's."""
        return steps

    def upload(self, trained: Trained) -> tuple[Packet, State]:
        """The packet to send, and the device's own state after this job."""
        return trained.packet, trained.own

    def begin(self, task: Task, down: Packet, shard: Shard, own: State, context: Context) -> tuple[Carry, Steps]:
        name = down.tags.get(MODEL_NAME, "")
        task = task.of_device(name, self.view)
        weights = self.start(task, down, own)
        batch = self.batch or task.train.batch
        setting = "train.batch" if self.batch is None else "the method's own batch size"
        task.model.check_batch(setting, batch, self.split)
        if self.held_out:
            shard, _ = split_samples(shard, self.held_out, context)
        selector, generator = self.selector or task.selector, context.generator("order")
        epochs = int(down.scalars.get(EPOCHS, task.train.epochs)) if self.epochs is None else self.epochs
        selected = shuffled_steps(task, weights, shard, selector, epochs, batch, generator)
        steps = without_small_batches(selected, task.model.smallest_batch(self.split), task.train.drop_last)
        steps = steps.augmented(task.augmentation, context).keyed(task.model, context)
        samples = len(selected.epochs[0]) if selected.epochs else len(shard)
        parameters = {name: weights[name] for name in task.model.trainable(self.split)}
        if not parameters:
            raise InputError(f"split '{self.split}': no parameter above it can be trained, because all are frozen")
        round = int(down.scalars.get(ROUND, context.round))
        carry: Carry = {
            PARAMETERS: parameters,
            BUFFERS: {name: weights[name] for name in task.model.buffers},
            "optimiser": self._optimiser(task).init(list(parameters.values())),
            RECEIVED: weights,
            "lr": learning_rate(task.train, round) if self.lr is None else self.lr,
            FINISH: {SAMPLES: float(samples) if len(steps) or not selected.epochs else 0.0},
        }
        if name:
            carry[MODEL_NAME] = name
        if task.sampler.needs_loss:
            # Steps are counted as they are done, because a deadline may cut training short.
            carry[LOSS], carry["steps"] = torch.zeros(2, device=shard.x.device)
        steps = self.objective.with_inputs(task, steps, weights)
        return carry, self.batches(task, down, steps, shard, own, context)

    def before_steps(self, task: Task, loops: Sequence[Loop]) -> list[Carry]:
        return self.objective.before_steps(self, task, loops)

    def step(self, task: Task, carry: Carry, batch: Batch) -> Carry:
        task = task.of_device(carry.get(MODEL_NAME, ""), self.view)
        batch = augmented(task, batch)
        optimiser, parameters = self._optimiser(task), dict(carry[PARAMETERS])
        plain = optimiser == Sgd() and not task.model.mixed
        descent = Descent(carry["lr"], carry.get("descending")) if plain else None
        gradients, buffers, loss = self.gradients(task, carry, batch, descent)
        remaining = [name for name in parameters if descent is None or name not in descent.done]
        updated, state = optimiser.update(
            [parameters[name] for name in remaining], gradients, carry["optimiser"], carry["lr"], "stepped" in carry
        )
        parameters.update(zip(remaining, updated, strict=True))
        carry = {**carry, PARAMETERS: parameters, BUFFERS: buffers, "optimiser": state, "stepped": True}
        if descent is not None:
            carry["descending"] = descent.found
        if LOSS in carry:
            carry[LOSS], carry["steps"] = carry[LOSS] + loss.detach(), carry["steps"] + 1
        return carry

    def gradients(
        self, task: Task, carry: Carry, batch: Batch, descent: Descent | None
    ) -> tuple[list[Tensor], dict[str, Tensor], Tensor]:
        """What `gradients_of` returns for a step."""
        weights = carry[PARAMETERS], carry[BUFFERS], carry[RECEIVED]
        return gradients_of(task, self.objective, *weights, batch, self.split, descent)

    def finish(
        self, task: Task, down: Packet, carry: Carry, shard: Shard, own: State, context: Context
    ) -> tuple[Packet, State]:
        name = down.tags.get(MODEL_NAME)
        scalars = {SAMPLES: carry[FINISH][SAMPLES]}
        if LOSS in carry:
            scalars[LOSS] = float(carry[LOSS] / carry["steps"].clamp_min(1))
        if name is not None:
            scalars[RUNG] = float(list(task.ladder).index(name)) if name else 0.0
        task = task.of_device(name or "", self.view)
        buffers = {name: carry[BUFFERS][name] for name in task.model.upper_buffers(self.split)}
        tensors = {**carry[PARAMETERS], **buffers}
        trained = Trained(
            task, down, tensors, scalars, shard, own, context, lr=carry["lr"], optimiser=self._optimiser(task),
            steps=carry.get(STEPS_DONE, 0), received=carry[RECEIVED], finish=carry[FINISH],
        )  # fmt: skip
        sent = self.upload(trained)
        if not isinstance(sent, tuple) or len(sent) != 2 or not isinstance(sent[0], Packet):
            raise InputError(
                f"method: {type(self).__name__}.upload must return the packet to send and the device's next own state, "
                f"such as `Packet(tensors, trained.scalars), trained.own`, not {type(sent).__name__}"
            )
        return sent

    def samples_after_steps(self, size: int) -> int:
        return count_held_out(size, self.held_out) if self.held_out else size

    def _optimiser(self, task: Task) -> Optimiser:
        return build_optimiser(task.train) if self.optimiser is None else self.optimiser


def count_held_out(size: int, fraction: float) -> int:
    """How many of `size` samples are held out: `fraction` of them, rounded, but never all."""
    return max(0, min(round(fraction * size), size - 1))


def split_samples(shard: Shard, fraction: float, context: Context) -> tuple[Shard, Shard]:
    """The samples to train on, and those to validate with: see `count_held_out`.

    The same device has the same parts in every round.
    """
    held_out = count_held_out(len(shard), fraction)
    if not held_out:
        return shard, Shard(shard.x[:0], shard.y[:0])
    order = torch.randperm(len(shard), generator=context._replace(round=0, turn=0).generator("validation"))
    # Sorted before they are moved: to sort meta tensors, torch would load sympy.
    order = torch.cat([order[:held_out].sort().values, order[held_out:].sort().values]).to(shard.y.device)
    return shard.take(order[held_out:]), shard.take(order[:held_out])


def shuffled_steps(
    task: Task, weights: Weights, shard: Shard, selector: Selector, epochs: int, batch: int, generator: torch.Generator
) -> Steps:
    """Batches of the selected samples, in a new random order in every epoch."""
    orders = []
    selected = None
    for _ in range(epochs):
        if isinstance(selector, AllSelector):
            order = torch.randperm(len(shard), generator=generator)
        else:
            if selected is None or selector.again:
                selected = selector.pick(task, weights, shard, generator)
            order = selected[torch.randperm(len(selected), generator=generator)]
        orders.append(order)
    return Steps({X: shard.x, Y: shard.y}, tuple(orders), batch)


def without_small_batches(steps: Steps, smallest: int, drop_last: bool) -> Steps:
    """The steps without the last batch of an epoch if it has fewer than `smallest` samples.

    drop_last: also without a last batch that is smaller than the others, unless it is the only one. The next epoch has
    another order, so it leaves out other samples.
    """

    def kept(samples: int) -> int:
        rest = samples % steps.batch
        return samples - rest if rest < smallest or (drop_last and samples > rest) else samples

    lengths = [len(order) for order in steps.epochs]
    shorter = [kept(length) for length in lengths]
    return steps if shorter == lengths else steps.cut(shorter)


def augmented(task: Task, batch: Batch) -> Batch:
    """The batch with the random changes that were drawn for its inputs, if there are any."""
    if task.augmentation is None or AUGMENT not in batch:
        return batch
    return {**batch, X: task.augmentation.apply(batch[X], batch[AUGMENT])}


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

    split: the part below this level is frozen: it runs in evaluation mode and gets no gradients.
    descent: parameters that take their step during the backward pass are left out of the gradients.
    """
    trained = {name: value.detach().requires_grad_() for name, value in parameters.items()}
    weights = {**received, **buffers, **trained}
    # Only batches of several clients have sample weights; the loss then has one value per client.
    clients = len(next(iter(trained.values()))) if WEIGHT in batch else None
    with nullcontext() if descent is None else descent.over(trained):
        output = task.model.run(weights, batch[X], training=split or True, maps=objective.maps, keys=batch.get(KEYS))
        loss = objective(LossInputs(task, batch, output, trained, received, clients))
    remaining = [value for name, value in trained.items() if descent is None or name not in descent.done]
    gradients = torch.autograd.grad(loss.sum(), remaining, allow_unused=True, materialize_grads=True)
    return list(gradients), dict(output.buffers), loss
