"""Jobs that a stack has ended. Their uploads are looked at together, and a GPU is waited for as late as can be."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch

from undergrowth.core import Packet, finite, not_finite
from undergrowth.engines.world import Done, Job


class Ended:
    """Asks at once whether all values are finite, and reads the answer when the uploads are handed on."""

    def __init__(self, jobs: Sequence[Job], done: Sequence[Done]) -> None:
        self.jobs, self.done = jobs, done
        # Clients' tensors are parts of stacks, and what is true of a stack is true of its parts.
        values = [value for one in done for value in one.up.tensors.values()]
        wholes = [value if value._base is None else value._base for value in values]
        stacks = {id(whole): whole for whole in wholes}.values()
        self._stacks = [stack for stack in stacks if stack.is_floating_point() and stack.numel()]
        self._asked = bool(self._stacks) and self._stacks[0].is_cuda
        if self._asked:
            # The largest magnitude is not finite where any value is not.
            largest = torch.stack([value.float() for value in torch._foreach_norm(self._stacks, float("inf"))])
            self._answer = torch.isfinite(largest).all().to("cpu", non_blocking=True)
            self._there = torch.cuda.Event()
            self._there.record()

    @property
    def there(self) -> bool:
        """Whether nobody would have to wait for them."""
        return not self._asked or self._there.query()

    def __iter__(self) -> Iterator[tuple[Job, Done]]:
        """The jobs in their order, those refused whose uploads hold values that are not finite."""
        fine = self._finite()
        for job, one in zip(self.jobs, self.done):
            problem = not_finite(Packet({}, one.up.scalars) if fine else one.up)
            yield job, one if problem is None else Done(one.up, one.size, one.own, one.residual, problem)

    def _finite(self) -> bool:
        if self._asked:
            self._there.synchronize()
            return bool(self._answer)
        return all(finite(self._stacks))
