"""Which device gets which sample: one function a rule, from labels to the number of each sample's owner."""

from __future__ import annotations

import numpy as np

NOBODY = -1


def iid(labels: np.ndarray, clients: int, generator: np.random.Generator) -> np.ndarray:
    """Shuffled and dealt out evenly: sizes differ by at most one."""
    return generator.permutation(np.arange(len(labels)) % clients)


def quantity(labels: np.ndarray, clients: int, generator: np.random.Generator, sigma: float) -> np.ndarray:
    """Log-normal sizes, at least one sample each; labels as in the whole set."""
    spread = generator.normal(size=clients) * sigma
    weights = np.exp(spread - spread.max())  # the largest is 1, so that a large sigma cannot overflow
    ideal = weights / weights.sum() * (len(labels) - clients)
    sizes = 1 + np.floor(ideal).astype(np.int64)
    rest = len(labels) - int(sizes.sum())
    sizes[np.argsort(np.floor(ideal) - ideal, kind="stable")[:rest]] += 1
    return generator.permutation(np.repeat(np.arange(clients), sizes))


def dirichlet(labels: np.ndarray, clients: int, generator: np.random.Generator, alpha: float) -> np.ndarray:
    """Each class is cut into proportions over the devices drawn from Dir(alpha): small alpha, few devices a class."""
    owner = np.full(len(labels), NOBODY)
    for label in np.unique(labels):
        members = generator.permutation(np.flatnonzero(labels == label))
        # Beyond the cap shares are even to twelve digits, and much beyond it numpy's own sums overflow.
        proportions = generator.dirichlet(np.full(clients, min(alpha, 1e24)))
        cuts = np.minimum(np.cumsum(proportions) * len(members), len(members)).astype(np.int64)
        cuts[-1] = len(members)  # the sum of proportions may fall short of 1 by a rounding error
        owner[members] = np.repeat(np.arange(clients), np.diff(cuts, prepend=0))
    return owner


def classes(labels: np.ndarray, clients: int, generator: np.random.Generator, held: int) -> np.ndarray:
    """Every device holds at most `held` classes, each class being shared evenly by its holders.

    Large classes get more holders, so that devices hold about as much. With fewer places (clients × held) than
    classes, some classes have no holder and their samples belong to nobody.
    """
    present, sizes = np.unique(labels, return_counts=True)
    held = min(held, len(present))
    holders = _deal(_places(sizes, clients, clients * held, generator), clients, held, generator)
    owner = np.full(len(labels), NOBODY)
    for column, label in enumerate(present):
        holding = generator.permutation(np.flatnonzero(holders[:, column]))
        if holding.size:
            members = generator.permutation(np.flatnonzero(labels == label))
            owner[members] = holding[np.arange(len(members)) % len(holding)]
    return owner


def _places(sizes: np.ndarray, clients: int, total: int, generator: np.random.Generator) -> np.ndarray:
    """How many holders each class gets: at least one, at most all, in proportion to its size (Adams's method)."""
    if total <= len(sizes):
        chosen = np.zeros(len(sizes), dtype=np.int64)
        chosen[generator.permutation(len(sizes))[:total]] = 1
        return chosen
    low, high = 0.0, float(sizes.max())  # samples a place; at `high`, every class has one holder
    for _ in range(100):
        middle = (low + high) / 2
        if middle > 0 and np.clip(np.ceil(sizes / middle), 1, clients).sum() <= total:
            high = middle
        else:
            low = middle
    places = np.clip(np.ceil(sizes / high), 1, clients).astype(np.int64)
    while places.sum() < total:  # only classes that tie at the border are left
        load = np.where(places < clients, sizes / places, -1.0)
        places[generator.choice(np.flatnonzero(load == load.max()))] += 1
    return places


def _deal(places: np.ndarray, clients: int, held: int, generator: np.random.Generator) -> np.ndarray:
    """Devices × classes: who holds what. Every device draws `held` different classes at random.

    A class with as many places left as there are devices left must be drawn by each of them, or a place would
    stay empty.
    """
    left = places.copy()
    # The smallest of exponential draws divided by weights is a draw without replacement by weight.
    draws = generator.exponential(size=(clients, len(places)))
    holders = np.zeros((clients, len(places)), dtype=bool)
    for device in range(clients):
        key = draws[device] / np.maximum(left, 1)
        key[left == clients - device] = -1.0
        key[left == 0] = np.inf
        drawn = np.argsort(key, kind="stable")[:held]
        drawn = drawn[left[drawn] > 0]
        holders[device, drawn] = True
        left[drawn] -= 1
    return holders
