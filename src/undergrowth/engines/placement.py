"""Placement: which worker does which job, settled for a whole round before it starts.

rr, srr, bu and lb are those of Pollen. lpt is lb's prediction with a better search: the longest job first to the worker
that would be done with it first, then moves and swaps between the most loaded worker and others while the predicted end
comes earlier. It starts from the better of that and lb's own placement, so it is never predicted to be worse than lb.
"""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from typing import Protocol

import numpy as np

from undergrowth.core import InputError, nearest
from undergrowth.engines.prediction import Array, Memory

MOST_CHANGES = 200  # of a placement that is being improved
PARTNERS = 8  # least loaded workers that the most loaded one tries to trade with
GOOD_ENOUGH = 1e-3  # distance to the lower bound at which improving ends

Shares = list[list[int]]  # for each worker, the positions of its jobs in the order in which to do them


class Placement(Protocol):
    def place(self, batches: Sequence[int], workers: Sequence[str]) -> Shares:
        """`batches` of every job and the kinds of the workers ("cpu", "cuda:0") to the positions of each one's jobs."""
        ...

    def observe(self, kind: str, batches: int, seconds: float) -> None:
        """One finished job."""
        ...


class RoundRobin:
    """rr: the i-th job to worker i mod k."""

    def place(self, batches: Sequence[int], workers: Sequence[str]) -> Shares:
        return [list(range(first, len(batches), len(workers))) for first in range(len(workers))]

    def observe(self, kind: str, batches: int, seconds: float) -> None:
        """It learns nothing."""


class SortedRoundRobin(RoundRobin):
    """srr: the same after sorting, largest first."""

    def place(self, batches: Sequence[int], workers: Sequence[str]) -> Shares:
        order = largest_first(batches)
        return [order[first :: len(workers)] for first in range(len(workers))]


class BatchUniform(RoundRobin):
    """bu: largest first, each to the worker with the fewest batches."""

    def place(self, batches: Sequence[int], workers: Sequence[str]) -> Shares:
        times = np.broadcast_to(np.asarray(batches, dtype=np.float64), (len(workers), len(batches)))
        return to_least_loaded(batches, times, range(len(workers)))


class Learned:
    """lb: after a first round of rr, largest first, each to the worker with the least predicted time so far."""

    def __init__(self) -> None:
        self._memory = Memory()

    def place(self, batches: Sequence[int], workers: Sequence[str]) -> Shares:
        times = self._predicted(batches, workers)
        if times is None:
            return RoundRobin().place(batches, workers)
        return self._search(batches, times)

    def observe(self, kind: str, batches: int, seconds: float) -> None:
        self._memory.add(kind, batches, seconds)

    def _predicted(self, batches: Sequence[int], workers: Sequence[str]) -> Array | None:
        """Seconds, workers × jobs; None: nothing is known of some kind yet."""
        curves = self._memory.curves()
        if not batches or not all(kind in curves for kind in workers):
            return None
        by_kind = {kind: curves[kind].seconds(batches) for kind in dict.fromkeys(workers)}
        return np.stack([by_kind[kind] for kind in workers])

    def _search(self, batches: Sequence[int], times: Array) -> Shares:
        fastest_first = np.argsort(times[:, int(np.argmax(batches))], kind="stable").tolist()
        return to_least_loaded(batches, times, fastest_first)


class Improved(Learned):
    """lpt: longest job first to the worker that ends it first, or lb's placement; then improved while that helps."""

    def _search(self, batches: Sequence[int], times: Array) -> Shares:
        starts = (to_first_done(batches, times), super()._search(batches, times))
        best = min(starts, key=lambda shares: max(loads(shares, times)))
        return improved(best, batches, times)


PLACEMENTS: dict[str, type[RoundRobin] | type[Learned]] = {
    "rr": RoundRobin, "srr": SortedRoundRobin, "bu": BatchUniform, "lb": Learned, "lpt": Improved,
}  # fmt: skip


def placement(name: str) -> Placement:
    if name not in PLACEMENTS:
        raise InputError(f"run.placement '{name}' is not known; {nearest(name, PLACEMENTS)}")
    return PLACEMENTS[name]()


