"""Zeroth-order optimisation (MeZO, Malladi et al. 2023): slopes from forward passes, in the memory of inference.

The slope of the loss L along a direction z is g = (L(w + ε·z) − L(w − ε·z)) / 2ε. Perturbing the model changes it in
place, tensor by tensor and a chunk of one at a time, and z is generated again whenever it is needed. So neither the
perturbed model nor a direction ever exists beside the model.

Adding ε·z, −2ε·z and ε·z leads back to w up to rounding: the difference is at most 3·(|w| + ε·|z|) times 2⁻²⁴ (2⁻⁵³ in
float64) for each weight and direction.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from undergrowth.core import Batch, Task, Weights, option
from undergrowth.core.names import WEIGHT, X, Y
from undergrowth.learning.directions import derive, divide, divide_once, streams
from undergrowth.learning.optimisers import learning_rate

# Values that are perturbed at a time. What is generated for them takes at most 8 bytes per value, 16 in float64: 0.5 MB
# on a CPU.
CPU_CHUNK, GPU_CHUNK = 1 << 15, 1 << 21

# Settings of gradient descent, which forward passes do not use.
IGNORED_SETTINGS = frozenset(
    {
        "data.augment",
        "model.dropout",
        "train.drop_last",
        "train.lr",
        "train.momentum",
        "train.optimiser",
        "train.selector",
        "train.weight_decay",
    }
)


@dataclass(frozen=True)
class ZerothOrderOptions:
    """Options of methods that use forward passes only."""

    directions: int = option(2, "random directions along which a device measures the slope", at_least=1)
    epsilon: float = option(1e-3, "length of a perturbation, in multiples of a direction", above=0)
    step_size: float = option(3e-3, "step against the mean slope, used instead of train.lr", at_least=0)

    @property
    def walk(self) -> tuple[float, float, float]:
        """The perturbations of a direction: forward, backward and back to the start."""
        return self.epsilon, -2 * self.epsilon, self.epsilon

    def slopes(self, forward: Tensor, backward: Tensor) -> Tensor:
        """(L(w + ε·z) − L(w − ε·z)) / 2ε."""
        return (forward - backward) / (2 * self.epsilon)

    def rate(self, task: Task, round: int) -> float:
        """The step of a round under `train.schedule`."""
        return learning_rate(replace(task.train, lr=self.step_size), round)

    def descend(self, parameters: Weights, key: Tensor, slopes: Tensor, rate: float) -> None:
        """w ← w − rate·mean(g·z) over the directions of `key`, in place. `slopes`: their g, in the last dimension."""
        for number, slope in enumerate(slopes.unbind(-1)):
            shift(parameters, direction(key, number), [slope.double() * (-rate / self.directions)])


def direction(key: Tensor, number: int) -> Tensor:
    """The key of direction `number` of those that belong to `key`; number 0 of its streams stays free."""
    return derive(key, number + 1)


def shift(parameters: Weights, key: Tensor, scales: Sequence[float | Tensor]) -> None:
    """Adds scale·z to the parameters in place, for one scale after the other. z is the direction of `key`.

    A stack of K clients has K keys, and parameters with the client as their first dimension. If the clients share their
    parameters (`private_copy`), they share the key too, and the one tensor is changed.
    """
    # By clients and dtype, the parameters whose numbers can be generated together: stream → clients × values.
    groups: defaultdict[tuple[int, torch.dtype], dict[int, Tensor]] = defaultdict(dict)
    for stream, value in enumerate(parameters.values()):
        stack = value.unsqueeze(0) if key.dim() == 0 else value[:1] if _is_shared(value) else value
        groups[len(stack), value.dtype][stream] = stack.view(len(stack), -1)
    one_key = key.dim() == 0 or _is_shared(key)
    keys = streams(key.reshape(-1)[:1] if one_key else key, len(parameters))
    for (clients, _), rows in groups.items():
        _shift_rows(rows, keys[:clients], scales)


def _shift_rows(rows: Mapping[int, Tensor], keys: Tensor, scales: Sequence[float | Tensor]) -> None:
    """The same for parameters of one dtype, by stream. `keys`: clients × streams; one row if they share the keys."""
    first = next(iter(rows.values()))
    dtype, most = first.dtype, GPU_CHUNK if first.is_cuda else CPU_CHUNK
    sizes = tuple((stream, value.shape[1]) for stream, value in rows.items())
    for chunk in (divide if keys.is_meta else divide_once)(sizes, most, keys.device):
        parts = [rows[stream].narrow(1, start, stop - start) for stream, start, stop in chunk.pieces]
        z = chunk.normals(keys).to(dtype)
        for scale in scales:
            # A product and a sum, each rounded once: a fused operation would round differently on a GPU.
            change = z * (scale.to(dtype).reshape(-1, 1) if isinstance(scale, Tensor) else scale)
            torch._foreach_add_(parts, chunk.split(change))
        if keys.is_meta:  # a price: chunks take memory one after the other and have no FLOPs, and the first is largest
            break


def private_copy(parameters: Weights, key: Tensor) -> dict[str, Tensor]:
    """Parameters that may be changed in place. Clients of a stack that share tensors and the key share the copy."""
    together = key.dim() > 0 and _is_shared(key)
    return {name: _copy(value, together) for name, value in parameters.items()}


def _is_shared(stack: Tensor) -> bool:
    return stack.stride(0) == 0 or len(stack) == 1


def _copy(value: Tensor, together: bool) -> Tensor:
    if together and _is_shared(value):
        return value[:1].clone(memory_format=torch.contiguous_format).expand(value.shape)
    return value.clone(memory_format=torch.contiguous_format)


def loss_sum(task: Task, weights: Mapping[str, Tensor], batch: Batch, clients: int | None) -> Tensor:
    """The sum of the losses of the samples of a batch; of a stack of clients, one sum per client.

    In evaluation mode: dropout is off and statistics of BatchNorm stay as they are. The sum is in float64, because
    slopes are small differences of losses.
    """
    with torch.no_grad():
        losses = task.kind.losses(task.model(weights, batch[X]), batch[Y]).means.double()
    if clients is None:
        return losses.sum()
    real = batch[WEIGHT] > 0  # samples that only pad the stack have no weight
    return torch.where(real, losses, 0.0).reshape(clients, -1).sum(1)


def batch_sizes(batch: Batch, clients: int | None) -> Tensor | int:
    """The number of samples of a batch; of a stack of clients, one number per client."""
    if clients is None:
        return len(batch[Y])
    return (batch[WEIGHT] > 0).reshape(clients, -1).sum(1).clamp_min(1)
