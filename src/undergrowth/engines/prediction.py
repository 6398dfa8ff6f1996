"""Prediction: how many seconds a worker of some kind takes for a number of batches, learned from what it took.

y = a·x + b·log x + d with x batches (Pollen's curve without the parameter that it has twice). On x ≥ 1 it never falls
and is never negative exactly when a, a + b and a + d are not: then y is a sum of x − 1 − log x, log x and 1, each with
a weight of at least 0. So the fit is a least-squares problem with three weights that may not be negative.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from itertools import combinations
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

WINDOW = 50  # rounds that are looked back on
FAINT = 1e-6  # weight of the belief that time is proportional to batches, against the weight of all data

Array = NDArray[np.float64]


def basis(batches: Sequence[float] | Array) -> Array:
    x = np.maximum(np.asarray(batches, dtype=np.float64), 1.0)
    return np.stack([x - 1 - np.log(x), np.log(x), np.ones_like(x)], axis=-1)


class Curve(NamedTuple):
    """Seconds as a function of batches: positive and increasing."""

    weights: Array
    rate: float  # seconds a batch, all in all

    def seconds(self, batches: Sequence[float] | Array) -> Array:
        # A trace of the plain rate, so that more batches are predicted to take longer even where the data says no.
        trace = 1e-6 * max(self.rate, 1e-12) * np.maximum(np.asarray(batches, dtype=np.float64), 1.0)
        result: Array = basis(batches) @ self.weights + trace
        return result


class Sums(NamedTuple):
    """All that a least-squares fit needs to know of some measurements."""

    squares: Array
    products: Array
    batches: float
    seconds: float
    jobs: int
    most: float


def summed(measured: Sequence[tuple[int, float]]) -> Sums:
    x, y = np.asarray(measured, dtype=np.float64).T
    rows = basis(x)
    return Sums(rows.T @ rows, rows.T @ y, float(np.maximum(x, 1).sum()), float(y.sum()), len(y), float(x.max()))


def fit(rounds: Sequence[Sums]) -> Curve:
    """The curve nearest to all measurements of these rounds."""
    squares: Any = sum(each.squares for each in rounds)
    products: Any = sum(each.products for each in rounds)
    rate = sum(each.seconds for each in rounds) / sum(each.batches for each in rounds)
    jobs = sum(each.jobs for each in rounds)
    # Where the data says nothing (all devices have equally many batches, say), two faint points decide.
    for x in (1.0, 2 * max(each.most for each in rounds)):
        row = basis([x])[0]
        weight = FAINT * jobs / (row @ row)
        squares = squares + weight * np.outer(row, row)
        products = products + weight * rate * x * row
    return Curve(not_negative(squares, products), rate)


def not_negative(squares: Array, products: Array) -> Array:
    """Minimises w·squares·w − 2·products·w over w ≥ 0: the best of all choices of which weights are not zero."""
    scale = np.sqrt(np.maximum(np.diag(squares), 1e-300))
    squares, products = squares / np.outer(scale, scale), products / scale
    best: Array = np.zeros(len(products))
    lowest = 0.0
    for size in range(1, len(products) + 1):
        for chosen in combinations(range(len(products)), size):
            part = np.linalg.lstsq(squares[np.ix_(chosen, chosen)], products[list(chosen)], rcond=None)[0]
            if (part < 0).any():
                continue
            weights = np.zeros(len(products))
            weights[list(chosen)] = part
            value = float(weights @ squares @ weights - 2 * products @ weights)
            if value < lowest:
                best, lowest = weights, value
    return best / scale


class Memory:
    """What workers of each kind took in the last rounds."""

    def __init__(self, window: int = WINDOW) -> None:
        self._window = window
        self._open: dict[str, list[tuple[int, float]]] = {}
        self._rounds: dict[str, deque[Sums]] = {}

    def add(self, kind: str, batches: int, seconds: float) -> None:
        self._open.setdefault(kind, []).append((batches, seconds))

    def curves(self) -> dict[str, Curve]:
        """The curve of each kind that was seen; begins a new round."""
        for kind, measured in self._open.items():
            self._rounds.setdefault(kind, deque(maxlen=self._window)).append(summed(measured))
        self._open = {}
        return {kind: fit(list(rounds)) for kind, rounds in self._rounds.items()}
