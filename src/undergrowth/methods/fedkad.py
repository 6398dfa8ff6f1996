"""FedKAD (Shi, Sheffield thesis, §5.5): device models of any size, taught by their consensus and by prototypes.

Down: w_k, the device's own model. A device: E epochs of SGD; then the prototype F_k,c of every class c that it has,
the mean of its maps at `level`. Up: w_k, n_k, the prototypes and the number of samples of each class.
Server: z = (1/K)·Σ z_k, the mean logits of the devices' models on `samples` public samples, drawn anew every round;
F_c, the mean of F_k,c over the devices that have the class (others are left out, not counted as zeros). Devices that
trained on no sample, because BatchNorm cannot on a single one, are in neither mean. The global model and every w_k
learn KD(z) + beta·CE of the part above `level` on the pairs (F_c, c).
KD is, as `loss` says, the mean of |z − t|, of (z − t)², or −Σ softmax(t)·log softmax(z).

The public data is `public: 0.1`; its labels are not used. Device models are those of `model.ladder`; all must have maps
of one shape at `level`, the last one before the pooling and the classifier.

pretrain_epochs: in the first round every device trains that long on its own data, without a deadline. The source trains
until a model stops improving; a fixed number of epochs can be priced in advance. A device that is first reached in a
later round does not pretrain.

prototype_reduction: the source prints sums over samples, logits and classes. Here KD is a mean over samples and logits
and CE the mean over the classes; "sum" adds the classes up, which gives the prototypes C times the weight for C
classes (docs/decisions/0025). Departure: prototypes pass BatchNorm in evaluation mode.

    >>> import undergrowth as ug
    >>> result = ug.run(method="fedkad", options={"pretrain_epochs": 5}, public=0.1, clients=4, rounds=2)
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor

from undergrowth.core import Context, Method, ModelWeights, Packet, Shard, State, Task, Weights, option
from undergrowth.core.names import SAMPLES, TEACHER, X, Y
from undergrowth.learning import Distillation, GradientClient, LossInputs, Objective, Trained
from undergrowth.learning.distillation import (
    LOSSES,
    check_batch,
    check_same_shapes,
    consensus,
    draw_public,
    draw_seed,
    public_data,
    server_client,
    train_all_on_server,
)
from undergrowth.learning.features import features_of, logits_of
from undergrowth.learning.own_models import OwnModelsServer, all_models, by_model, sender_task, uploaded_weights

PROTOTYPES, CLASSES = "prototypes", "classes of prototypes"  # what `PrototypeCrossEntropy` finds in `inputs.received`


def prototypes_of(task: Task, weights: Weights, shard: Shard, level: str) -> tuple[Tensor, Tensor]:
    """For each class the mean of the maps at `level` (classes × map), and the number of samples.

    A class without samples has zeros, and a count of 0.
    """
    # Whole numbers, which no codec rounds to zero.
    counts = torch.zeros(task.classes, dtype=torch.int32, device=shard.x.device)
    sums: Tensor | None = None
    # In batches of the training size, so that a device that can train has enough memory for this too.
    batches = zip(shard.x.split(task.train.batch), shard.y.split(task.train.batch), strict=True)
    for x, y in batches:
        maps = features_of(task, weights, x, level)
        sums = maps.new_zeros(task.classes, *maps.shape[1:]) if sums is None else sums
        sums = sums.index_add(0, y, maps)
        counts = counts.index_add(0, y, torch.ones_like(y, dtype=counts.dtype))
    if sums is None:
        raise ValueError("there are no samples to make prototypes of")
    return sums / counts.clamp_min(1).reshape(-1, *[1] * (sums.dim() - 1)), counts


def mean_prototypes(sent: Iterable[tuple[Tensor, Tensor]]) -> tuple[Tensor, Tensor]:
    """The mean prototype of every class that some device has, and these classes.

    sent: prototypes and counts. Devices that hold the class have equal weight; the others are ignored.
    """
    pairs = list(sent)
    has = torch.stack([counts for _, counts in pairs]) > 0
    maps = torch.stack([each for each, _ in pairs])
    present = has.any(0)
    weights = has.to(maps.dtype) / has.sum(0).clamp_min(1)
    mean = torch.einsum("dc,dc...->c...", weights, maps)
    return mean[present], present.nonzero().flatten()


@dataclass(frozen=True)
class PrototypeCrossEntropy(Objective):
    """Cross-entropy of the part above `level` on the prototypes: the mean over them, or their sum (`reduction`).

    That part runs in evaluation mode, so that a few means do not become the statistics of its BatchNorm layers. The
    prototypes and their classes are in `inputs.received`.
    """

    level: str
    reduction: str = "mean"

    def __call__(self, inputs: LossInputs) -> Tensor:
        weights = {**inputs.received, **inputs.output.buffers, **inputs.trained}
        maps, classes = inputs.received[PROTOTYPES], inputs.received[CLASSES]
        if inputs.clients is not None:
            maps, classes = maps.flatten(0, 1), classes.flatten()
        logits = inputs.task.model.run(weights, maps, start=self.level).logits
        losses = F.cross_entropy(logits, classes, reduction="none").reshape(inputs.clients or 1, -1)
        combined = losses.sum(1) if self.reduction == "sum" else losses.mean(1)
        return combined[0] if inputs.clients is None else combined


@dataclass(frozen=True, kw_only=True)
class FedKADClient(GradientClient):
    """Sends the prototypes of its classes beside the model."""

    options: FedKAD

    def upload(self, trained: Trained) -> tuple[Packet, State]:
        maps, counts = prototypes_of(trained.task, trained.tensors, trained.shard, self.options.level)
        tensors = {**trained.tensors, "prototypes/maps": maps, "prototypes/counts": counts}
        return Packet(tensors, trained.scalars), trained.own


@dataclass(frozen=True)
class FedKADServer(OwnModelsServer):
    """Teaches all models the consensus of the devices' models and the prototypes."""

    options: FedKAD

    @property
    def pretrain_epochs(self) -> int:
        return self.options.pretrain_epochs

    def init(self, task: Task, context: Context) -> State:
        check_same_shapes(task, public_data(task, "fedkad").x, (self.options.level,))
        check_batch(task, "method.server_batch", self.options.server_batch)
        return super().init(task, context)

    def teach(
        self, task: Task, model: Weights, uploads: Mapping[str, Packet], context: Context
    ) -> tuple[Weights, Mapping[str, Weights]]:
        options, public = self.options, public_data(task, "fedkad")
        drawn = public.take(draw_public(public, options.samples, draw_seed(context)))
        trained = [up for up in uploads.values() if up.scalars[SAMPLES]]
        if not trained:
            return model, {}
        logits = consensus(logits_of(sender_task(task, up), uploaded_weights(up), drawn.x) for up in trained)
        sent = [up.part("prototypes").tensors for up in trained]
        maps, classes = mean_prototypes((each["maps"], each["counts"]) for each in sent)

        data = {X: drawn.x, Y: drawn.y, TEACHER: logits}
        shared = {PROTOTYPES: maps, CLASSES: classes}
        refinement = PrototypeCrossEntropy(options.level, options.prototype_reduction)

        def train(task: Task, models: Sequence[Weights], beta: float) -> list[dict[str, Tensor]]:
            objective = Distillation(options.loss) + beta * refinement
            student = server_client(objective, options.server_lr, options.server_epochs, options.server_batch)
            return train_all_on_server(task, student, models, [data] * len(models), context, shared)

        (after,) = train(task, [model], options.beta)
        device_beta = options.beta if options.device_beta is None else options.device_beta
        taught: dict[str, Weights] = {}
        for own, models in by_model(task, uploads):
            taught.update(zip(models, train(own, list(models.values()), device_beta), strict=True))
        return after, taught


