"""The device side of FedFSC: the full update, the few-shot update, and a proximal term for the classifier."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from undergrowth.core import LoopClient, Packet, State, Task, Updates
from undergrowth.learning import Contrastive, ContrastiveClient, GradientClient, Sgd, Trained
from undergrowth.learning.objectives import LossInputs, Objective, Proximal, TaskLoss
from undergrowth.learning.selectors import FewShotSelector

if TYPE_CHECKING:
    from undergrowth.methods.fedfsc import FewShotMethod

FULL, FEW_SHOT = "full", "few-shot"  # names of the updates, and of the parts of a partial result
ANCHOR = "anchor"  # part of a packet: the centre of the proximal term
UPDATES = "updates"  # tag of a packet: the updates that it asks for; without it, the full one


@dataclass(frozen=True)
class AnchorProximal(Objective):
    """μ·‖θ − anchor‖² over the part above `split`.

    The anchor is the received θ (`received`), or what came as ``anchor/NAME``.
    """

    mu: float
    split: str
    received: bool = False

    def __call__(self, inputs: LossInputs) -> Tensor:
        classifier = inputs.task.model.trainable(self.split)
        names = {name: name if self.received else f"{ANCHOR}/{name}" for name in classifier}
        pairs = [(inputs.trained[name], inputs.received[at]) for name, at in names.items() if at in inputs.received]
        if not pairs:  # there is no few-shot classifier before the second round has ended
            return torch.zeros((), device=inputs.output.logits.device)
        return self.mu * torch.stack([inputs.total((value - anchor).pow(2)) for value, anchor in pairs]).sum(0)


@dataclass(frozen=True)
class FewShotClient(GradientClient):
    """Sends the change of the classifier, so that values that a codec leaves out are those received."""

    def upload(self, trained: Trained) -> tuple[Packet, State]:
        change = {name: value - trained.down.tensors[name] for name, value in trained.tensors.items()}
        if FULL in requested_updates(trained.down):
            return Packet.join({FEW_SHOT: Packet(change, trained.scalars)}), trained.own
        # No other update of this device sends the scalars without a prefix.
        return replace(Packet.join({FEW_SHOT: Packet(change)}), scalars=trained.scalars), trained.own


@dataclass(frozen=True)
class FedFSCClient(Updates):
    """Does the updates that the packet asks for."""

    options: FewShotMethod

    def updates(self, task: Task, down: Packet) -> Mapping[str, LoopClient]:
        return {name: self.full if name == FULL else self.few_shot for name in requested_updates(down)}

    @property
    def full(self) -> GradientClient:
        options = self.options
        objective: Objective = TaskLoss()
        if options.base_mu and options.base == "fedprox":
            objective += Proximal(options.base_mu)
        contrastive = bool(options.base_mu) and options.base == "moon"
        if contrastive:
            objective += options.base_mu * Contrastive(options.temperature)
        if options.anchor_term is not None:
            objective += options.anchor_term
        return (ContrastiveClient if contrastive else GradientClient)(objective)

    @property
    def few_shot(self) -> FewShotClient:
        options = self.options
        return FewShotClient(
            split=options.split,
            selector=FewShotSelector(options.shots),
            optimiser=Sgd(0.9, 1e-3, options.few_shot_dampening),
            lr=options.few_shot_lr,
            epochs=options.few_shot_epochs,
            batch=options.few_shot_batch,
        )


def requested_updates(down: Packet) -> list[str]:
    """The names of the updates that a packet asks for."""
    return down.tags.get(UPDATES, FULL).split("+")
