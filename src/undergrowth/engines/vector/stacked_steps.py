"""The steps of training loops that are computed in stacks, and the test that a stack gives what single loops give."""

from __future__ import annotations

from collections.abc import Hashable, Iterator
from contextlib import suppress
from copy import copy
from itertools import count, islice

import torch
from torch import Tensor

from undergrowth.core import Batch, Carry, LoopClient, Task, map_tensors
from undergrowth.engines.vector.agreement import RefuseReads, agree, full_precision
from undergrowth.engines.vector.carries import slice_stack, stack_carries, unstack
from undergrowth.engines.vector.layers import Stacked
from undergrowth.engines.vector.recording import (
    FinishedCarries,
    Recording,
    RecordingMemory,
    Recordings,
    allocate_finished,
    size_for,
)
from undergrowth.engines.vector.stack import Batches, Begun, width_for
from undergrowth.engines.vector.stack_size import StackSize

# After which a kind is forgotten, and tested again if it comes back. Every learning rate of a schedule is a kind of its
# own, which takes 10 to 20 kB.
MAX_UNUSED_ROUNDS = 64


class StackedSteps:
    """Computes loops of a task in stacks. A kind of loop is tested once against the plain step.

    chunk: loops in a stack; None: as many as fit. memory: of recorded steps; None: a GPU records none.
    """

    def __init__(self, task: Task, torch_device: str, chunk: int | None, memory: RecordingMemory | None = None) -> None:
        self.task = task
        self.torch_device = torch_device
        self.cuda = torch.device(torch_device).type == "cuda"
        self._kinds: dict[Hashable, int] = {}  # what loops must have in common to be stacked → its number
        self._numbers = count()
        self._last_round: dict[int, int] = {}  # kind → round in which it was used
        self._round = 0
        self._stackable: dict[int, bool] = {}
        model_bytes = 4 * sum(shape.numel() for shape in task.model.shapes.values())
        self._stack_size = StackSize(torch_device, chunk, model_bytes)
        self._recordings = Recordings(self._step, self.cuda and memory is not None, memory or RecordingMemory())
        self._exact_task = task.with_models(lambda model: model.with_precision(False))  # to compare steps

    def close(self) -> None:
        """Frees the memory of recordings and samples, which refer to this object; it cannot be used any more.

        The garbage collector would free it much later, in the rounds after a phase, or in the next run.
        """
        vars(self).clear()

    @property
    def records(self) -> bool:
        """Whether steps may be recorded."""
        return self._recordings.cuda

    def start_round(self) -> None:
        """Forgets how many clients fit into memory, and recordings and kinds that were not used for some rounds."""
        self._stack_size.start_round()
        self._recordings.start_round()
        self._round += 1
        for signature, kind in list(self._kinds.items()):
            if self._round - self._last_round[kind] > MAX_UNUSED_ROUNDS:
                del self._kinds[signature], self._last_round[kind]
                self._stackable.pop(kind, None)
                self._stack_size.forget(kind)
                self._recordings.forget(kind)

    def kind_of(self, begun: Begun) -> int:
        """The number of its kind. Loops of the same kind can be in one stack."""
        kind = self._kinds.get(signature := begun.signature)
        if kind is None:
            kind = self._kinds[signature] = next(self._numbers)
        self._last_round[kind] = self._round
        return kind

    def compute(self, kind: int, group: list[Begun]) -> Iterator[tuple[list[Begun], list[Carry]]]:
        """The final carries of a group, in chunks that fit into memory; a chunk that did not fit is halved."""
        idle = [each for each in group if not each.count]
        if idle:
            self.prepare(idle)
            yield idle, [each.carry for each in idle]
        rest = [each for each in group if each.count]
        # Of the whole group: how many of its clients are in a chunk depends on the memory that is free.
        width = width_for(rest) if rest else 0
        while rest:
            size = min(self._stack_size.clients(kind, width), len(rest))
            left = rest[:size]
            try:
                self.prepare(left)
                for chunk, carries in self._run_steps(kind, left, width):
                    left = left[: -len(chunk)]
                    yield chunk, carries
            except torch.cuda.OutOfMemoryError:
                self._stack_size.halve(kind, size)
                self._recordings.clear()
                torch.cuda.empty_cache()
            rest = [*left, *rest[size:]]

    def prepare(self, chunk: list[Begun]) -> None:
        """Does for loops of one kind what comes before their first step, unless it is done."""
        todo = [each for each in chunk if not each.prepared]
        if todo:
            carries = todo[0].client.before_steps(self.task, [each.loop for each in todo])
            for each, carry in zip(todo, carries, strict=True):
                each.carry, each.prepared = carry, True

    def _run_steps(self, kind: int, chunk: list[Begun], width: int) -> Iterator[tuple[list[Begun], list[Carry]]]:
        """All steps of a chunk. Yields clients with their final carries, those that finish early before others."""
        if self._recordings.can_record(kind):
            yield from self._run_recorded_steps(kind, chunk, width)
            return
        batches = Batches(chunk, self.torch_device, len(chunk))
        carry = stack_carries([each.carry for each in chunk])
        clients = len(chunk)
        finished: list[Carry] = []  # of the last clients of the chunk
        for step, active in enumerate(batches.active):
            if active < clients:
                finished = [*unstack(slice_stack(carry, slice(active, clients)), clients - active), *finished]
                carry, clients = slice_stack(carry, slice(0, active)), active
            carry = self._step(carry, *batches.at(step, clients), client=chunk[0].client, clients=clients)
        yield chunk, [*unstack(carry, clients), *finished]

    def _run_recorded_steps(
        self, kind: int, chunk: list[Begun], width: int
    ) -> Iterator[tuple[list[Begun], list[Carry]]]:
        """The same in the buffers of recordings, which may have more places than there are clients."""
        batches = Batches(chunk, self.torch_device, size_for(len(chunk)), width)
        carry = stack_carries([each.carry for each in chunk])
        key = self._recordings.key(kind, carry)
        clients = len(chunk)
        recording: Recording | None = None
        parts: list[FinishedCarries] = []
        for step, active in enumerate(batches.active):
            if recording is not None and active < clients:
                parts = parts or allocate_finished(recording, clients)
                for part in parts:
                    part.put(recording, active, clients)
                while len(parts) > 1 and active <= parts[0].first:
                    split_point, carries = parts[0].first, parts.pop(0).carries()
                    yield chunk[split_point:], carries
                    chunk = chunk[:split_point]
            clients = active
            wanted = self._recordings.find(key, chunk[0].client, batches, carry, clients)
            if recording is None or not wanted.continues(recording):
                wanted.load(carry, clients)
            wanted.step(batches, step)
            carry, recording = wanted.carry, wanted
        assert recording is not None
        finished: list[Carry] = []
        for part in parts or allocate_finished(recording, clients):
            part.put(recording, 0, clients)
            finished = [*part.carries(), *finished]
        yield chunk, finished

    def _step(
        self,
        carry: Carry,
        batch: Batch,
        mask: Tensor | None,
        client: LoopClient,
        clients: int,
        task: Task | None = None,
    ) -> Carry:
        with Stacked(clients, mask):
            return client.step(task or self.task, carry, batch)

    def can_stack(self, kind: int, group: list[Begun]) -> bool:
        if kind not in self._stackable:
            # Copies: what comes before the first step is not kept, because its last bits may depend on the stack.
            pair = [copy(each) for each in islice((each for each in group if each.count), 2)]
            if not pair:
                return False
            self._stackable[kind] = False
            # What raises an error in a stack runs alone, and an error that it raises there names the device.
            with suppress(Exception), full_precision():
                self.prepare(pair)
                if len(pair) == 1:
                    pair.append(pair[0].altered)
                self._stackable[kind] = self._agrees(kind, pair, width_for(group))
        return self._stackable[kind]

    def _agrees(self, kind: int, pair: list[Begun], width: int) -> bool:
        """Whether one step of two clients gives the same in a stack and alone.

        In double precision if the model supports it: otherwise rounding could decide, and differently after a resume.
        """
        self._measure_step(kind, pair, width)
        with suppress(Exception):
            return self._agrees_in(torch.float64, pair)
        return self._agrees_in(torch.float32, pair)

    def _measure_step(self, kind: int, pair: list[Begun], width: int) -> None:
        """On a GPU, runs a step as it will be run later, to find out how much memory it takes and what it changes."""
        if self.cuda:
            batch, mask = Batches(pair, self.torch_device, len(pair), width).at(0, len(pair))
            before = stack_carries([each.carry for each in pair])
            self._stack_size.start_measuring()
            after = self._step(before, batch, mask, client=pair[0].client, clients=len(pair), task=self._exact_task)
            self._stack_size.measure(kind, len(pair), width)
            self._recordings.learn(kind, before, after)

    def _agrees_in(self, dtype: torch.dtype, pair: list[Begun]) -> bool:
        def convert(value: Tensor) -> Tensor:
            return value.to(dtype) if value.dtype == torch.float32 else value

        client, task = pair[0].client, self._exact_task
        carries = [map_tensors(convert, each.carry) for each in pair]
        batch, mask = map_tensors(convert, Batches(pair, self.torch_device, len(pair)).at(0, len(pair)))
        with RefuseReads(batch.values()):
            stack = self._step(stack_carries(carries), batch, mask, client=client, clients=len(pair), task=task)
        for place, (each, carry) in enumerate(zip(pair, carries, strict=True)):
            alone = client.step(task, carry, map_tensors(convert, next(iter(each.steps))))
            if not all(agree(slice_stack(stack[key], place), alone[key], carry.get(key)) for key in stack):
                return False
        return True
