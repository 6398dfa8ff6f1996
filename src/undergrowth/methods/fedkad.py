"""FedKAD (Shi, Sheffield thesis, §5.5): device models of any size, taught by their consensus and by prototypes.

Down: w_k, the device's own model. A device: E epochs of SGD; then the prototype F_k,c of every class c that it has,
the mean of its maps at `level`. Up: w_k, n_k, the prototypes and how many samples each class has.
Server: z = (1/K)·Σ z_k, the mean logits of the devices' models on `samples` generic samples, drawn anew every round;
F_c, the mean of F_k,c over the devices that have the class (others are left out, not counted as zeros). The global
model and every w_k learn KD(z) + beta·CE of the part above `level` on the pairs (F_c, c).
KD is, as `loss` says, the mean of |z − t|, of (z − t)², or −Σ softmax(t)·log softmax(z).

The generic data is what the server holds: `public: 0.1`; its labels are not used. Device models are those of
`model.ladder`; all must have maps of one shape at `level`, the last one before the pooling and the classifier.

pretrain_epochs: in the first round every device trains so long on its own data, without a deadline. The source trains
until a model stops improving; a fixed number of epochs can be priced before it is done. A device that is first
reached in a later round goes without. Departures: losses are means over samples and classes (the source writes
sums); prototypes pass BatchNorm in evaluation mode.

    >>> import undergrowth as ug
    >>> result = ug.run(method="fedkad", options={"pretrain_epochs": 5}, public=0.1, clients=4, rounds=2)
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import ClassVar

from undergrowth.core import Context, Fitted, Method, Packet, Shard, State, Task, Weights, option
from undergrowth.learning.distillation import LOSSES, TEACHER, Distillation, consensus, draw_of, draw_seed, taught
from undergrowth.learning.ladder import LadderClient, check_alike, generic_data
from undergrowth.learning.own_models import OwnModels, all_models, seen_by, weights_of
from undergrowth.learning.prototypes import PrototypeLoss, mean_prototypes, prototypes_of
from undergrowth.learning.selectors import predictions


@dataclass(frozen=True)
class PrototypeClient(LadderClient):
    """Sends the mean map of each of its classes along."""

    level: str = "up"

    def conclude(
        self, task: Task, down: Packet, trained: Packet, shard: Shard, own: State, context: Context
    ) -> tuple[Packet, State]:
        maps, counts = prototypes_of(task, trained.tensors, shard, self.level)
        return replace(trained, tensors={**trained.tensors, "prototypes/maps": maps, "prototypes/counts": counts}), own


@dataclass(frozen=True)
class Consenting(OwnModels):
    """Teaches all models what the devices' models agree on, and the prototypes."""

    beta: float = 1.0
    loss: str = "l1"
    level: str = "up"
    samples: int = 5000
    lr: float = 0.1
    epochs: int = 5
    batch: int = 64
    device_beta: float | None = None

    def init(self, task: Task, context: Context) -> State:
        check_alike(task, generic_data(task, "fedkad").x, (self.level,))
        return super().init(task, context)

    def teach(
        self, task: Task, model: Weights, uploads: Mapping[str, Packet], context: Context
    ) -> tuple[Weights, Mapping[str, Weights]]:
        public = generic_data(task, "fedkad")
        some = public.take(draw_of(public, self.samples, draw_seed(context)))
        logits = consensus(predictions(seen_by(task, up), weights_of(up), some) for up in uploads.values())
        sent = [up.part("prototypes").tensors for up in uploads.values()]
        maps, classes = mean_prototypes((each["maps"], each["counts"]) for each in sent)
        data = {"x": some.x, "y": some.y, TEACHER: logits}

        def learned(task: Task, weights: Weights, beta: float) -> Weights:
            objective = Distillation(self.loss) + beta * PrototypeLoss(self.level, maps, classes)
            return taught(task, weights, data, objective, context, lr=self.lr, epochs=self.epochs, batch=self.batch)

        of_devices = self.beta if self.device_beta is None else self.device_beta
        return learned(task, model, self.beta), {
            path: learned(seen_by(task, up), weights_of(up), of_devices) for path, up in uploads.items()
        }


@dataclass(frozen=True)
class FedKAD(Method):
    needs_public: ClassVar[bool] = True

    beta: float = option(1.0, "weight of the cross-entropy on prototypes", at_least=0)
    loss: str = option("l1", "distance of logits from the consensus", choices=LOSSES)
    level: str = option("up", "level whose maps are averaged")
    samples: int = option(5000, "generic samples that are drawn for a round", at_least=1)
    server_lr: float = option(0.1, "learning rate at the server", above=0)
    server_epochs: int = option(5, "epochs at the server", at_least=1)
    server_batch: int = option(64, "samples in a batch of the server's training", at_least=1)
    pretrain_epochs: int = option(20, "epochs of every device in the first round; 0: the run's", at_least=0)
    device_beta: float | None = option(None, "beta for the devices' models; None: the same", at_least=0)

    @property
    def client(self) -> PrototypeClient:  # type: ignore[override]
        return PrototypeClient(level=self.level)

    @property
    def server(self) -> Consenting:  # type: ignore[override]
        return Consenting(
            self.pretrain_epochs, self.beta, self.loss, self.level, self.samples, self.server_lr, self.server_epochs,
            self.server_batch, self.device_beta,
        )  # fmt: skip

    def models(self, task: Task, state: State, own: Mapping[str, State]) -> Mapping[str, Weights | Fitted]:
        return all_models(task, state)
