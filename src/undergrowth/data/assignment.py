"""The partition rules that need no Dirichlet distribution.

Each function maps the labels to the number of the device that owns each sample.
"""

from __future__ import annotations

import numpy as np

UNASSIGNED = -1


def iid(labels: np.ndarray, clients: int, generator: np.random.Generator) -> np.ndarray:
    """Random samples for every device; sizes differ by at most one."""
    return generator.permutation(np.arange(len(labels)) % clients)


def quantity(labels: np.ndarray, clients: int, generator: np.random.Generator, sigma: float) -> np.ndarray:
    """Log-normal sizes with at least one sample per device; the label distribution is that of the whole set."""
    exponents = generator.normal(size=clients) * sigma
    weights = np.exp(exponents - exponents.max())  # at most 1, so that a large sigma cannot overflow
    ideal = weights / weights.sum() * (len(labels) - clients)
    sizes = 1 + np.floor(ideal).astype(np.int64)
    rest = len(labels) - int(sizes.sum())
    sizes[np.argsort(np.floor(ideal) - ideal, kind="stable")[:rest]] += 1
    return generator.permutation(np.repeat(np.arange(clients), sizes))


def classes(labels: np.ndarray, clients: int, generator: np.random.Generator, held: int) -> np.ndarray:
    """Gives every device samples of at most `held` classes and divides each class evenly among its holders.

    Large classes get more holders, so that devices have about the same number of samples. If clients × held is smaller
    than the number of classes, some classes have no holder and their samples stay unassigned.
    """
    present, sizes = np.unique(labels, return_counts=True)
    held = min(held, len(present))
    holders = _assign_classes(_holder_counts(sizes, clients, clients * held, generator), clients, held, generator)
    owner = np.full(len(labels), UNASSIGNED)
    for column, label in enumerate(present):
        holding = generator.permutation(np.flatnonzero(holders[:, column]))
        if holding.size:
            members = generator.permutation(np.flatnonzero(labels == label))
            owner[members] = holding[np.arange(len(members)) % len(holding)]
    return owner


def _holder_counts(sizes: np.ndarray, clients: int, total: int, generator: np.random.Generator) -> np.ndarray:
    """The number of holders of each class, in proportion to its size (Adams's method), from 1 to `clients`."""
    if total <= len(sizes):
        chosen = np.zeros(len(sizes), dtype=np.int64)
        chosen[generator.permutation(len(sizes))[:total]] = 1
        return chosen
    low, high = 0.0, float(sizes.max())  # samples per holder; at `high` every class has one holder
    for _ in range(100):
        middle = (low + high) / 2
        if middle > 0 and np.clip(np.ceil(sizes / middle), 1, clients).sum() <= total:
            high = middle
        else:
            low = middle
    counts = np.clip(np.ceil(sizes / high), 1, clients).astype(np.int64)
    while counts.sum() < total:  # only classes that tie at the threshold remain
        load = np.where(counts < clients, sizes / counts, -1.0)
        counts[generator.choice(np.flatnonzero(load == load.max()))] += 1
    return counts


def _assign_classes(counts: np.ndarray, clients: int, held: int, generator: np.random.Generator) -> np.ndarray:
    """A Boolean table, devices × classes: every device draws `held` different classes, `counts` in total per class.

    A class that still needs as many holders as there are devices left must be drawn by each of them.
    """
    left = counts.copy()
    # Sorting exponential draws divided by weights is weighted sampling without replacement.
    draws = generator.exponential(size=(clients, len(counts)))
    holders = np.zeros((clients, len(counts)), dtype=bool)
    for device in range(clients):
        key = draws[device] / np.maximum(left, 1)
        key[left == clients - device] = -1.0
        key[left == 0] = np.inf
        drawn = np.argsort(key, kind="stable")[:held]
        drawn = drawn[left[drawn] > 0]
        holders[device, drawn] = True
        left[drawn] -= 1
    return holders
