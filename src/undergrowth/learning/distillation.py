"""Distillation: training at the server, and models that learn the logits of others on public data."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

import torch
import torch.nn.functional as F
from torch import Tensor

from undergrowth.core import (
    AllSelector,
    Context,
    InputError,
    Model,
    MultiLabel,
    Packet,
    Regression,
    Shard,
    Task,
    TaskKind,
    Weights,
    are_hidden,
)
from undergrowth.core.client import Loop, run_loops
from undergrowth.core.names import FINISH, STEPS_DONE, TEACHER, X, Y
from undergrowth.learning.gradient_client import GradientClient
from undergrowth.learning.objectives import LossInputs, Objective
from undergrowth.learning.optimisers import Optimiser, Sgd

LOSSES = ("l1", "ce", "l2")


@dataclass(frozen=True)
class Distillation(Objective):
    """The distance of the logits from the teacher's, mean over the batch; see `logit_distances`."""

    loss: str = "l1"

    def __call__(self, inputs: LossInputs) -> Tensor:
        distances = logit_distances(self.loss, inputs.output.logits, inputs.batch[TEACHER], inputs.task.kind)
        return inputs.mean(distances)


def logit_distances(loss: str, logits: Tensor, teacher: Tensor, kind: TaskKind) -> Tensor:
    """The distance of each sample's logits z from the teacher's t.

    l1: mean over the classes of |z − t|; l2: of (z − t)²; ce: −Σ softmax(t)·log softmax(z), at every position if there
    are several; of multi-label, the mean over labels of the binary cross-entropy of σ(z) from σ(t). The outputs of a
    regression are no logits: their distance is l2.
    """
    if isinstance(kind, Regression):
        loss = "l2"
    if loss == "ce" and isinstance(kind, MultiLabel):
        return F.binary_cross_entropy_with_logits(logits, teacher.sigmoid(), reduction="none").mean(1)
    if loss == "ce":
        entropies = -(teacher.softmax(-1) * F.log_softmax(logits, -1)).sum(-1)
        return entropies.flatten(1).mean(1) if entropies.dim() > 1 else entropies
    difference = logits - teacher
    return (difference.abs() if loss == "l1" else difference.square()).flatten(1).mean(1)


def consensus(logits: Iterable[Tensor]) -> Tensor:
    """The mean of the logits of several models on the same samples, with equal weights."""
    return torch.stack(list(logits)).mean(0)


def public_data(task: Task, method: str, labelled: bool = False) -> Shard:
    """The data that the server holds; an InputError if there is none, or if it has no labels and `labelled`."""
    if task.public is None:
        raise InputError(f"public: {method} needs data that the server holds; add public: 0.1, or -s public=0.1")
    if labelled and are_hidden(task.public.y):
        raise InputError(f"public.labelled false: {method} learns from the labels of the server's data; write true")
    return task.public


def draw_public(public: Shard, samples: int, seed: float) -> Tensor:
    """Positions of `samples` public samples, or of all if there are fewer; the same for the same seed."""
    return torch.randperm(len(public), generator=torch.Generator().manual_seed(int(seed)))[:samples]


def draw_seed(context: Context) -> float:
    """A new seed for `draw_public` that fits into a packet."""
    return context.float_key("public")


def server_client(
    objective: Objective, lr: float, epochs: int, batch: int, split: str | None = None,
    optimiser: Optimiser = Sgd(),  # noqa: B008
) -> GradientClient:  # fmt: skip
    """The client as which a server trains."""
    return GradientClient(objective, split, AllSelector(), optimiser, lr, epochs, batch)


def train_on_server(
    task: Task,
    weights: Weights,
    data: Mapping[str, Tensor],
    objective: Objective,
    context: Context,
    lr: float,
    epochs: int,
    batch: int,
    split: str | None = None,
    optimiser: Optimiser = Sgd(),  # noqa: B008
) -> dict[str, Tensor]:
    """The weights after training on `data`: inputs x, labels y, and other entries that the objective uses.

    The inputs are not augmented, because these entries, such as a teacher's logits, belong to the inputs as they are.
    """
    student = server_client(objective, lr, epochs, batch, split, optimiser)
    (trained,) = train_all_on_server(task, student, [weights], [data], context)
    return trained


def train_all_on_server(
    task: Task,
    student: GradientClient,
    models: Sequence[Weights],
    data: Sequence[Mapping[str, Tensor]],
    context: Context,
    shared: Mapping[str, Tensor] | None = None,
) -> list[dict[str, Tensor]]:
    """The same for several models of one architecture, each with its own data. The engine may compute them at once.

    `student`: a `server_client`. All models draw the same random numbers, so those with equally many samples see them
    in the same order. `shared`: tensors that the objective finds in `inputs.received`, beside the weights. A GPU can
    record the steps of all rounds only if the objective itself holds no tensors.
    """
    task = replace(task, augmentation=None)
    loops = []
    for weights, entries in zip(models, data, strict=True):
        down, shard = Packet({**weights, **(shared or {})}), Shard(entries[X], entries[Y])
        carry, steps = student.begin(task, down, shard, {}, context)
        loops.append(Loop(student, down, shard, carry, replace(steps, data=entries), context))
    carries = run_loops(task, loops)
    results = []
    for weights, loop, carry in zip(models, loops, carries, strict=True):
        ended = {**carry, FINISH: loop.carry[FINISH], STEPS_DONE: len(loop.steps)}
        trained, _ = student.finish(task, loop.down, ended, loop.shard, {}, context)
        results.append({**weights, **trained.tensors})
    return results


def shared_levels(task: Task) -> tuple[str, ...]:
    """The levels that all models of the run have, without `head`."""
    models = (task.model, *task.ladder.values())
    return tuple(level for level in task.model.levels if level != "head" and all(level in m.levels for m in models))


def check_same_shapes(task: Task, x: Tensor, levels: Sequence[str], outlines: Sequence[str] = ()) -> None:
    """Raise an InputError if a model of the ladder has outputs, or maps at `levels`, of another shape than the run's.

    outlines: levels at which only height and width must be the same.
    """
    expected = _shapes(task.model, x, levels, outlines)
    for name, model in task.ladder.items():
        try:
            shapes = _shapes(model, x, levels, outlines)
        except InputError as error:
            raise InputError(f"model.ladder '{name}': {error}") from None
        for what, shape in shapes.items():
            if shape != expected[what]:
                raise InputError(
                    f"model.ladder '{name}': its {what} are {shape} and those of the run's model {expected[what]}; "
                    "they must be the same, as for Wide ResNets of one width"
                )


def check_batch(task: Task, setting: str, batch: int) -> None:
    """Raise an InputError if a model of the run cannot be trained on batches of that size, which `setting` names."""
    for model in (task.model, *task.ladder.values()):
        model.check_batch(setting, batch)


def _shapes(model: Model, x: Tensor, levels: Sequence[str], outlines: Sequence[str]) -> dict[str, str]:
    with torch.no_grad():
        output = model.run(model.initial(0), x[:1], maps=(*levels, *outlines))
    shapes = {"outputs": tuple(output.logits.shape[1:])}
    for level, features in output.maps.items():
        shape = tuple(features.shape[1:])
        # The first of several sizes is the number of channels; flat features have no channels.
        shapes[f"maps at level '{level}'"] = shape[1:] if len(shape) > 1 and level not in levels else shape
    return {what: "×".join(str(size) for size in shape) for what, shape in shapes.items()}
