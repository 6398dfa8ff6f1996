"""The partition rules that draw from a Dirichlet distribution.

Each function maps the labels to the number of the device that owns each sample.

`uncapped`, `capped` and `fedml` divide every class over the devices; `equal` draws the classes of every device. So
ALPHA does not mean the same in all of them: it is the concentration for each device in the first three, and for all
classes of a device together in `equal`.
"""

from __future__ import annotations

import heapq

import numpy as np

from undergrowth.core import InputError
from undergrowth.data.assignment import UNASSIGNED

MIN_SAMPLES = 10  # that `capped` and `fedml` give every device if there are as many
MAX_DRAWS = 200  # before `capped` completes the best draw and `fedml` gives up


def uncapped(labels: np.ndarray, clients: int, generator: np.random.Generator, alpha: float) -> np.ndarray:
    """Divides each class over the devices in proportions drawn from Dir(alpha).

    The smaller `alpha` is, the fewer devices hold samples of a class.
    """
    owner = np.full(len(labels), UNASSIGNED)
    for label in np.unique(labels):
        members = generator.permutation(np.flatnonzero(labels == label))
        proportions = _draw(generator, np.full(clients, alpha))
        owner[members] = np.repeat(np.arange(clients), _split(len(members), proportions))
    return owner


def capped(labels: np.ndarray, clients: int, generator: np.random.Generator, alpha: float) -> np.ndarray:
    """Divides each class, in the order of their numbers, over the devices that hold fewer than N/n samples so far.

    This is the rule of FedML (He et al., 2020). A device that has reached N/n samples gets none of the later classes.
    The proportions of the others are drawn from Dir(alpha). If a device ends with fewer than ten samples, everything is
    drawn again. FedML repeats this for ever; here, after `MAX_DRAWS` draws, the one in which the fewest samples are
    missing is completed: devices below the minimum take samples from the largest devices. The minimum is N // n if that
    is less than ten. The code of Lin et al., 2020, has the same limit, but within random groups of ten devices and with
    half of N/n as the minimum, and cuts the result into equal parts.
    """
    _, sizes = np.unique(labels, return_counts=True)
    least = min(MIN_SAMPLES, len(labels) // clients)
    best, fewest = np.empty(0), np.inf
    for _ in range(MAX_DRAWS):
        counts = _draw_capped(sizes, clients, generator, alpha)
        missing = np.maximum(least - counts.sum(axis=1), 0).sum()
        if missing < fewest:
            best, fewest = counts, missing
        if not missing:
            break
    _complete(best, least)
    return _assign(labels, best, generator)


def fedml(labels: np.ndarray, clients: int, seed: int, alpha: float) -> np.ndarray:
    """The partition that FedML's loader makes after `np.random.seed(seed)`: one of the rule `capped`.

    It has the same samples of every class on the same devices as in programs that are built on FedML, so that their
    results can be compared partition by partition. FedML draws for ever until every device has ten samples.
    """
    generator = np.random.RandomState(seed % 2**32)
    least, limit = min(MIN_SAMPLES, len(labels) // clients), len(labels) / clients
    for _ in range(MAX_DRAWS):
        owner, held = np.full(len(labels), UNASSIGNED), np.zeros(clients, dtype=np.int64)
        for label in np.unique(labels):
            members = np.flatnonzero(labels == label)
            generator.shuffle(members)
            proportions = generator.dirichlet(np.repeat(alpha, clients)) * (held < limit)
            if not proportions.sum() > 0:  # rounded to zero, but for devices that have reached the limit
                break
            cuts = (np.cumsum(proportions / proportions.sum()) * len(members)).astype(int)[:-1]
            parts = np.split(members, cuts)
            owner[members] = np.repeat(np.arange(clients), list(map(len, parts)))
            held += list(map(len, parts))
        if held.sum() == len(labels) and held.min() >= least:
            return owner
    raise InputError(
        f"partition 'dirichlet:{alpha:g}:fedml': none of the first {MAX_DRAWS} draws gives each of {clients} devices "
        f"{least} samples; dirichlet:{alpha:g}:capped completes such a draw"
    )


def equal(labels: np.ndarray, clients: int, generator: np.random.Generator, alpha: float) -> np.ndarray:
    """Gives every device N // n samples, with class probabilities drawn from Dir(alpha × class frequencies).

    This is the rule of Hsu et al., 2019. One device after the other draws its samples without replacement. When a class
    is exhausted, the probabilities of the others are scaled to sum to 1. The last N mod n samples have no owner.
    """
    _, left = np.unique(labels, return_counts=True)
    concentration = alpha * left / len(labels)
    counts = np.zeros((clients, len(left)), dtype=np.int64)
    for device in counts:  # a row of the table
        chances = _draw(generator, concentration)
        while missing := len(labels) // clients - device.sum():
            available = left > 0
            chances = chances * available
            if not chances.any():  # all probabilities of the remaining classes were rounded to zero
                chances[available] = _draw(generator, concentration[available])
            # Draws of exhausted classes are drawn again, which is the same as scaling the other probabilities.
            taken = np.minimum(generator.multinomial(missing, chances / chances.sum()), left)
            device += taken
            left -= taken
    return _assign(labels, counts, generator)


def _draw(generator: np.random.Generator, concentration: np.ndarray) -> np.ndarray:
    # Beyond these limits the distribution no longer changes, and numpy's sums would overflow or become zero.
    return generator.dirichlet(np.clip(concentration, 1e-300, 1e24))


def _split(count: int, proportions: np.ndarray) -> np.ndarray:
    """`count` as a sum of whole numbers in these proportions."""
    cuts = np.minimum(np.cumsum(proportions) * count, count).astype(np.int64)
    cuts[-1] = count  # the proportions may sum to slightly less than 1
    return np.diff(cuts, prepend=0)


def _draw_capped(sizes: np.ndarray, clients: int, generator: np.random.Generator, alpha: float) -> np.ndarray:
    """A table devices × classes with the number of samples."""
    counts = np.zeros((clients, len(sizes)), dtype=np.int64)
    for column, size in enumerate(sizes):
        # FedML draws for all devices, sets the proportions of the full ones to zero and scales the others to sum to 1.
        # What remains is distributed like a draw for the others alone, which also works if all others are zero.
        below = np.flatnonzero(counts.sum(axis=1) * clients < sizes.sum())
        counts[below, column] = _split(size, _draw(generator, np.full(len(below), alpha)))
    return counts


def _complete(counts: np.ndarray, least: int) -> None:
    """Moves samples from the largest devices, from their largest class, until every device has `least`."""
    held = counts.sum(axis=1)
    largest = [(-size, device) for device, size in enumerate(held) if size > least]
    heapq.heapify(largest)
    for device in np.flatnonzero(held < least):
        for _ in range(least - held[device]):
            size, donor = largest[0]
            label = counts[donor].argmax()
            counts[donor, label] -= 1
            counts[device, label] += 1
            heapq.heapreplace(largest, (size + 1, donor))


def _assign(labels: np.ndarray, counts: np.ndarray, generator: np.random.Generator) -> np.ndarray:
    """The owners of random samples, as many of each class as the table devices × classes says."""
    owner = np.full(len(labels), UNASSIGNED)
    for column, label in enumerate(np.unique(labels)):
        owners = np.repeat(np.arange(len(counts)), counts[:, column])
        owner[generator.permutation(np.flatnonzero(labels == label))[: len(owners)]] = owners
    return owner
