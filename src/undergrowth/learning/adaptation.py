"""Local adaptation: a device trains a model of its own from one that it received.

`how` says what the device minimises. Models are compared on the samples that the device does not train on.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import NamedTuple

from undergrowth.core import Carry, Model, Task, Weights
from undergrowth.core.client import Loop
from undergrowth.core.names import BUFFERS, FINISH, PARAMETERS, RECEIVED
from undergrowth.core.notation import Form, Number, parse
from undergrowth.learning.gradient_client import Trained, split_samples
from undergrowth.learning.objectives import Objective, Proximal, TaskLoss
from undergrowth.learning.reference import distillation_loss, elastic_loss, mean_losses

ALONE = "alone"
VALIDATION = "validation"  # in ``carry["finish"]``: losses on validation samples
HOW = {
    "fine-tune": Form(),
    "freeze": Form(),
    "ditto": Form((Number("LAMBDA", at_least=0, default=0.1),), "ditto:0.1"),
    "ewc": Form((Number("LAMBDA", at_least=0, default=5000),), "ewc:5000"),
    "kd": Form((Number("T", above=0, default=6), Number("ALPHA", at_least=0, at_most=1, default=0.95)), "kd:6:0.95"),
}


class Adaptation(NamedTuple):
    """How a device adapts a model."""

    name: str
    objective: Objective
    split: str | None  # the part of the model below it stays as it was received

    @property
    def compares(self) -> bool:
        """Whether every step compares with the received model."""
        return self.name in ("ditto", "ewc", "kd")


def build_adaptation(how: str, form: str) -> Adaptation:
    """The adaptation that `method.how` names; `form`: of the loss of kd."""
    name, numbers = parse("method.how", how, HOW)
    objective: Objective = TaskLoss()
    if name == "ditto":
        objective = objective + Proximal(numbers[0])
    elif name == "ewc":
        objective = elastic_loss(numbers[0])
    elif name == "kd":
        objective = distillation_loss(alpha=numbers[1], temperature=numbers[0], form=form)
    return Adaptation(name, objective, "head" if name == "freeze" else None)


def validate(
    task: Task, loops: Sequence[Loop], fraction: float, models: Callable[[Loop], Sequence[Weights]]
) -> list[Carry]:
    """Carries with the losses of each job's `models` on its validation samples, for `GradientClient.upload`.

    They are in ``trained.finish["validation"]``; none if the device has no validation samples.
    """
    held_out = [split_samples(loop.shard, fraction, loop.context)[1] for loop in loops]
    compared = [models(loop) if len(shard) else () for loop, shard in zip(loops, held_out, strict=True)]
    shards = [shard for shard, each in zip(held_out, compared, strict=True) for _ in each]
    losses = iter(mean_losses(task, [weights for each in compared for weights in each], shards))
    return [
        {**loop.carry, FINISH: {**loop.carry[FINISH], VALIDATION: [next(losses) for _ in each]}}
        for loop, each in zip(loops, compared, strict=True)
    ]


def validation_loss(trained: Trained, model: Weights, fraction: float) -> list[float]:
    """The loss of any model on the validation samples of a job that is finished; none if there are no such samples."""
    held_out = split_samples(trained.shard, fraction, trained.context)[1]
    weights = {name: model[name] for name in trained.task.model.shapes}
    return mean_losses(trained.task, [weights], [held_out]) if len(held_out) else []


def received_model(task: Task, loop: Loop) -> Weights:
    """The model that the steps of a `GradientClient` started from."""
    return {name: loop.carry[RECEIVED][name] for name in task.model.shapes}


def trained_model(task: Task, loop: Loop) -> Weights:
    """The model after the steps of a `GradientClient`."""
    values = {**loop.carry[RECEIVED], **loop.carry[PARAMETERS], **loop.carry[BUFFERS]}
    return {name: values[name] for name in task.model.shapes}


def initial_weights(model: Model, seed: int) -> Weights:
    """The initial weights, which all devices share: making them takes longer than an epoch of a small model."""
    # A price counts them as the device's own, whatever was priced before.
    return model.initial(seed) if model.torch_device == "meta" else _shared_weights(model, seed)


@lru_cache(maxsize=2)
def _shared_weights(model: Model, seed: int) -> Weights:
    return model.initial(seed)