@dataclass(frozen=True)
class FedKAD(Method):
    needs_public: ClassVar[bool] = True

    beta: float = option(1.0, "weight of the cross-entropy on prototypes", at_least=0)
    loss: str = option("l1", "distance of logits from the consensus", choices=LOSSES)
    level: str = option("up", "level whose maps are averaged")
    samples: int = option(5000, "public samples that are drawn for a round", at_least=1)
    server_lr: float = option(0.1, "learning rate at the server", above=0)
    server_epochs: int = option(5, "epochs at the server", at_least=1)
    server_batch: int = option(64, "samples in a batch of the server's training", at_least=1)
    pretrain_epochs: int = option(20, "epochs of every device in the first round; 0: the run's", at_least=0)
    device_beta: float | None = option(None, "beta for the devices' models; None: the same", at_least=0)
    prototype_reduction: str = option("mean", "how the classes' cross-entropies are combined", choices=("mean", "sum"))

    @property
    def needs_classes(self) -> str:
        return "its prototypes are the mean maps of every class"

    @property
    def client(self) -> FedKADClient:
        return FedKADClient(options=self)

    @property
    def server(self) -> FedKADServer:
        return FedKADServer(self)

    def models(self, task: Task, state: State, own: Mapping[str, State]) -> Mapping[str, Weights | ModelWeights]:
        return all_models(task, state)
