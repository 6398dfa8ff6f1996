"""Jobs that a stack has ended. Their uploads are looked at together, and a GPU is waited for as late as can be."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch

from undergrowth.core import finite
from undergrowth.engines.world import Done, Job


class Ended:
    """Asks at once whether all values are finite, and reads the answer when the uploads are handed on."""

    def __init__(self, jobs: Sequence[Job], done: Sequence[Done]) -> None:
        self.jobs, self.done = jobs, done
        self._named = [
            (place, name, value)
            for place, one in enumerate(done)
            for name, value in one.up.tensors.items()
            if value.is_floating_point() and value.numel()
        ]
        # Clients' tensors are parts of stacks, and what is true of a stack is true of its parts.
        wholes = [value if value._base is None else value._base for _, _, value in self._named]
        self._stacks = list({id(whole): whole for whole in wholes}.values())
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
        problems: dict[int, str] = {}
        for (place, name, _), fine in zip(self._named, self._finite()):
            if not fine:
                problems.setdefault(place, f"'{name}' has values that are not finite")
        for place, one in enumerate(self.done):
            for name, number in one.up.scalars.items():
                if not abs(number) < float("inf"):
                    problems.setdefault(place, f"'{name}' is {number}")
            problem = problems.get(place)
            yield self.jobs[place], one if problem is None else Done(one.up, one.size, one.own, one.residual, problem)

    def _finite(self) -> list[bool]:
        if self._asked:
            self._there.synchronize()
        if self._answer if self._asked else all(finite(self._stacks)):
            return [True] * len(self._named)
        return finite([value for _, _, value in self._named])
