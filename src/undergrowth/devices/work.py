"""What a job costs a device, counted by running the client's code on meta tensors."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, replace
from operator import attrgetter
from typing import Any, Protocol

import torch
from torch import Tensor

from undergrowth.core import Client, LoopClient, Packet, State, Task, Updates, join_updates
from undergrowth.core.client import Loop
from undergrowth.core.names import STEPS_DONE
from undergrowth.core.pytree import signature
from undergrowth.devices.price import Work
from undergrowth.devices.traced_job import SHAPES, ClassCounts, TracedJob, TracedJobBuilder
from undergrowth.learning.features import EVALUATION_BATCH

# The shard sizes and the smaller batch size at which a job is traced. The shard sizes are round, so that a selector
# selects the same fraction of both. No batch has only one sample, which batch normalisation refuses.
SMALL_SHARD, LARGE_SHARD, SMALL_BATCH = 100, 200, 2

Labels = Callable[[], ClassCounts | None]  # the number of samples of each class on a device; None: unknown

MAX_GROWTH = 10  # jobs after which the state of a device is taken to grow no more
MAX_CACHED_WORKS = 100_000  # reached only if a server sends another number in every round


class _Trace(Protocol):
    """The counts of one kind of job, from which the work for any shard follows."""

    kept: State  # the device's own state after the job

    def work(self, scalars: Mapping[str, float], size: int, labels: Labels | None) -> Work: ...


class Tracer:
    """Prices the jobs of one client. `shape` and `dtype` are those of one input.

    Every kind of job (names, shapes and types in the packet and in the state of the device) is traced once, at two
    shard sizes and two batch sizes. The FLOPs of a step are linear in its batch, those of `before_steps` in the samples
    of the steps, and those of `finish` in `samples_after_steps`, so two points give the exact FLOPs for every other
    device. Memory between the two points, and for batches of one sample, is slightly overestimated. `begin` runs for
    every size and gives the number of steps.
    """

    def __init__(
        self,
        task: Task,
        client: Client,
        shape: tuple[int, ...],
        dtype: torch.dtype = torch.float32,
        weigh: Callable[[Packet], int] = attrgetter("nbytes"),
    ) -> None:
        self.task = replace(task, run_loops=None)  # a device computes its loops one by one, whatever the engine does
        self.weigh = weigh  # the bytes of an upload on its link
        self.client = client
        self.shape = tuple(shape)
        self.dtype = dtype
        self._traces: dict[Hashable, _Trace] = {}
        self._latest: tuple[Packet, _Trace] | None = None
        self._settled: tuple[Packet, State] | None = None

    def work(self, down: Packet, size: int, own: State | None = None, labels: Labels | None = None) -> Work:
        """The work of a device with `size` samples.

        `labels` gives the number of samples of each class. It is called only for a client that reads labels. Without
        it, all classes are assumed to be equally frequent.
        """
        if own:
            return self._find_trace(down, own).work(down.scalars, size, labels)
        # A server sends the same packet to many devices, and comparing a hundred shapes takes longer than the rest.
        if self._latest is None or self._latest[0] is not down:
            self._latest = (down, self._find_trace(down, {}))
        return self._latest[1].work(down.scalars, size, labels)

    def state_after(self, down: Packet) -> State:
        """What a device keeps that has often received `down`. Its tensors may be meta tensors."""
        if self._settled is None or self._settled[0] is not down:
            own: State = {}
            for _ in range(MAX_GROWTH):
                own = self._find_trace(down, own).kept  # one that grows no more is traced once
            self._settled = (down, own)
        return self._settled[1]

    def upload(self, down: Packet) -> Packet:
        """What a device sends for `down`, before its uplink changes it. Its tensors may be meta tensors."""
        builder = TracedJobBuilder(self, self.client, down, {})

        def attempt() -> Packet:
            with builder.job(SMALL_SHARD, guess=True) as job, job.meter:
                up: Packet = job.client.local(job.task, job.down, job.shard, job.own, job.context)[0]
            return up

        return builder.find_needs(attempt)

    def _find_trace(self, down: Packet, own: State) -> _Trace:
        key = (down.signature, tuple(down.scalars), tuple(down.tags.items()), signature(own, _describe))
        trace = self._traces.get(key)
        if trace is None:
            trace = self._traces[key] = self._trace(down, own)
        return trace

    def _trace(self, down: Packet, own: State) -> _Trace:
        if isinstance(self.client, LoopClient):
            return _LoopTrace(self, self.client, down, own)
        if isinstance(self.client, Updates):
            updates = self.client.updates(self.task, down).values()
            return _SequenceTrace([_LoopTrace(self, update, down, own) for update in updates], own)
        return _LocalTrace(self, self.client, down, own)


@dataclass(frozen=True)
class _BeginCost:
    """FLOPs and peak bytes of `begin`, the bytes that it leaves allocated, and the number of steps by batch size.

    rows: samples that the steps draw from.
    """

    flops: int
    peak: int
    resident: int
    batches: Mapping[int, int]
    rows: int


@dataclass(frozen=True)
class _StepCost:
    """A job with two steps. Peaks are in bytes above what was allocated before the steps, or before `before_steps`.

    rows: as in `_BeginCost`; before_kept: bytes that `before_steps` leaves allocated.
    """

    rows: int
    before_flops: int
    before_peak: int
    before_kept: int
    step_flops: int
    first_peak: int
    later_peak: int
    finish_flops: int
    finish_peak: int
    bytes_up: int
    step_calls: int
    kept: State


class _LoopTrace:
    """The trace of a client with `begin`, `step` and `finish`."""

    def __init__(self, tracer: Tracer, client: LoopClient, down: Packet, own: State) -> None:
        self.builder = TracedJobBuilder(tracer, client, down, own)
        self.samples_after_steps = client.samples_after_steps
        self.batch = 0
        self.large = self.builder.find_needs(self._trace_large)
        self.small = self._trace_steps(SMALL_SHARD, SMALL_BATCH)
        self.kept = self.small.kept
        self.works: dict[Hashable, Work] = {}

    def work(self, scalars: Mapping[str, float], size: int, labels: Labels | None) -> Work:
        counts = None if labels is None or self.builder.needs == SHAPES else labels()
        # The key includes the scalars, because a server may send the number of epochs.
        key = (size, tuple(scalars.values()), counts)
        work = self.works.get(key)
        if work is None:
            if len(self.works) >= MAX_CACHED_WORKS:
                self.works.clear()
            work = self.works[key] = self._work(scalars, size, counts)
        return work

    def _work(self, scalars: Mapping[str, float], size: int, counts: ClassCounts | None) -> Work:
        with self.builder.job(size, counts, scalars) as job:
            begin, loop = self._begin(job)
            bytes_up = self._bytes_up(job, loop)
        before_flops, before_peak, before_kept = (
            self._interpolate(field, begin.rows, self.small.rows, self.large.rows)
            for field in ("before_flops", "before_peak", "before_kept")
        )
        after = (self.samples_after_steps(samples) for samples in (size, SMALL_SHARD, LARGE_SHARD))
        flops = begin.flops + before_flops + self._interpolate("finish_flops", *after)
        for batch, count in begin.batches.items():
            flops += count * self._interpolate("step_flops", batch, SMALL_BATCH, self.batch)
        count = sum(begin.batches.values())
        # Passes over the whole shard after the steps run in batches of EVALUATION_BATCH.
        extra = self._interpolate("finish_peak", min(size, EVALUATION_BATCH), SMALL_SHARD, LARGE_SHARD)
        if count:
            # From the second step on, the weights before and after the step exist at the same time.
            peak = "first_peak" if count == 1 else "later_peak"
            # Below the smaller batch size, the line through both would be too low: weights do not shrink with a batch.
            batch = max(SMALL_BATCH, *begin.batches)
            extra = max(extra, self._interpolate(peak, batch, SMALL_BATCH, self.batch))
        samples = sum(batch * count for batch, count in begin.batches.items())
        memory = int(max(begin.peak, begin.resident + before_peak, begin.resident + before_kept + extra))
        return Work(float(flops), memory, count, samples, bytes_up, count * self.large.step_calls)

    def _bytes_up(self, job: TracedJob, loop: Loop) -> int:
        """The bytes of the upload. They need not be linear: a device may send a few samples of each class."""
        if self.builder.needs == SHAPES and self.small.bytes_up == self.large.bytes_up:
            return self.small.bytes_up
        job.meter.guess = True
        with job.meter:  # the upload has the same size with and without steps
            (carry,) = job.client.before_steps(job.task, [loop])
            up, _ = self._finish(job, loop._replace(carry=carry))
        return self.builder.tracer.weigh(up)

    def _finish(self, job: TracedJob, loop: Loop) -> tuple[Packet, State]:
        (carry,) = job.client.after_steps(job.task, [loop])
        done: tuple[Packet, State] = job.client.finish(job.task, job.down, carry, job.shard, job.own, job.context)
        return done

    def _interpolate(self, field: str, at: int, low: int, high: int) -> float:
        start, end = getattr(self.small, field), getattr(self.large, field)
        if low == high:  # a client that trains on samples other than its own
            return float(end)
        return float(start + (at - low) * (end - start) / (high - low))

    def _begin(self, job: TracedJob) -> tuple[_BeginCost, Loop]:
        client, meter = job.client, job.meter
        with meter:
            carry, steps = client.begin(job.task, job.down, job.shard, job.own, job.context)
        # Inputs that `begin` reordered or copied can be streamed like those of the shard.
        kind = (self.builder.tracer.shape, self.builder.tracer.dtype)
        meter.release(*(values for values in steps.data.values() if (tuple(values.shape[1:]), values.dtype) == kind))
        batches: Counter[int] = Counter()
        for order in steps.epochs:
            whole, rest = divmod(len(order), steps.batch)
            batches.update({steps.batch: whole, rest: 1} if rest else {steps.batch: whole})
        rows = len(next(iter(steps.data.values())))
        cost = _BeginCost(meter.flops, meter.peak, meter.live, {size: n for size, n in batches.items() if n}, rows)
        return cost, Loop(client, job.down, job.shard, carry, steps, job.context)

    def _trace_large(self) -> _StepCost:
        with self.builder.job(SMALL_SHARD) as job:
            self._begin(job)  # may build another view of the model, which the meters of all other jobs find there
        return self._trace_steps(LARGE_SHARD, None)

    def _trace_steps(self, size: int, batch: int | None) -> _StepCost:
        """The cost of a job with `size` samples and two steps of `batch` samples (default: the client's batch)."""
        with self.builder.job(size) as job:
            begin, loop = self._begin(job)
            steps, meter = loop.steps, job.meter
            entries = {**steps.data, **{name: values[0] for name, values in steps.visits.items()}}
            meter.peak = meter.live
            with meter:
                (carry,) = job.client.before_steps(job.task, [loop])
            loop = loop._replace(carry={})  # frees what the steps replace
            before_flops, before_peak, resident = meter.flops - begin.flops, meter.peak, meter.live
            meter.peak = meter.live
            meter.guess = True  # numbers read after `begin` are only reported and change no shape
            if batch is None:
                batch = self.batch = max(steps.batch, SMALL_BATCH + 1)
            with meter:
                inputs = {
                    name: torch.zeros((batch, *values.shape[1:]), dtype=values.dtype, device=values.device)
                    for name, values in entries.items()
                }
                carry = job.client.step(job.task, carry, inputs)
                first_peak, before, calls = meter.peak, meter.flops, meter.calls
                carry = job.client.step(job.task, carry, inputs)
                later_peak, step_flops, step_calls = meter.peak, meter.flops - before, meter.calls - calls
                del inputs
                meter.peak, before = meter.live, meter.flops
                up, kept = self._finish(job, loop._replace(carry={**carry, STEPS_DONE: 2}))
                finish_flops, finish_peak = meter.flops - before, meter.peak
        first, later, finish = (peak - resident for peak in (first_peak, later_peak, finish_peak))
        costs = (begin.rows, before_flops, before_peak - begin.resident, resident - begin.resident)
        bytes_up = self.builder.tracer.weigh(up)
        return _StepCost(*costs, step_flops, first, later, finish_flops, finish, bytes_up, step_calls, kept)


class _SequenceTrace:
    """The traces of updates that run one after the other. Each upload is sent before the next update begins."""

    def __init__(self, updates: Sequence[_LoopTrace], own: State) -> None:
        self.updates = updates
        _, self.kept = join_updates(own, [(Packet(), update.kept) for update in updates])

    def work(self, scalars: Mapping[str, float], size: int, labels: Labels | None) -> Work:
        works = [update.work(scalars, size, labels) for update in self.updates]
        return Work(
            sum(work.flops for work in works),
            max((work.memory for work in works), default=0),
            sum(work.steps for work in works),
            sum(work.samples for work in works),
            sum(work.bytes_up for work in works),
            sum(work.calls for work in works),
            tuple(works) if len(works) > 1 else (),
        )


class _LocalTrace:
    """The trace of a client that has only `local`: a line through the FLOPs at two sizes, classes equally frequent.

    Memory is constant above the larger size: with more than a full batch, only copies of the shard grow. Numbers that
    the client reads from tensors are assumed to be reports, so work that depends on them is not seen. A client that
    decides by its loss how long to train should be a `LoopClient`.
    """

    def __init__(self, tracer: Tracer, client: Client, down: Packet, own: State) -> None:
        self.builder = TracedJobBuilder(tracer, client, down, own)
        # At least one full batch, so that the traced peak is that of a full batch.
        self.small_size = max(SMALL_SHARD, tracer.task.train.batch)
        self.large = self.builder.find_needs(lambda: self._trace_local(2 * self.small_size))
        self.small = self._trace_local(self.small_size)
        self.kept = self.small[-1]

    def work(self, scalars: Mapping[str, float], size: int, labels: Labels | None) -> Work:
        (flops, memory, bytes_up, *_), (large_flops, large_memory, large_bytes_up, calls, _) = self.small, self.large
        more = size - self.small_size
        more_in_memory = min(more, self.small_size)
        return Work(
            max(0.0, flops + more * ((large_flops - flops) / self.small_size)),
            int(memory + more_in_memory * (large_memory - memory) / self.small_size),
            1,
            size,
            max(0, round(bytes_up + more * (large_bytes_up - bytes_up) / self.small_size)),
            round(calls * size / (2 * self.small_size)),
        )

    def _trace_local(self, size: int) -> tuple[int, int, int, int, State]:
        with self.builder.job(size, guess=True) as job, job.meter:
            up, kept = job.client.local(job.task, job.down, job.shard, job.own, job.context)
        return job.meter.flops, job.meter.peak, self.builder.tracer.weigh(up), job.meter.calls, kept


def _describe(leaf: Any) -> Hashable:
    """What decides which operations run on a leaf: shape and type of a tensor, the value of a text."""
    if isinstance(leaf, Tensor):
        return (leaf.shape, leaf.dtype)
    return (type(leaf), leaf if isinstance(leaf, str) else None)