def largest_first(batches: Sequence[int]) -> list[int]:
    return sorted(range(len(batches)), key=lambda position: -batches[position])


def to_least_loaded(batches: Sequence[int], times: Array, order: Sequence[int]) -> Shares:
    """Largest first, each to the worker with the least load; of equals, the first in `order`."""
    shares: Shares = [[] for _ in times]
    seconds = times.tolist()
    queue = [(0.0, rank, worker) for rank, worker in enumerate(order)]
    for position in largest_first(batches):
        load, rank, worker = queue[0]
        shares[worker].append(position)
        heapq.heapreplace(queue, (load + seconds[worker][position], rank, worker))
    return shares


def to_first_done(batches: Sequence[int], times: Array) -> Shares:
    """Largest first, each to the worker that would be done with it first."""
    shares: Shares = [[] for _ in times]
    load = np.zeros(len(times))
    for position in largest_first(batches):
        worker = int(np.argmin(load + times[:, position]))
        shares[worker].append(position)
        load[worker] += times[worker, position]
    return shares


def loads(shares: Shares, times: Array) -> list[float]:
    return [float(times[worker, share].sum()) for worker, share in enumerate(shares)]


def improved(shares: Shares, batches: Sequence[int], times: Array) -> Shares:
    """Moves and swaps jobs between the most loaded worker and others while that lowers the greater of their loads.

    No load ever rises above the one that was the greatest, so the result cannot end later than it would have.
    """
    shares = [list(share) for share in shares]
    load = loads(shares, times)
    goal = (1 + GOOD_ENOUGH) * lower_bound(times)
    for _ in range(MOST_CHANGES):
        worst = max(range(len(load)), key=load.__getitem__)
        if load[worst] <= goal:
            break
        others = sorted((worker for worker in range(len(load)) if worker != worst), key=load.__getitem__)
        trades = [_trade(worst, other, shares, batches, times, load) for other in others[:PARTNERS]]
        lowest, other, given, taken = min(trades, default=(load[worst], worst, -1, -1))
        if not lowest < load[worst]:
            break
        shares[worst].remove(given)
        shares[other].append(given)
        if taken >= 0:
            shares[other].remove(taken)
            shares[worst].append(taken)
        for changed in (worst, other):  # summed afresh: differences would gather rounding
            load[changed] = float(times[changed, shares[changed]].sum())
    return [sorted(share, key=lambda position: -batches[position]) for share in shares]


def _trade(
    giver: int, other: int, shares: Shares, batches: Sequence[int], times: Array, load: Sequence[float]
) -> tuple[float, int, int, int]:
    """The best move or swap of two workers: the greater load after it, the other worker, given, taken (−1: nothing)."""
    # Jobs of equally many batches are alike, so one of each number is enough.
    gives = list({batches[position]: position for position in shares[giver]}.values())
    takes = list({batches[position]: position for position in shares[other]}.values())
    if not gives:
        return load[giver], other, -1, -1
    taken_here = np.concatenate([[0.0], times[giver, takes]])
    taken_there = np.concatenate([[0.0], times[other, takes]])
    here = load[giver] - times[giver, gives][:, None] + taken_here
    there = load[other] + times[other, gives][:, None] - taken_there
    greater = np.maximum(here, there)
    row, column = divmod(int(greater.argmin()), greater.shape[1])
    return float(greater[row, column]), other, gives[row], takes[column - 1] if column else -1


def lower_bound(times: Array) -> float:
    """A time that no placement can beat, from the seconds of each job on each worker (workers × jobs).

    No job can take less than where it is fastest. And for any shares p of the workers that add up to 1, the last finish
    is at least Σ p·load ≥ Σ_jobs min p·time. Shares proportional to speed make that the total over k for equal workers,
    and the total over the summed speeds for workers that differ by a factor.
    """
    if not times.size:
        return 0.0
    totals = np.maximum(times.sum(axis=1), 1e-300)
    shares = (1 / totals) / (1 / totals).sum()
    return float(max(times.min(axis=0).max(), (shares[:, None] * times).min(axis=0).sum()))
