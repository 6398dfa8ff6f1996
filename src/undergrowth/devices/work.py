"""What a device's work costs, found by running the client's own code on tensors without values."""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Callable, Hashable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

import torch
from torch import Tensor

from undergrowth.core import Client, Context, LoopClient, Packet, Shard, State, Task, moved
from undergrowth.devices.meter import Meter, tensors_in

# Of these things only the shapes count, or also the labels' values, or all values: what a client looks at when it
# decides which samples to train on. The first that works is taken; each is slower than the one before.
SHAPES, LABELS, VALUES = "shapes", "labels", "values"

# Two shard sizes and the smaller batch size at which to count. Round numbers, so that a share of the samples is
# the same share of both; never one sample, which batch normalisation refuses.
SMALL, LARGE, SMALL_BATCH = 100, 200, 2

KNOWN_LIMIT = 100_000  # prices kept; more only come up where a server sends another number in every round


Result = TypeVar("Result")


@dataclass(frozen=True)
class Work:
    """One job of one device.

    memory: bytes at the peak: weights, gradients, optimiser state, what the backward pass needs, one batch. The
    shard is not in it: a device may stream its data from its disk.
    samples: those that the steps go through, once an epoch.
    """

    flops: float
    memory: int
    steps: int
    samples: int


class Tracer:
    """Prices the jobs of one client. `shape` and `dtype` are those of one input.

    Every kind of job (the names, shapes and types in the packet and in the device's own state) is traced once, at
    two shard sizes and two batch sizes. The FLOPs of a step grow linearly with its batch and those before and after
    the steps with the shard, so the two points give the FLOPs of every other device exactly. Memory between
    the two points is a little overestimated. How many steps there are is asked of `begin` for every size.
    """

    def __init__(self, task: Task, client: Client, shape: tuple[int, ...], dtype: torch.dtype = torch.float32) -> None:
        self.task = task
        self.client = client
        self.shape = tuple(shape)
        self.dtype = dtype
        self._traces: dict[Hashable, _Loop | _Whole] = {}
        self._latest: tuple[Packet, _Loop | _Whole] | None = None

    def work(self, down: Packet, size: int, own: State | None = None, labels: Tensor | None = None) -> Work:
        """The price for a device with `size` samples.

        `labels` are the device's own; only a client that looks at them needs them, and without them every class
        is taken to be as frequent as the others.
        """
        if own:
            return self._trace(down, own).work(down.scalars, size, labels)
        # A server sends one packet to many devices, and comparing a hundred shapes takes longer than all the rest.
        if self._latest is None or self._latest[0] is not down:
            self._latest = (down, self._trace(down, {}))
        return self._latest[1].work(down.scalars, size, labels)

    def _trace(self, down: Packet, own: State) -> _Loop | _Whole:
        key = (signature(down), signature(own))
        trace = self._traces.get(key)
        if trace is None:
            kind = _Loop if isinstance(self.client, LoopClient) else _Whole
            trace = self._traces[key] = kind(self, down, own)
        return trace


@dataclass(frozen=True)
class _Begun:
    """What `begin` cost for one size, the steps it asks for by their batch size, and the bytes it leaves behind."""

    flops: int
    peak: int
    resident: int
    batches: Mapping[int, int]


@dataclass(frozen=True)
class _Chain:
    """One job with two steps: FLOPs of a step and of `finish`, and peaks above what `begin` left behind."""

    step: int
    first: int
    later: int
    finish: int
    end: int


class _Loop:
    """The trace of a client that has begin, step and finish."""

    def __init__(self, tracer: Tracer, down: Packet, own: State) -> None:
        self.inputs = _Inputs(tracer, down, own)
        self.batch = 0
        self.large = self.inputs.first_that_works(lambda: self._chain(LARGE, None))
        self.small = self._chain(SMALL, SMALL_BATCH)
        self.known: dict[Hashable, Work] = {}

    def work(self, scalars: Mapping[str, float], size: int, labels: Tensor | None) -> Work:
        # The values of scalars are in the key because a server may send how many epochs to train.
        key = (size, tuple(scalars.values()), self.inputs.counts(labels))
        work = self.known.get(key)
        if work is None:
            if len(self.known) >= KNOWN_LIMIT:
                self.known.clear()
            work = self.known[key] = self._work(scalars, size, labels)
        return work

    def _work(self, scalars: Mapping[str, float], size: int, labels: Tensor | None) -> Work:
        with self.inputs.job(size, labels, scalars) as job:
            begun = self._begin(job)[0]
        flops = begun.flops + self._between("finish", size, SMALL, LARGE)
        for batch, count in begun.batches.items():
            flops += count * self._between("step", batch, SMALL_BATCH, self.batch)
        steps = sum(begun.batches.values())
        extra = self._between("end", size, SMALL, LARGE) if size < LARGE else self.large.end
        if steps:
            peak = "first" if steps == 1 else "later"  # after the first step, old and new weights lie side by side
            extra = max(extra, self._between(peak, max(begun.batches), SMALL_BATCH, self.batch))
        samples = sum(batch * count for batch, count in begun.batches.items())
        return Work(float(flops), int(max(begun.peak, begun.resident + extra)), steps, samples)

    def _between(self, name: str, at: int, low: int, high: int) -> float:
        start, end = getattr(self.small, name), getattr(self.large, name)
        return float(start + (at - low) * (end - start) / (high - low))

    def _begin(self, job: _Job) -> tuple[_Begun, Any, Mapping[str, Tensor], int]:
        client, meter = job.client, job.meter
        with meter:
            carry, steps = client.begin(job.task, job.down, job.shard, job.own, job.context)
        batches: Counter[int] = Counter()
        for order in steps.epochs:
            whole, rest = divmod(len(order), steps.batch)
            batches.update({steps.batch: whole, rest: 1} if rest else {steps.batch: whole})
        begun = _Begun(meter.flops, meter.peak, meter.live, {b: n for b, n in batches.items() if n})
        return begun, carry, steps.data, steps.batch

    def _chain(self, size: int, batch: int | None) -> _Chain:
        """One job with `size` samples and two steps of `batch`, or of the client's own batch size."""
        with self.inputs.job(size) as job:
            begun, carry, data, full = self._begin(job)
            meter = job.meter
            meter.peak = meter.live
            meter.guess = True  # what is read from here on is reported, and changes no shape
            if batch is None:
                batch = self.batch = max(full, SMALL_BATCH + 1)
            with meter:
                some = {
                    name: torch.zeros((batch, *values.shape[1:]), dtype=values.dtype, device=values.device)
                    for name, values in data.items()
                }
                carry = job.client.step(job.task, carry, some)
                first, before = meter.peak, meter.flops
                carry = job.client.step(job.task, carry, some)
                later, step = meter.peak, meter.flops - before
                del some
                meter.peak, before = meter.live, meter.flops
                job.client.finish(job.task, job.down, carry, job.shard, job.own, job.context)
        left = begun.resident
        return _Chain(step, first - left, later - left, meter.flops - before, meter.peak - left)


