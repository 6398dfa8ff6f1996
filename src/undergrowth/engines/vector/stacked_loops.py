"""The training loops of a server in stacks, as those of devices."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import replace

from undergrowth.core import Carry, LoopClient, Task
from undergrowth.core.client import Loop, run_one_by_one
from undergrowth.engines.vector.recording import RecordingMemory
from undergrowth.engines.vector.stack import Begun
from undergrowth.engines.vector.stacked_steps import StackedSteps
from undergrowth.engines.world import Job

MAX_KNOWN = 16  # kinds of training whose recordings are kept


class StackedLoops:
    """Computes loops of one kind at once, and others one by one; see `Task.run_loops`.

    It remembers what it has learned in earlier calls with an equal client and task, such as recorded steps. A client
    that holds tensors of one round is not equal to that of the next. `chunk` and `memory`: as in `StackedSteps`.
    """

    def __init__(self, chunk: int | None, memory: RecordingMemory | None = None) -> None:
        self.chunk = chunk
        self.memory = memory or RecordingMemory()
        self._known: list[tuple[LoopClient, Task, StackedSteps]] = []  # last used last

    def __call__(self, task: Task, loops: Sequence[Loop]) -> list[Carry]:
        if not loops or not all(_equal(loop.client, loops[0].client) for loop in loops):
            return run_one_by_one(task, loops)
        return run_in_stacks(self._steps_for(task, loops[0]), task, loops)

    def close(self) -> None:
        """Forgets everything that it has learned."""
        for _, _, steps in self._known:
            steps.close()
        self._known = []

    def _steps_for(self, task: Task, loop: Loop) -> StackedSteps:
        shown = replace(task, public=None)  # a step sees what is in its batch
        for place, (client, known, _) in enumerate(self._known):
            if _equal(client, loop.client) and _equal(known, shown):
                found = self._known.pop(place)
                break
        else:
            found = loop.client, shown, StackedSteps(task, str(loop.shard.x.device), self.chunk, self.memory)
        self._known = [*self._known[1 - MAX_KNOWN :], found]
        found[2].start_round()
        return found[2]


def _equal(one: object, other: object) -> bool:
    try:
        return bool(one == other)
    except (RuntimeError, ValueError):  # tensors or arrays, whose comparison has many answers
        return False


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
        # Even one loop alone, if its steps may be recorded.
        if (len(group) > 1 or steps.records) and steps.can_stack(kind, group):
            for chunk, found in steps.compute(kind, group):
                carries |= dict(zip([int(each.job.device) for each in chunk], found, strict=True))
        else:
            carries |= dict(zip(places, run_one_by_one(task, [loops[place] for place in places]), strict=True))
    return [carries[place] for place in range(len(loops))]
