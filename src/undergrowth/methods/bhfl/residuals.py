"""Residuals: models that travel over several links, past the nodes that would average them.

In a packet they are under ``residual/ORIGIN/``: the model, the samples behind it, and the links since its origin.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from undergrowth.core import Packet, State, Task, Weights
from undergrowth.core.names import LOSS, SAMPLES
from undergrowth.core.notation import Form, Number, parse_with_word
from undergrowth.learning.servers import uploaded_weights
from undergrowth.methods.bhfl.node_optimiser import ReceivedModel, mean_of

RESIDUAL, HOPS = "residual", "hops"
_COUNT = (Number("K", at_least=0, whole=True),)
FORMS = {"none": Form(), **{kind: Form(_COUNT, f"{kind}:1", words=("mean",)) for kind in ("norm", "loss", "cosine")}}


@dataclass(frozen=True)
class ResidualSelector:
    """Which models of its children a node sends to the root: ``norm:K``, ``loss:K`` or ``cosine:K``; or ``none``.

    norm: those that changed most, by the Euclidean norm. loss: those with the highest training loss. cosine: those
    whose changes are least similar to the mean change. With ``:mean`` the K models travel as one, their mean.
    """

    text: str

    def check(self) -> None:
        """Raises an `InputError` if the text cannot be read."""
        parse_with_word("method.residuals", self.text, FORMS)

    @property
    def count(self) -> int:
        return int(self._parsed[1][0]) if self._parsed[1] else 0

    @property
    def needs_loss(self) -> bool:
        return self.count > 0 and self._parsed[0] == "loss"

    @cached_property
    def _parsed(self) -> tuple[str, list[float], str]:
        return parse_with_word("method.residuals", self.text, FORMS)

    def select(self, task: Task, node: str, model: Weights, uploads: Mapping[str, Packet]) -> dict[str, ReceivedModel]:
        """The selected models by the name of their origin: the child, or `node` for a mean."""
        uploads = {child: up for child, up in uploads.items() if up.scalars[SAMPLES]}  # the others did not train
        if not self.count or not uploads:
            return {}
        scores = self._scores(task, model, uploads)
        chosen = sorted(uploads, key=lambda child: (-scores[child], child))[: self.count]
        found = {child: _as_input(uploads[child]) for child in sorted(chosen)}
        if self._parsed[2] != "mean":
            return found
        samples = sum(each.samples for each in found.values())
        return {node: ReceivedModel(mean_of(list(found.values())), samples)}

    def expected(self, node: str, uploads: Mapping[str, Packet]) -> dict[str, ReceivedModel]:
        """As many models as `select` would return, to price them."""
        found = {child: _as_input(up) for child, up in list(uploads.items())[: self.count]}
        return {node: next(iter(found.values()))} if found and self._parsed[2] == "mean" else found

    def _scores(self, task: Task, model: Weights, uploads: Mapping[str, Packet]) -> dict[str, float]:
        kind = self._parsed[0]
        if kind == "loss":
            return {child: up.scalars.get(LOSS, 0.0) for child, up in uploads.items()}
        changes = {child: change_of(task, model, up.tensors) for child, up in uploads.items()}
        if kind == "norm":
            return {child: float(change.norm()) for child, change in changes.items()}
        samples = {child: up.scalars[SAMPLES] for child, up in uploads.items()}
        total = sum(samples.values())
        middle = torch.stack([change * (samples[child] / total) for child, change in changes.items()]).sum(0)
        return {child: 1 - float(torch.cosine_similarity(change, middle, 0)) for child, change in changes.items()}


def change_of(task: Task, model: Weights, after: Weights) -> Tensor:
    """The change of all parameters as one vector."""
    names = [name for name in task.model.parameters if name in after]
    return torch.cat([(after[name] - model[name]).flatten() for name in names])


def pack_residuals(residuals: Mapping[str, ReceivedModel]) -> dict[str, Packet]:
    """The parts of a packet that hold `residuals`."""
    if not residuals:
        return {}
    parts = {name: Packet(each.weights, {SAMPLES: each.samples, HOPS: each.hops}) for name, each in residuals.items()}
    return {RESIDUAL: Packet.join(parts)}


def unpack_residuals(packet: Packet) -> dict[str, ReceivedModel]:
    """The residuals that arrived in a packet, over one link more than the sender knew."""
    return {
        name: ReceivedModel(part.tensors, part.scalars[SAMPLES], part.scalars[HOPS] + 1)
        for name, part in packet.part(RESIDUAL).parts().items()
    }


def with_residuals(packet: Packet, residuals: Mapping[str, ReceivedModel]) -> Packet:
    more = Packet.join(pack_residuals(residuals))
    return Packet({**packet.tensors, **more.tensors}, {**packet.scalars, **more.scalars}, packet.tags)


def to_state(residuals: Mapping[str, ReceivedModel]) -> State:
    """The residuals as a pytree."""
    return {name: dict(vars(each)) for name, each in residuals.items()}


def from_state(state: State) -> dict[str, ReceivedModel]:
    """The residuals that `to_state` turned into a pytree."""
    return {name: ReceivedModel(**each) for name, each in state.items()}


def _as_input(up: Packet) -> ReceivedModel:
    return ReceivedModel(uploaded_weights(up), up.scalars[SAMPLES])
