"""Uploads to reduce, any order and grouping to reduce them in, and the plain sums to compare with."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from hypothesis import strategies as st
from torch import Tensor

from undergrowth.core import Packet, Reducer

DTYPES = (torch.float16, torch.bfloat16, torch.float32, torch.float64)
WEIGHTS = (0.0, 0.25, 1.0, 7.0, 1e9)


@dataclass(frozen=True)
class Upload:
    sender: str
    packet: Packet
    age: int = 0

    def scalar(self, name: str) -> float:
        return self.packet.scalars[name]

    def tensor(self, name: str) -> Tensor:
        return self.packet.tensors[name]


@st.composite
def uploads(draw: st.DrawFn, weights: Sequence[float] = WEIGHTS) -> list[Upload]:
    """One to seven uploads with a float tensor, a single number and an integer buffer each."""
    count = draw(st.integers(1, 7))
    dtype = draw(st.sampled_from(DTYPES))
    generator = torch.Generator().manual_seed(draw(st.integers(0, 10_000)))
    result = []
    for i in range(count):
        tensors = {
            "w": (torch.randn(2, 3, generator=generator, dtype=torch.float64) * 10).to(dtype),
            "b": torch.randn((), generator=generator, dtype=torch.float64).to(dtype),
            "count": torch.randint(0, 100, (2,), generator=generator),
        }
        scalars = {"samples": draw(st.sampled_from(weights)), "loss": draw(st.floats(0, 8, width=16))}
        tags = {"kind": draw(st.sampled_from(("red", "green")))}
        result.append(Upload(f"device-{i}", Packet(tensors, scalars, tags), draw(st.integers(0, 3))))
    return result


def combined(reducer: Reducer, given: Sequence[Upload], rng: random.Random) -> Packet:
    """All uploads, merged along a random binary tree over a random order."""
    partial = [reducer.lift(upload.sender, upload.packet, upload.age) for upload in given]
    rng.shuffle(partial)
    while len(partial) > 1:
        a = partial.pop(rng.randrange(len(partial)))
        b = partial.pop(rng.randrange(len(partial)))
        partial.append(reducer.merge(a, b))
    return partial[0]


def mean(given: Sequence[Upload], name: str, weights: Sequence[float]) -> Tensor:
    """The weighted mean of a tensor in float64; zero where there is no weight."""
    total = sum(weights)
    if not total:
        return torch.zeros(given[0].tensor(name).shape, dtype=torch.float64)
    return sum(u.tensor(name).double() * (w / total) for u, w in zip(given, weights, strict=False))  # type: ignore[return-value]


def assert_close(actual: Tensor, expected: Tensor, scale: float = 40.0) -> None:
    """Equal to float error of values up to about `scale`."""
    precision = 1e-12 if actual.dtype == torch.float64 else 2e-6
    torch.testing.assert_close(actual.double(), expected.double(), rtol=0, atol=precision * scale)


def assert_same_packet(a: Packet, b: Packet, scale: float = 40.0) -> None:
    """The same names, and values equal to float error relative to their size."""
    assert a.tensors.keys() == b.tensors.keys()
    for name, value in a.tensors.items():
        assert value.dtype == b.tensors[name].dtype
        size = max(scale, float(value.double().abs().max()))
        torch.testing.assert_close(value.double(), b.tensors[name].double(), rtol=0, atol=2e-6 * size)
    assert_same_scalars(a.scalars, b.scalars)
    assert dict(a.tags) == dict(b.tags)


def assert_same_scalars(a: Mapping[str, float], b: Mapping[str, float]) -> None:
    assert a.keys() == b.keys()
    for name, value in a.items():
        assert value == b[name] or abs(value - b[name]) <= 1e-9 * max(10.0, abs(value)), name
