"""Benchmarks. Each measures a reference in the same run."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from importlib import import_module


@dataclass(frozen=True)
class Measurement:
    """One line of a benchmark: our figure, the reference, and whether the bar is met."""

    what: str
    unit: str
    ours: float
    reference: float
    bar: float  # least ratio of ours / reference; greatest if lower is better
    lower_is_better: bool = False

    @property
    def ratio(self) -> float:
        return self.ours / self.reference

    @property
    def met(self) -> bool:
        return self.ratio <= self.bar if self.lower_is_better else self.ratio >= self.bar


@dataclass(frozen=True)
class Row:
    """One contender's figures on one workload, also relative to reference contenders."""

    workload: str
    contender: str
    speed: float  # clients a second
    cpu: float  # ms a client
    startup: float  # seconds until the first round
    startup_cpu: float  # CPU seconds until then
    memory: float  # peak MB
    loss: float  # after the last round
    difference: float | None = None  # of its averaged model from that of the serial engine
    # reference → ratio of speeds, ratio of CPU times
    against: dict[str, tuple[float, float]] = field(default_factory=dict)

    def times(self, other: Row) -> tuple[float, float]:
        """Speed and CPU time divided by those of another contender."""
        cpu = self.cpu / other.cpu if other.cpu else math.nan  # its CPU time was below the clock's resolution
        return self.speed / other.speed, cpu


Line = Measurement | Row | str  # a text reports progress


def _measure(module: str) -> Callable[..., Iterator[Line]]:
    """The function `measure` of a module of this package, which is imported when the function is called."""
    return lambda **options: import_module(f"undergrowth.bench.{module}").measure(**options)


# name → description, and the function that yields its lines
BENCHMARKS: dict[str, tuple[str, Callable[..., Iterator[Line]]]] = {
    "loop": ("the serial engine against a hand-written PyTorch loop, one thread", _measure("loop")),
    "engines": (
        "the engines side by side with a loop by hand, Flower and pfl-research, on the same clients",
        _measure("engines"),
    ),
    "clock": (
        "a million device-rounds of bookkeeping, and what the clock and ledger add to training",
        _measure("clock"),
    ),
    "start": ("from the shell to the end of a first round, against importing torch", _measure("start")),
    "lora": ("adapters of many clients on one frozen model, against a loop over the clients", _measure("lora")),
    "memory": ("the memory of FedMeZO on a device, against inference", _measure("memory")),
    "placement": (
        "simulated: placement policies on workers of different speeds, against the lower bound",
        _measure("placement"),
    ),
    "inference": (
        "models without some of their channels: size, FLOPs and time of a forward pass",
        _measure("inference"),
    ),
}

__all__ = ["BENCHMARKS", "Line", "Measurement", "Row"]
