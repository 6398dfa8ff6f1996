"""The arguments of a job, for tracing it: tensors without values, with as many samples as one likes."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar

import torch

from undergrowth.core import Client, Context, InputError, Packet, RunError, Shard, State, Task, moved, tensors_in
from undergrowth.devices.meter import Meter

if TYPE_CHECKING:
    from undergrowth.devices.work import Tracer

Result = TypeVar("Result")
Counts = tuple[int, ...]  # how many samples of each class

# Of these things only the shapes count, or also the labels' values, or all values: what a client looks at when it
# decides which samples to train on. The first that works is taken; each is slower than the one before.
SHAPES, LABELS, VALUES = "shapes", "labels", "values"


@dataclass
class TracedJob:
    client: Any
    task: Task
    down: Packet
    shard: Shard
    own: State
    context: Context
    meter: Meter


class Inputs:
    """Makes the arguments of a job of one kind, for any number of samples."""

    def __init__(self, tracer: Tracer, client: Client, down: Packet, own: State) -> None:
        self.tracer = tracer
        self.client = client
        self.real = (down, own)
        self.shapes = (moved(down, "meta"), moved(own, "meta"))
        self.shapes_task = tracer.task.to("meta")  # weights that a device makes itself have no values either
        home = torch.device(tracer.task.model.torch_device)  # where a device makes weights that nobody sent it
        self.device = next((tensor.device for tensor in tensors_in(self.real)), home)
        self.looks_at = SHAPES

    def first_that_works(self, attempt: Callable[[], Result]) -> Result:
        for looks_at in (SHAPES, LABELS, VALUES):
            self.looks_at = looks_at
            try:
                result = attempt()
            except InputError:
                raise
            except Exception as error:  # whatever needs a value that is not there raises one
                problem = error
                continue
            if looks_at != VALUES:
                self.real = self.shapes  # lets go of the weights
            return result
        name, kind = type(self.client).__name__, type(problem).__name__
        raise RunError(f"the client {name} failed when its work was priced: {kind}: {problem}") from problem

    @contextlib.contextmanager
    def job(
        self,
        size: int,
        counts: Counts | None = None,
        scalars: Mapping[str, float] | None = None,
        guess: bool = False,
    ) -> Iterator[TracedJob]:
        tracer, task = self.tracer, self.tracer.task if self.looks_at == VALUES else self.shapes_task
        down, own = self.real if self.looks_at == VALUES else self.shapes
        if scalars is not None:
            down = Packet(down.tensors, scalars, down.tags)
        device = self.device if self.looks_at == VALUES else torch.device("meta")
        x = torch.zeros((size, *tracer.shape), dtype=tracer.dtype, device=device)
        if self.looks_at == SHAPES:
            y = torch.zeros(size, dtype=torch.int64, device="meta")
        else:
            y = torch.arange(size) % task.classes
            if counts is not None:
                y = torch.arange(len(counts)).repeat_interleave(torch.tensor(counts))
            y = y.to(self.device)
        meter = Meter(guess)
        meter.ignore(x, y)
        if task.public is not None:
            meter.ignore(task.public.x, task.public.y)
        meter.hold((down, own, task.model.constants))
        fused = torch._C._get_mkldnn_enabled()
        if self.looks_at == VALUES:
            # oneDNN computes an LSTM in one operation that torch has no FLOP formula for; without it, the same
            # layer is a row of matrix products, as it is on tensors without values.
            torch._C._set_mkldnn_enabled(False)
        try:
            yield TracedJob(self.client, task, down, Shard(x, y), own, Context(0, "device", 0), meter)
        finally:
            torch._C._set_mkldnn_enabled(fused)
