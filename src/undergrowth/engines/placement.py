"""Placement: which worker runs which job, decided for a whole round before it starts.

rr, srr, bu and lb are the policies of Pollen. lpt uses lb's predictions with a better search: the longest job first to
the worker that would finish it first, then moves and swaps between the most loaded worker and others while these bring
the predicted end forward. It starts from the better of that and lb's placement, so its prediction is never worse.

The placement decides which uploads are combined first. rr, srr and bu are pure functions of the jobs. lb and lpt learn
from measured seconds, so with them two equal runs may differ in their last bits; no engine chooses them by default.
"""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from typing import Protocol

import numpy as np

from undergrowth.core import InputError, suggest
from undergrowth.engines.prediction import Array, JobTimes

MAX_TRADES = 200  # moves and swaps per placement
MAX_PARTNERS = 8  # least loaded workers that the most loaded one tries to trade with
TOLERANCE = 1e-3  # relative distance to the lower bound at which the search ends

Assignment = list[list[int]]  # for each worker, the positions of its jobs in the order in which it runs them


class Placement(Protocol):
    """A rule that assigns the jobs of a round to workers."""

    def place(self, batches: Sequence[int], workers: Sequence[str]) -> Assignment:
        """Assigns jobs to workers. `batches`: of each job; `workers`: the kind of each ("cpu", "cuda:0")."""
        ...

    def observe(self, kind: str, batches: int, seconds: float) -> None:
        """Learns from one finished job."""
        ...


class RoundRobin:
    """rr: the i-th job to worker i mod k."""

    def place(self, batches: Sequence[int], workers: Sequence[str]) -> Assignment:
        return [list(range(first, len(batches), len(workers))) for first in range(len(workers))]

    def observe(self, kind: str, batches: int, seconds: float) -> None:
        """This placement does not learn."""


class SortedRoundRobin(RoundRobin):
    """srr: round robin over the jobs sorted by batches, largest first."""

    def place(self, batches: Sequence[int], workers: Sequence[str]) -> Assignment:
        order = largest_first(batches)
        return [order[first :: len(workers)] for first in range(len(workers))]


class BatchUniform(RoundRobin):
    """bu: largest first, each to the worker with the fewest batches."""

    def place(self, batches: Sequence[int], workers: Sequence[str]) -> Assignment:
        times = np.broadcast_to(np.asarray(batches, dtype=np.float64), (len(workers), len(batches)))
        return assign_to_least_loaded(batches, times, range(len(workers)))


class Learned:
    """lb: after a first round of rr, largest first, each to the worker with the least predicted time so far."""

    def __init__(self) -> None:
        self._history = JobTimes()

    def place(self, batches: Sequence[int], workers: Sequence[str]) -> Assignment:
        times = self._predict(batches, workers)
        if times is None:
            return RoundRobin().place(batches, workers)
        return self._search(batches, times)

    def observe(self, kind: str, batches: int, seconds: float) -> None:
        self._history.add(kind, batches, seconds)

    def _predict(self, batches: Sequence[int], workers: Sequence[str]) -> Array | None:
        """Seconds, workers × jobs; None if no job of some kind of worker was observed yet."""
        curves = self._history.curves()
        if not batches or not all(kind in curves for kind in workers):
            return None
        by_kind = {kind: curves[kind].seconds(batches) for kind in dict.fromkeys(workers)}
        return np.stack([by_kind[kind] for kind in workers])

    def _search(self, batches: Sequence[int], times: Array) -> Assignment:
        fastest_first = np.argsort(times[:, int(np.argmax(batches))], kind="stable").tolist()
        return assign_to_least_loaded(batches, times, fastest_first)


class Improved(Learned):
    """lpt: longest job first to the worker that finishes it first, or lb's placement; then local search."""

    def _search(self, batches: Sequence[int], times: Array) -> Assignment:
        starts = (assign_to_first_finished(batches, times), super()._search(batches, times))
        best = min(starts, key=lambda assignment: max(loads(assignment, times)))
        return improve(best, batches, times)


PLACEMENTS: dict[str, type[RoundRobin] | type[Learned]] = {
    "rr": RoundRobin, "srr": SortedRoundRobin, "bu": BatchUniform, "lb": Learned, "lpt": Improved,
}  # fmt: skip


def placement(name: str) -> Placement:
    """The placement that `run.placement` names."""
    if name not in PLACEMENTS:
        raise InputError(f"run.placement '{name}' is not known; {suggest(name, PLACEMENTS)}")
    return PLACEMENTS[name]()


def largest_first(batches: Sequence[int]) -> list[int]:
    """The positions of the jobs, those with most batches first."""
    return sorted(range(len(batches)), key=lambda position: -batches[position])


