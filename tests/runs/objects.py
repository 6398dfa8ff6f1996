"""Objects that a user could pass: data, populations, models, and clients that fail in a chosen way."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

import undergrowth as ug
from undergrowth.core import Context, Method, Packet, Shard, State, Task
from undergrowth.data import Dataset
from undergrowth.learning import AveragingServer, GradientClient

FEATURES, CLASSES = 6, 3


def samples(count: int, seed: int = 0) -> tuple[Tensor, Tensor]:
    """Three clouds of points."""
    generator = torch.Generator().manual_seed(seed)
    y = torch.arange(count) % CLASSES
    centres = torch.randn(CLASSES, FEATURES, generator=torch.Generator().manual_seed(99))
    return centres[y] * 2 + torch.randn(count, FEATURES, generator=generator), y


def dataset(count: int = 60, **changes: Any) -> Dataset:
    x, y = samples(count)
    test_x, test_y = samples(30, seed=1)
    return Dataset(**{"name": "clouds", "x": x, "y": y, "test_x": test_x, "test_y": test_y, "classes": 3, **changes})


@dataclass
class Own:
    """A population with the given number of samples per device."""

    sizes: tuple[int, ...] = (8, 12, 16, 20)
    changes: Mapping[str, Callable[[Shard], Shard]] = field(default_factory=dict)
    name: str = "own"
    classes: int = CLASSES
    shape: tuple[int, ...] = (FEATURES,)

    @property
    def devices(self) -> list[str]:
        return [f"phone-{number}" for number in range(len(self.sizes))]

    def train(self, device: str) -> Shard:
        shard = Shard(*samples(self.size(device), seed=10 + int(device[6:])))
        return self.changes.get(device, lambda given: given)(shard)

    def test(self, device: str) -> Shard:
        return Shard(*samples(self.size(device) // 2, seed=1000 + int(device[6:])))

    def central_test(self) -> Shard:
        return Shard(*samples(30, seed=1))

    def size(self, device: str) -> int:
        return self.sizes[int(device[6:])]


def linear() -> nn.Module:
    return nn.Linear(FEATURES, CLASSES)


def normed() -> nn.Module:
    """A model with buffers."""
    return nn.Sequential(nn.Linear(FEATURES, 5), nn.BatchNorm1d(5), nn.ReLU(), nn.Linear(5, CLASSES))


@dataclass(frozen=True)
class Faulty(GradientClient):
    """A client that applies `fault` to the upload of one device."""

    device: str = ""
    round: int | None = None
    fault: Callable[[Packet], Packet] = lambda up: up

    def finish(
        self, task: Task, down: Packet, carry: Any, shard: Shard, own: State, context: Context
    ) -> tuple[Packet, State]:
        up, own = super().finish(task, down, carry, shard, own, context)
        if context.node == self.device and self.round in (None, context.round):
            up = self.fault(up)
        return up, own


@dataclass(frozen=True)
class WithFault(Method):
    """FedAvg with a faulty device."""

    client: Faulty
    server = AveragingServer()


def independent_digest(module: nn.Module) -> str:
    """SHA-256 of a module's tensors by sorted name, computed without the package."""
    total = hashlib.sha256()
    state = module.state_dict()
    for name in sorted(state):
        total.update(state[name].contiguous().numpy().astype(state[name].numpy().dtype.newbyteorder("<")).tobytes())
    return total.hexdigest()


def digest(result: ug.Result) -> str:
    return str(result.summary["model_digest"])


def without_wall(history: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """A history without its wall-clock times."""
    return [{name: value for name, value in row.items() if name != "wall_seconds"} for row in history]
