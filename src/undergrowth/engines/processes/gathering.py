"""Gathering: from what the workers have done to the outcomes that the serial engine would give.

And what the record says of how well the work was placed.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import numpy as np

from undergrowth.core import Packet
from undergrowth.engines.placement import lower_bound
from undergrowth.engines.processes.share import Result, Share
from undergrowth.engines.world import Done, Folding, Job, Outcome, World

Again = Callable[[Sequence[Job]], Sequence[Result]]


def results_of(shares: Sequence[Share]) -> dict[int, Result]:
    return {position: result for share in shares for position, result in share.results.items()}


def gather(world: World, jobs: Sequence[Job], shares: Sequence[Share], again: Again) -> list[Outcome]:
    """One outcome for each upload that stands alone and for each node whose uploads were combined.

    Also puts away what devices keep. Everything in the order of the jobs, whoever did them.
    `again` does jobs once more without combining anything.
    """
    results = results_of(shares)
    folded: list[Outcome] = []
    for node in dict.fromkeys(job.node for job in jobs if job.fold):
        mine = [position for position, job in enumerate(jobs) if job.fold and job.node == node]
        total, fits = _merged(world, node, shares)
        if not fits or any(results[position].record.uncombined for position in mine):
            # Which one of two uploads that do not go together is refused hangs on which came first.
            redone = again([jobs[position] for position in mine])
            folded.append(_one_by_one(world, node, jobs, mine, redone, results))
        else:
            folded.append(_together(node, jobs, mine, total, results))
    single: list[Outcome] = []
    for position, job in enumerate(jobs):
        record, upload = results[position].record, results[position].upload
        if record.problem is None:
            world.states.put(job.device, *results[position].kept(world.states, job.device))
        if job.fold:
            continue
        if record.problem is None:
            single.append(Outcome(job.node, upload, {job.device: record.size}))
        else:
            single.append(Outcome(job.node, None, refused={job.device: record.problem}))
    return single + folded


def _merged(world: World, node: str, shares: Sequence[Share]) -> tuple[Packet | None, bool]:
    """The workers' totals as one, and whether they go together."""
    reducer = world.servers[node].reducer
    total: Packet | None = None
    for share in shares:
        part = share.total(node, reducer)
        if part is not None:
            try:
                total = part if total is None else reducer.merge(total, part)
            except (ValueError, KeyError):
                return None, False
    return total, True


def _together(
    node: str, jobs: Sequence[Job], mine: Sequence[int], total: Packet | None, results: Mapping[int, Result]
) -> Outcome:
    records = {jobs[position].device: results[position].record for position in mine}
    return Outcome(
        node,
        total,
        {device: record.size for device, record in records.items() if record.problem is None},
        {device: record.problem for device, record in records.items() if record.problem is not None},
        {device: record.scalars for device, record in records.items() if record.problem is None},
        folded=True,
    )


def _one_by_one(
    world: World,
    node: str,
    jobs: Sequence[Job],
    mine: Sequence[int],
    redone: Sequence[Result],
    results: dict[int, Result],
) -> Outcome:
    """Combines uploads in the order of their jobs; puts what came of them in the place of the results before."""
    sums = Folding(node, world.servers[node])
    for position, result in zip(mine, redone):
        record, device = result.record, jobs[position].device
        done = Done(result.upload or Packet(), record.size, {}, {}, record.problem)
        sums.add(device, done)
        problem = sums.refused.get(device)
        results[position] = result._replace(record=record._replace(problem=problem), upload=None)
    return sums.outcome()


def quality(kinds: Sequence[str], shares: Mapping[int, Share], batches: Sequence[int]) -> dict[str, float]:
    """What the record says of a round's placement, from what its jobs took."""
    done = [
        (kinds[number], result.record.seconds, batches[position])
        for number, share in shares.items()
        for position, result in share.results.items()
    ]
    # What a job would have taken on another kind of worker: as much more as that kind takes for a batch.
    rates: dict[str, float] = {}
    for kind in {kind for kind, _, _ in done}:
        mine = [(seconds, count) for other, seconds, count in done if other == kind]
        rates[kind] = sum(seconds for seconds, _ in mine) / sum(count for _, count in mine)
    speeds = np.array([rates[kind] for kind in kinds if kind in rates])
    bound = lower_bound(np.outer(speeds, [seconds / rates[kind] for kind, seconds, _ in done]))
    finished = [share.finished for share in shares.values()]
    return {
        "workers_timedelta": max(finished) - min(finished),
        "placement_excess": max(share.seconds for share in shares.values()) / bound - 1,
        "workers": float(len(kinds)),
    }
