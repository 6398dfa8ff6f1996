"""The device of REFT and FedKD: trains its pruned model, and sends logits and class counts once."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from undergrowth.core import Packet, State
from undergrowth.learning import GradientClient, Trained
from undergrowth.learning.distillation import public_data
from undergrowth.learning.quantisation import quantise

LOGITS, SCALES, COUNTS = "logits", "scales", "counts"  # tensors of an upload
FORMATS = ("float32", "int8")


@dataclass(frozen=True, kw_only=True)
class LogitsClient(GradientClient):
    """Trains the received model and sends its logits on the public samples, with its number of samples per class.

    The device keeps the model that it trained. `format`: float32, or int8 with one scale per class.
    """

    format: str = "float32"

    def upload(self, trained: Trained) -> tuple[Packet, State]:
        task, weights = trained.task, dict(trained.tensors)
        public = public_data(task, "the method")
        with torch.no_grad():
            # In batches of the training size, so that a device that can train has enough memory for this too.
            logits = torch.cat([task.model(weights, x) for x in public.x.split(task.train.batch)])[:, : task.classes]
        held = torch.zeros(task.classes, device=logits.device)
        counts = held.index_add(0, trained.shard.y, torch.ones_like(trained.shard.y, dtype=held.dtype))
        tensors = {LOGITS: logits, COUNTS: counts}
        if self.format == "int8":
            codes, scales = quantise(logits.t())
            tensors |= {LOGITS: codes.t().contiguous(), SCALES: scales}
        return Packet(tensors, trained.scalars), {"weights": weights}
