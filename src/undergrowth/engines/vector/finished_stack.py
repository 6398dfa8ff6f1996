"""Jobs of a stack that have finished. Their uploads are checked together, as late as possible on a GPU."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

import torch

from undergrowth.core import Packet, are_finite, find_non_finite
from undergrowth.engines.jobs import FinishedJob
from undergrowth.engines.world import Job


class FinishedStack:
    """Starts checking at once whether all values are finite, and reads the answer when the jobs are iterated."""

    def __init__(self, jobs: Sequence[Job], finished: Sequence[FinishedJob]) -> None:
        self.jobs, self.finished = jobs, finished
        # The tensors of clients are views of stacks, and checking a stack checks all of them.
        values = [value for one in finished for value in one.up.tensors.values()]
        wholes = [value if value._base is None else value._base for value in values]
        stacks = {id(whole): whole for whole in wholes}.values()
        self._stacks = [stack for stack in stacks if stack.is_floating_point() and stack.numel()]
        self._on_gpu = bool(self._stacks) and self._stacks[0].is_cuda
        if self._on_gpu:
            # The largest magnitude is finite exactly if all values are.
            largest = torch.stack([value.float() for value in torch._foreach_norm(self._stacks, float("inf"))])
            self._all_finite = torch.isfinite(largest).all().to("cpu", non_blocking=True)
            self._event = torch.cuda.Event()
            self._event.record()

    @property
    def available(self) -> bool:
        """Whether iterating would not have to wait for the GPU."""
        return not self._on_gpu or self._event.query()

    def __iter__(self) -> Iterator[tuple[Job, FinishedJob]]:
        """The jobs in their order; those with values that are not finite have a `problem`."""
        all_finite = self._is_finite()
        for job, one in zip(self.jobs, self.finished, strict=True):
            problem = find_non_finite(Packet({}, one.up.scalars) if all_finite else one.up)
            yield job, one if problem is None else replace(one, problem=problem)

    def _is_finite(self) -> bool:
        if self._on_gpu:
            self._event.synchronize()
            return bool(self._all_finite)
        return all(are_finite(self._stacks))
