"""FedAT (Shi, Sheffield thesis, §5.3): device models of any depth, and attention transfer to and from a global one.

Down: w_k, the device's own model. A device: E epochs of SGD; then it computes the maps F = φ_k(x) at `level` of a
fraction of its samples. Up: w_k, n_k, the pairs (F, y), its metadata. Server, for every device on a copy of the global
model w: 1. CE on public data + beta·AT from w_k. 2. The part θ above `level` is trained on the metadata. 3. θ is
frozen, and the part φ below it learns CE on public data + beta·AT from w_k at the levels inside φ, so that both fit.
Then w ← Σ p_k·copy_k, p_k = n_k / Σ n, and every w_k learns CE on public data + beta·AT from w.
AT = Σ over levels of the mean of (Q − Q')² over samples and map elements; Q = Σ over channels of f², flattened, over
its ℓ2 norm. This is the code of Zagoruyko and Komodakis, from which the source takes beta = 1000. Eq. 5.14 prints
Σ over levels of ‖Q − Q'‖₂, mean over the samples: `form: printed`. With beta = 1000 that form dominates the loss, and
models learn next to nothing (docs/decisions/0023).

The mean divides by the number of map elements, so beta depends on the size of the maps: 1000 belongs to maps of 32×32
pixels at `low`. For smaller maps, scale it down with the number of pixels: 1000·16/1024 ≈ 16 for maps of 4×4.

The public data has labels: `public: 0.1`. Device models are those of `model.ladder`. All models must have the same maps
at `level`, and maps of the same height and width at the other levels they share. Local training is that of the run:
the source sets train.epochs to 5 and train.lr to 0.01.

Without metadata (metadata_share=0) steps 2 and 3 are left out; `alignment` changes step 3 alone. Departures: the maps
of a teacher are those of evaluation mode, computed once a round; all copies see the public data in the same order.
With `augment_public`, all models see the public images changed as `data.augment` says, differently in every round.
With `augment_metadata`, a device computes its maps from images that are changed in the same way.

Classes that only devices have: as above, the mean of the copies knows next to nothing of them (docs/decisions/0064).
With `metadata_of: all`, step 2 is one for all: the mean of the copies after step 1 learns the metadata of all devices
that trained (BatchNorm cannot on one sample), and step 3 goes on with copies of the result. With `public_classes:
present`, CE on public data is among the classes that they have: among all classes, it teaches every model that the
others do not occur. `shared_start` gives the devices' models the first weights of w wherever names and shapes agree, so
that the maps of different models begin alike. With `upper_statistics: updated`, BatchNorm in the frozen part of step 3
normalises by the batch, and its statistics follow.

    >>> import undergrowth as ug
    >>> options = {"beta": 16.0, "metadata_share": 0.2, "transfer_lr": 0.05, "metadata_lr": 0.05}
    >>> result = ug.run(method="fedat", options=options, public=0.1, clients=4, rounds=2)
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar

from undergrowth.core import Classification, Method, ModelWeights, Packet, State, Task, Weights, option
from undergrowth.learning import GradientClient, RandomSelector, Trained
from undergrowth.learning.features import features_of
from undergrowth.learning.own_models import all_models
from undergrowth.learning.selectors import count_selected
from undergrowth.methods.fedat.server import FORMS, FedATServer, augmented

ALIGNMENTS = ("attention", "plain", "none")
SENDERS = ("device", "all")
STATISTICS = ("kept", "updated")
CLASSES = ("all", "present")


@dataclass(frozen=True, kw_only=True)
class FedATClient(GradientClient):
    """Sends the maps and labels of a fraction of its samples beside the model."""

    options: FedAT

    def upload(self, trained: Trained) -> tuple[Packet, State]:
        task, shard, fraction = trained.task, trained.shard, self.options.metadata_share
        if not fraction:
            return trained.packet, trained.own
        if fraction < 1:
            generator = trained.context.generator("metadata")
            shard = shard.take(RandomSelector(fraction).pick(task, trained.tensors, shard, generator))
        if self.options.augment_metadata:
            shard = augmented(task, shard, trained.context, "augment metadata")
        maps = features_of(task, trained.tensors, shard.x, self.options.level)
        tensors = {**trained.tensors, "metadata/maps": maps, "metadata/labels": shard.y}
        return Packet(tensors, trained.scalars), trained.own

    def samples_after_steps(self, size: int) -> int:
        return count_selected(self.options.metadata_share, size) if self.options.metadata_share else 0


@dataclass(frozen=True)
class FedAT(Method):
    needs_public: ClassVar[bool] = True

    beta: float = option(1000.0, "weight of the attention transfer; depends on the size of the maps", at_least=0)
    form: str = option(FORMS[0], "distance of attention maps; printed: the norm of eq. 5.14", choices=FORMS)
    level: str = option("low", "level at which maps are sent and models are split")
    metadata_share: float = option(1.0, "fraction of the samples whose maps are sent", at_least=0, at_most=1)
    transfer_lr: float = option(0.1, "learning rate of training with attention transfer", above=0)
    transfer_epochs: int = option(2, "epochs of training with attention transfer", at_least=1)
    metadata_lr: float = option(0.1, "learning rate of training on metadata", above=0)
    metadata_epochs: int = option(2, "epochs of training on metadata", at_least=1)
    server_batch: int = option(64, "samples in a batch of the server's training", at_least=1)
    alignment: str = option(ALIGNMENTS[0], "step 3: with attention, without, or left out", choices=ALIGNMENTS)
    metadata_of: str = option(
        SENDERS[0], "step 2: a copy learns its device's metadata, or their mean that of all", choices=SENDERS
    )
    upper_statistics: str = option(
        STATISTICS[0], "step 3: BatchNorm's statistics of the part above", choices=STATISTICS
    )
    public_classes: str = option(
        CLASSES[0], "loss on public data: among all classes, or those that they have", choices=CLASSES
    )
    augment_public: bool = option(False, "change the public images in every round as data.augment says")
    augment_metadata: bool = option(False, "compute maps from images changed as data.augment says")
    shared_start: bool = option(False, "devices' models start with the global model's weights where these fit")

    @property
    def needs_classes(self) -> str:
        absent = "method.public_classes present leaves out the classes that the public data do not have"
        return absent if self.public_classes == "present" else ""

    def notes(self, task: Task) -> Sequence[str]:
        if task.public is None or not isinstance(task.kind, Classification) or self.public_classes == "present":
            return ()
        absent = task.classes - len(task.public.y.unique())
        forgotten = f"training on the public data, which lacks {absent} of {task.classes} classes, unlearns these"
        return [f"{forgotten}; try -s method.public_classes=present -s method.metadata_of=all"] if absent > 0 else ()

    @property
    def client(self) -> FedATClient:
        return FedATClient(options=self)

    @property
    def server(self) -> FedATServer:
        return FedATServer(self)

    def models(self, task: Task, state: State, own: Mapping[str, State]) -> Mapping[str, Weights | ModelWeights]:
        return all_models(task, state)


__all__ = ["FedAT"]
