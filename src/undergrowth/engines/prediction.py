"""Prediction of how many seconds a kind of worker takes for a number of batches, learned from finished jobs.

y = a·x + b·log x + d, where x are batches (Pollen's curve without its redundant parameter). For x ≥ 1 this never
decreases and is never negative exactly if a, a + b and a + d are not negative. Then y is a sum of x − 1 − log x, log x
and 1 with non-negative weights, and the fit is a least-squares problem with three non-negative unknowns.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from itertools import combinations
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

MAX_ROUNDS = 50  # the latest rounds from which curves are fitted
PRIOR_WEIGHT = 1e-6  # of the assumption that time is proportional to batches, relative to all measurements

Array = NDArray[np.float64]


def basis(batches: Sequence[float] | Array) -> Array:
    """The values of x − 1 − log x, log x and 1 for each number of batches, in a new last dimension."""
    x = np.maximum(np.asarray(batches, dtype=np.float64), 1.0)
    return np.stack([x - 1 - np.log(x), np.log(x), np.ones_like(x)], axis=-1)


class Curve(NamedTuple):
    """Seconds as a function of batches: positive and increasing."""

    weights: Array
    rate: float  # mean seconds per batch

    def seconds(self, batches: Sequence[float] | Array) -> Array:
        # A small multiple of the mean rate makes the curve strictly increasing even if the measurements are flat.
        slope = 1e-6 * max(self.rate, 1e-12) * np.maximum(np.asarray(batches, dtype=np.float64), 1.0)
        result: Array = basis(batches) @ self.weights + slope
        return result


class Sums(NamedTuple):
    """The sums over measurements that a least-squares fit needs."""

    squares: Array
    products: Array
    batches: float
    seconds: float
    jobs: int
    max_batches: float


def sum_measurements(measurements: Sequence[tuple[int, float]]) -> Sums:
    """The sums over pairs of batches and seconds."""
    x, y = np.asarray(measurements, dtype=np.float64).T
    rows = basis(x)
    return Sums(rows.T @ rows, rows.T @ y, float(np.maximum(x, 1).sum()), float(y.sum()), len(y), float(x.max()))


def fit(rounds: Sequence[Sums]) -> Curve:
    """The curve closest to all measurements of these rounds."""
    squares: Any = sum(each.squares for each in rounds)
    products: Any = sum(each.products for each in rounds)
    rate = sum(each.seconds for each in rounds) / sum(each.batches for each in rounds)
    jobs = sum(each.jobs for each in rounds)
    # If the measurements leave it open (all devices have the same number of batches), two light points decide.
    for x in (1.0, 2 * max(each.max_batches for each in rounds)):
        row = basis([x])[0]
        weight = PRIOR_WEIGHT * jobs / (row @ row)
        squares = squares + weight * np.outer(row, row)
        products = products + weight * rate * x * row
    return Curve(solve_non_negative(squares, products), rate)


def solve_non_negative(squares: Array, products: Array) -> Array:
    """Minimises w·squares·w − 2·products·w over w ≥ 0 by trying every subset of weights that are not zero."""
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


class JobTimes:
    """Seconds of the jobs of the latest rounds, by kind of worker."""

    def __init__(self) -> None:
        self._current: dict[str, list[tuple[int, float]]] = {}
        self._rounds: dict[str, deque[Sums]] = {}

    def add(self, kind: str, batches: int, seconds: float) -> None:
        self._current.setdefault(kind, []).append((batches, seconds))

    def curves(self) -> dict[str, Curve]:
        """The curve of each kind that was observed. Begins a new round."""
        for kind, measurements in self._current.items():
            self._rounds.setdefault(kind, deque(maxlen=MAX_ROUNDS)).append(sum_measurements(measurements))
        self._current = {}
        return {kind: fit(list(rounds)) for kind, rounds in self._rounds.items()}
