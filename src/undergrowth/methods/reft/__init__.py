"""REFT (Desai 2023) and FedKD (Gong et al. 2022): one upload of logits on public data teaches the server's model.

Down: for reft, the server's model without the fraction P_k of the channels of its layers; for fedkd, the whole model.
P_k = 1 − F_k/F_λ, between 0 and 0.95, from the speed F_k of the device (eq. 5.2); none is removed where F_k ≥ F_λ. The
channels with the largest L1 norms stay, and layers are physically smaller. A device: E epochs on its own data, which
is all its training, so give it many. Up: its logits z_k on all public samples, and the number N_k^t of its samples of
each class t. Server: teacher logits z^t = Σ_k I_k^t·z_k^t, I_k^t = N_k^t / Σ_k N_k^t (eq. 4.1). The server's model, the
whole one, learns them with Adam. A class that no device has is left out of the loss, with a warning.
distill: "l2" is the mean over samples of ‖z − t‖ (eq. 4.3), "kl" that of Σ p·log(p/q) with the softmax of t/τ and of
z/τ (eq. 4.2), τ = `temperature`.

`public` data may be of another domain; its labels are not used. Devices are assumed to have it: sending it is in no
price. The server's model is evaluated and, as "accuracy/devices", the mean of the devices' pruned models.

P_k is rounded to whole per cents, so that devices of about the same speed have the same model. The first quarter of the
convolutions keeps all its channels: with this, VGG-16 has the published sizes (docs/decisions/0045). `ratio` prunes all
devices alike. logits: "int8" sends one byte for a logit, and a scale for each class; the default of fedkd.

One round is the published method: a device is asked once. With more rounds, each one prunes the server's last model
again and distils the new logits. Departure: the source's cosine schedule over the epochs of a device; the learning
rate is that of the run.

    >>> import undergrowth as ug
    >>> options = {"f_lambda": 100, "server_batch": 32}
    >>> result = ug.run(method="reft", options=options, public=0.2, fleet="reft-5", clients=5, rounds=1, epochs=5)
    >>> result = ug.run(method="fedkd", options={"server_batch": 32}, public=0.2, clients=5, rounds=1, epochs=5)
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar

from undergrowth.core import LazyMapping, Method, ModelWeights, State, Task, Weights, option
from undergrowth.core.names import MODEL
from undergrowth.learning import widths_of
from undergrowth.learning.pruning import MAX_PRUNED, pruned_fraction
from undergrowth.learning.width import SlicedModel
from undergrowth.methods.reft.rules import FORMATS, LOSSES, LogitsClient, LogitsServer


@dataclass(frozen=True)
class LogitsMethod(Method):
    """The base of both methods."""

    needs_public: ClassVar[bool] = True
    needs_all_classes: ClassVar[bool] = True
    prunes: ClassVar[bool] = False

    distill: str = option("l2", "distance of the logits from the teacher's", choices=LOSSES)
    temperature: float = option(1.0, "temperature of the softmax for distill=kl", above=0)
    logits: str = option("float32", "how logits are sent", choices=FORMATS)
    server_epochs: int = option(20, "epochs in which the server's model learns the logits", at_least=1)
    server_lr: float = option(1e-3, "learning rate of Adam at the server", above=0)
    server_batch: int = option(512, "public samples in a batch at the server", at_least=1)

    @property
    def needs_classes(self) -> str:
        return "the teacher's logits are weighted by the devices' samples of every class"

    def pruned(self, flops: float) -> float:
        """The fraction of the channels that a device of this speed goes without."""
        return 0.0

    @property
    def client(self) -> LogitsClient:
        return LogitsClient(view=SlicedModel if self.prunes else None, format=self.logits)

    @property
    def server(self) -> LogitsServer:
        return LogitsServer(self)

    def models(self, task: Task, state: State, own: Mapping[str, State]) -> Mapping[str, Weights | ModelWeights]:
        def read(name: str) -> Weights | ModelWeights:
            weights: Weights = state[MODEL] if name == "global" else own[names[name]]["weights"]
            return ModelWeights(SlicedModel(task.model), weights) if self.prunes and names[name] else weights

        names = {"global": "", **{f"devices/{device}": device for device in own}}
        return LazyMapping(names, read)

    def notes(self, task: Task) -> Sequence[str]:
        rounds = task.train.rounds
        again = f"train.rounds {rounds}: the published method has one round; devices are asked again in the others"
        return (again,) if rounds > 1 else ()


@dataclass(frozen=True)
class REFT(LogitsMethod):
    prunes: ClassVar[bool] = True

    f_lambda: float = option(100.0, "F_λ in GFLOPs a second: devices of this speed get the whole model", above=0)
    ratio: float | None = option(
        None, "prune all devices by this fraction, instead of by F_λ", at_least=0, at_most=MAX_PRUNED
    )

    def pruned(self, flops: float) -> float:
        return round(pruned_fraction(flops, 1e9 * self.f_lambda), 2) if self.ratio is None else self.ratio

    def notes(self, task: Task) -> Sequence[str]:
        nothing = "model: it has no hidden channels; all devices get the whole model"
        return (*super().notes(task), *(() if widths_of(task.model).channels else (nothing,)))


@dataclass(frozen=True)
class FedKD(LogitsMethod):
    logits: str = option("int8", "how logits are sent", choices=FORMATS)
