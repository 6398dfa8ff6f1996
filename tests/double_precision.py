"""Data and models in float64, for tests that claim equality up to rounding.

In float32 the last digit depends on the CPU, and training amplifies it. In float64 the same rounding errors stay far
below any difference that a mistake would make, on every machine.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields
from typing import Any

from torch import Tensor, nn

from undergrowth.data import Dataset, load
from undergrowth.models import builder

RTOL, ATOL = 1e-6, 1e-8  # what engines may differ by in float64: about a hundred times of what they do


class DoubleDataset(Dataset):
    """A data set whose shards have float64 inputs."""

    def _inputs(self, x: Tensor) -> Tensor:
        return super()._inputs(x).double()


def double_data(name: str, **options: Any) -> DoubleDataset:
    """The data set `name` with float64 inputs."""
    data = load(name, **options)
    return DoubleDataset(**{field.name: getattr(data, field.name) for field in fields(data)})


def double_model(
    data: Dataset, name: str, ladder: Sequence[Mapping[str, Any]] = (), **options: Any
) -> Callable[[], nn.Module]:
    """A callable that builds the model `name` for `data` in float64; its ladder has the models of `ladder`."""
    build = builder(name, data.shape, data.classes, **options)

    def model() -> nn.Module:
        return build().double()

    if ladder:
        model.ladder = {str(number): double_model(data, **each) for number, each in enumerate(ladder)}  # type: ignore[attr-defined]
    return model
