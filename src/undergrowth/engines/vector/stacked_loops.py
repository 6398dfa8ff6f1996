"""The training loops of a server in stacks, as those of devices."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence

from undergrowth.core import Task
from undergrowth.core.client import Carry, Loop, run_one_by_one
from undergrowth.engines.vector.stack import Begun
from undergrowth.engines.vector.stacked_steps import StackedSteps
from undergrowth.engines.world import Job


class StackedLoops:
    """A `LoopRunner` that computes loops of one kind at once, and others one by one. `chunk`: as in `StackedSteps`."""

    def __init__(self, chunk: int | None) -> None:
        self.chunk = chunk

    def __call__(self, task: Task, loops: Sequence[Loop]) -> list[Carry]:
        if len(loops) < 2:
            return run_one_by_one(task, loops)
        # Not recorded: an objective may hold tensors of this round, which a recorded step would use in the next ones.
        return run_in_stacks(StackedSteps(task, str(loops[0].shard.x.device), self.chunk, record=False), task, loops)


def run_in_stacks(steps: StackedSteps, task: Task, loops: Sequence[Loop]) -> list[Carry]:
    """The carry of each loop after its last step."""
    groups: defaultdict[int, list[Begun]] = defaultdict(list)
    for place, loop in enumerate(loops):
        job = Job("", str(place), loop.down, loop.context)
        name = type(loop.client).__name__
        begun = Begun(job, name, loop.client, loop.shard, {}, loop.carry, loop.steps, prepared=True)
        groups[steps.kind_of(begun)].append(begun)
    if loops:
        loops[0].context.seed_torch(loops[0].shard.x.device)
    carries: dict[int, Carry] = {}
    for kind, group in groups.items():
        group.sort(key=lambda each: -each.count)
        places = [int(each.job.device) for each in group]
        if len(group) > 1 and steps.can_stack(kind, group):
            for chunk, found in steps.compute(kind, group):
                carries |= dict(zip([int(each.job.device) for each in chunk], found, strict=True))
        else:
            carries |= dict(zip(places, run_one_by_one(task, [loops[place] for place in places]), strict=True))
    return [carries[place] for place in range(len(loops))]
