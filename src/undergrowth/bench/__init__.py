"""Benchmarks, each against a reference that is measured in the same run."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass


@dataclass(frozen=True)
class Measurement:
    """One line of a benchmark: ours, the reference, and whether the bar is met."""

    what: str
    unit: str
    ours: float
    reference: float
    bar: float  # ours / reference must be at least this (at most, where lower is better)
    lower_is_better: bool = False

    @property
    def ratio(self) -> float:
        return self.ours / self.reference

    @property
    def met(self) -> bool:
        return self.ratio <= self.bar if self.lower_is_better else self.ratio >= self.bar


def _loop() -> Iterator[Measurement]:
    from undergrowth.bench.loop import measure

    return measure()


def _clock() -> Iterator[Measurement]:
    from undergrowth.bench.clock import measure

    return measure()


def _placement() -> Iterator[Measurement]:
    from undergrowth.bench.placement import measure

    return measure()


def _engines() -> Iterator[Measurement]:
    from undergrowth.bench.engines import measure

    return measure()


# name → what it shows, and the function that measures it line by line
BENCHMARKS: dict[str, tuple[str, Callable[[], Iterator[Measurement]]]] = {
    "loop": ("the serial engine against a hand-written PyTorch loop, one thread", _loop),
    "engines": ("worker processes against a hand-written push loop, on all cores", _engines),
    "clock": ("a million device-rounds of bookkeeping, and what the clock and ledger add to training", _clock),
    "placement": ("simulated: placement policies on workers of different speeds, against the lower bound", _placement),
}

__all__ = ["BENCHMARKS", "Measurement"]
