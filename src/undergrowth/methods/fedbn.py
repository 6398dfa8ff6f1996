"""FedBN (Li et al. 2021): normalisation layers stay on the devices, all other layers are averaged.

w = {s, b}: b are the weights and buffers of all normalisation layers (batch, instance, group, layer and RMS norm), s is
the rest. Down: s. A device: E epochs of SGD from {s, b_k}, where b_k is its own. Up: s_k and n_k; it keeps b_k. Server:
s ← Σ p_k·s_k, p_k = n_k / Σ n. b never crosses a link. A device that is asked for the first time starts from the b of
the run's initial model, which it makes from a seed that is sent with s.

What is evaluated: a device uses {s, b_k}. Its accuracy on its own test samples, in `result.clients`, is the paper's
figure. The server has no b, so the run's accuracy is that of {s, mean of b_k}, weighted by samples, over the devices
that have taken part: a model for a device from outside. Only a simulation can make it, because no server sees the b_k.

A model without normalisation layers is averaged as by FedAvg, and the run notes it.

    >>> import undergrowth as ug
    >>> result = ug.run(method="fedbn", model="resnet-8", rounds=2)
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from torch import nn

from undergrowth.core import Model, Task
from undergrowth.learning.personal_layers import PersonalLayersClient, PersonalLayersMethod, PersonalLayersServer

NORMALISATION = (
    nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d, nn.SyncBatchNorm, nn.InstanceNorm1d, nn.InstanceNorm2d,
    nn.InstanceNorm3d, nn.GroupNorm, nn.LayerNorm, nn.RMSNorm,
)  # fmt: skip


def own_names(model: Model) -> set[str]:
    """Names of the weights and buffers of all normalisation layers."""
    layers = [name for name, layer in model.module.named_modules() if isinstance(layer, NORMALISATION)]
    prefixes = tuple(f"{name}." if name else "" for name in layers)
    return {name for name in model.shapes if name.startswith(prefixes)}


@dataclass(frozen=True)
class FedBN(PersonalLayersMethod):
    client = PersonalLayersClient(kept=own_names)
    server = PersonalLayersServer(kept=own_names)

    def notes(self, task: Task) -> Sequence[str]:
        if own_names(task.model):
            return ()
        return ["fedbn: the model has no normalisation layers, so every layer is averaged, as by fedavg"]