def assign_to_least_loaded(batches: Sequence[int], times: Array, order: Sequence[int]) -> Assignment:
    """Largest first, each to the worker with the least load; ties go to the first in `order`."""
    assignment: Assignment = [[] for _ in times]
    seconds = times.tolist()
    queue = [(0.0, rank, worker) for rank, worker in enumerate(order)]
    for position in largest_first(batches):
        load, rank, worker = queue[0]
        assignment[worker].append(position)
        heapq.heapreplace(queue, (load + seconds[worker][position], rank, worker))
    return assignment


def assign_to_first_finished(batches: Sequence[int], times: Array) -> Assignment:
    """Largest first, each to the worker that would finish it first."""
    assignment: Assignment = [[] for _ in times]
    load = np.zeros(len(times))
    for position in largest_first(batches):
        worker = int(np.argmin(load + times[:, position]))
        assignment[worker].append(position)
        load[worker] += times[worker, position]
    return assignment


def loads(assignment: Assignment, times: Array) -> list[float]:
    """Seconds that each worker is busy."""
    return [float(times[worker, positions].sum()) for worker, positions in enumerate(assignment)]


def improve(assignment: Assignment, batches: Sequence[int], times: Array) -> Assignment:
    """Moves and swaps jobs between the most loaded worker and others while that lowers the greater of their loads.

    No load ever rises above the greatest one, so the result cannot end later than `assignment`.
    """
    assignment = [list(positions) for positions in assignment]
    load = loads(assignment, times)
    goal = (1 + TOLERANCE) * lower_bound(times)
    for _ in range(MAX_TRADES):
        worst = max(range(len(load)), key=load.__getitem__)
        if load[worst] <= goal:
            break
        others = sorted((worker for worker in range(len(load)) if worker != worst), key=load.__getitem__)
        trades = [_best_trade(worst, other, assignment, batches, times, load) for other in others[:MAX_PARTNERS]]
        lowest, other, given, taken = min(trades, default=(load[worst], worst, -1, -1))
        if not lowest < load[worst]:
            break
        assignment[worst].remove(given)
        assignment[other].append(given)
        if taken >= 0:
            assignment[other].remove(taken)
            assignment[worst].append(taken)
        for changed in (worst, other):  # summed again, because differences would accumulate rounding errors
            load[changed] = float(times[changed, assignment[changed]].sum())
    return [sorted(positions, key=lambda position: -batches[position]) for positions in assignment]


def _best_trade(
    giver: int, other: int, assignment: Assignment, batches: Sequence[int], times: Array, load: Sequence[float]
) -> tuple[float, int, int, int]:
    """The best move or swap of two workers: the greater load after it, the other worker, given, taken (−1: none)."""
    # Jobs with the same number of batches are interchangeable, so one of each number is enough.
    gives = list({batches[position]: position for position in assignment[giver]}.values())
    takes = list({batches[position]: position for position in assignment[other]}.values())
    if not gives:
        return load[giver], other, -1, -1
    giver_takes = np.concatenate([[0.0], times[giver, takes]])
    other_loses = np.concatenate([[0.0], times[other, takes]])
    load_giver = load[giver] - times[giver, gives][:, None] + giver_takes
    load_other = load[other] + times[other, gives][:, None] - other_loses
    greater = np.maximum(load_giver, load_other)
    row, column = divmod(int(greater.argmin()), greater.shape[1])
    return float(greater[row, column]), other, gives[row], takes[column - 1] if column else -1


def lower_bound(times: Array) -> float:
    """A time that no placement can beat, from the seconds of each job on each worker (workers × jobs).

    No job takes less than on its fastest worker. And for any weights p of the workers that sum to 1, the last worker
    finishes at Σ p·load ≥ Σ_jobs min p·time or later. With weights proportional to speed this is the total time divided
    by the number of workers if they are equal, and by their summed speeds if they differ by a factor.
    """
    if not times.size:
        return 0.0
    totals = np.maximum(times.sum(axis=1), 1e-300)
    weights = (1 / totals) / (1 / totals).sum()
    return float(max(times.min(axis=0).max(), (weights[:, None] * times).min(axis=0).sum()))


def measure_placement(workers: Sequence[str], timed: Sequence[tuple[str, float, int]], longest: float) -> float:
    """How much later than the lower bound a round ended, relative to it, from what its jobs took.

    `workers`: their kinds; `timed`: kind of worker, seconds and batches of each job; `longest`: the greatest load.
    """
    # On another kind of worker a job is taken to differ as much as that kind's seconds per batch.
    rates: dict[str, float] = {}
    for kind in {kind for kind, _, _ in timed}:
        of_kind = [(seconds, count) for other, seconds, count in timed if other == kind]
        rates[kind] = sum(seconds for seconds, _ in of_kind) / sum(count for _, count in of_kind)
    speeds = np.array([rates[kind] for kind in workers if kind in rates])
    return longest / lower_bound(np.outer(speeds, [seconds / rates[kind] for kind, seconds, _ in timed])) - 1