class _Whole:
    """The trace of a client that only has `local`: FLOPs on a line through two sizes, classes as frequent as each other.

    Memory stops growing at the larger size: beyond a whole batch it is only copies of the shard that grow.
    """

    def __init__(self, tracer: Tracer, down: Packet, own: State) -> None:
        self.inputs = _Inputs(tracer, down, own)
        # At least a whole batch, so that the peak is that of a whole batch.
        self.low = max(SMALL, tracer.task.train.batch)
        self.large = self.inputs.first_that_works(lambda: self._local(2 * self.low))
        self.small = self._local(self.low)

    def work(self, scalars: Mapping[str, float], size: int, labels: Tensor | None) -> Work:
        (flops, memory), (more_flops, more_memory) = self.small, self.large
        slope = (more_flops - flops) / self.low
        grown = min(size, 2 * self.low) - self.low
        return Work(
            max(0.0, flops + (size - self.low) * slope),
            int(memory + grown * (more_memory - memory) / self.low),
            1,
            size,
        )

    def _local(self, size: int) -> tuple[int, int]:
        with self.inputs.job(size, guess=True) as job, job.meter:
            job.client.local(job.task, job.down, job.shard, job.own, job.context)
        return job.meter.flops, job.meter.peak


@dataclass
class _Job:
    client: Any
    task: Task
    down: Packet
    shard: Shard
    own: State
    context: Context
    meter: Meter


class _Inputs:
    """Makes the arguments of a job of one kind, for any number of samples."""

    def __init__(self, tracer: Tracer, down: Packet, own: State) -> None:
        self.tracer = tracer
        self.real = (down, own)
        self.shapes = (moved(down, "meta"), moved(own, "meta"))
        self.device = next((tensor.device for tensor in tensors_in(self.real)), torch.device("cpu"))
        self.looks_at = SHAPES

    def first_that_works(self, attempt: Callable[[], Result]) -> Result:
        for looks_at in (SHAPES, LABELS):
            self.looks_at = looks_at
            # Whatever needs a value that is not there raises some RuntimeError.
            with contextlib.suppress(RuntimeError):
                result = attempt()
                self.real = self.shapes  # lets go of the weights
                return result
        self.looks_at = VALUES
        return attempt()

    def counts(self, labels: Tensor | None) -> Hashable:
        """What of the labels may change the price: how often each occurs, if the client looks at them at all."""
        if labels is None or self.looks_at == SHAPES:
            return None
        return tuple(torch.bincount(labels.cpu().flatten()).tolist())

    @contextlib.contextmanager
    def job(
        self,
        size: int,
        labels: Tensor | None = None,
        scalars: Mapping[str, float] | None = None,
        guess: bool = False,
    ) -> Iterator[_Job]:
        tracer, task = self.tracer, self.tracer.task
        down, own = self.real if self.looks_at == VALUES else self.shapes
        if scalars is not None:
            down = Packet(down.tensors, scalars, down.tags)
        x = torch.zeros((size, *tracer.shape), dtype=tracer.dtype, device="cpu" if self.looks_at == VALUES else "meta")
        if self.looks_at == SHAPES:
            y = torch.zeros(size, dtype=torch.int64, device="meta")
        else:
            y = torch.arange(size) % task.classes if labels is None else labels
            y = y.to(self.device)
        meter = Meter(guess)
        meter.ignore(x, y)
        meter.hold((down, own))
        fused = torch._C._get_mkldnn_enabled()
        if self.looks_at == VALUES:
            # oneDNN computes an LSTM in one operation that torch has no FLOP formula for; without it, the same
            # layer is a row of matrix products, as it is on tensors without values.
            torch._C._set_mkldnn_enabled(False)
        try:
            yield _Job(tracer.client, task, down, Shard(x, y), own, Context(0, "device", 0), meter)
        finally:
            torch._C._set_mkldnn_enabled(fused)


def signature(tree: Any) -> Hashable:
    """What of a tree decides which operations run on it: names, shapes, types, texts; not the values."""
    if isinstance(tree, Tensor):
        return (tree.shape, tree.dtype)
    if isinstance(tree, Mapping):
        return tuple((key, signature(value)) for key, value in tree.items())
    if isinstance(tree, Packet):
        return (signature(tree.tensors), tuple(tree.scalars), tuple(tree.tags.items()))
    if isinstance(tree, list | tuple):
        return tuple(signature(value) for value in tree)
    return (type(tree), tree if isinstance(tree, str) else None)
