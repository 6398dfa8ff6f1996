"""What a device's work costs, found by running the client's own code on tensors without values."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from undergrowth.core import Client, LoopClient, Packet, State, Task, Updates
from undergrowth.devices.traced_job import SHAPES, Counts, Inputs, TracedJob
from undergrowth.learning.features import EVALUATION_BATCH

# Two shard sizes and the smaller batch size at which to count. Round numbers, so that a share of the samples is
# the same share of both; never one sample, which batch normalisation refuses.
SMALL, LARGE, SMALL_BATCH = 100, 200, 2

Labels = Callable[[], Counts | None]  # how many samples of each class a device has; None: not known

KNOWN_LIMIT = 100_000  # prices kept; more only come up where a server sends another number in every round


@dataclass(frozen=True)
class Work:
    """One job of one device.

    memory: bytes at the peak: weights, gradients, optimiser state, what the backward pass needs, one batch. The
    shard is not in it: a device may stream its data from its disk.
    samples: those that the steps go through, once an epoch.
    bytes_up: what the upload weighs.
    calls: tensor operations in the steps. A recurrent layer counts as the operations of all positions.
    """

    flops: float
    memory: int
    steps: int
    samples: int
    bytes_up: int = 0
    calls: int = 0


def _plain_bytes(packet: Packet) -> int:
    return packet.nbytes


class Tracer:
    """Prices the jobs of one client. `shape` and `dtype` are those of one input.

    Every kind of job (the names, shapes and types in the packet and in the device's own state) is traced once, at
    two shard sizes and two batch sizes. The FLOPs of a step grow linearly with its batch and those before and after
    the steps with the shard, so the two points give the FLOPs of every other device exactly. Memory between
    the two points is a little overestimated. How many steps there are is asked of `begin` for every size.
    """

    def __init__(
        self,
        task: Task,
        client: Client,
        shape: tuple[int, ...],
        dtype: torch.dtype = torch.float32,
        weigh: Callable[[Packet], int] = _plain_bytes,
    ) -> None:
        self.task = task
        self.weigh = weigh  # the bytes of an upload on its link
        self.client = client
        self.shape = tuple(shape)
        self.dtype = dtype
        self._traces: dict[Hashable, _Loop | _Several | _Whole] = {}
        self._latest: tuple[Packet, _Loop | _Several | _Whole] | None = None

    def work(self, down: Packet, size: int, own: State | None = None, labels: Labels | None = None) -> Work:
        """The price for a device with `size` samples.

        `labels` gives how many of them are of each class. It is only asked for a client that looks at labels; without
        it every class is taken to be as frequent as the others.
        """
        if own:
            return self._trace(down, own).work(down.scalars, size, labels)
        # A server sends one packet to many devices, and comparing a hundred shapes takes longer than all the rest.
        if self._latest is None or self._latest[0] is not down:
            self._latest = (down, self._trace(down, {}))
        return self._latest[1].work(down.scalars, size, labels)

    def _trace(self, down: Packet, own: State) -> _Loop | _Several | _Whole:
        key = (signature(down), signature(own))
        trace = self._traces.get(key)
        if trace is None:
            trace = self._traces[key] = self._traced(down, own)
        return trace

    def _traced(self, down: Packet, own: State) -> _Loop | _Several | _Whole:
        if isinstance(self.client, LoopClient):
            return _Loop(self, self.client, down, own)
        if isinstance(self.client, Updates):
            updates = self.client.updates(self.task, down).values()
            return _Several([_Loop(self, update, down, own) for update in updates])
        return _Whole(self, self.client, down, own)


@dataclass(frozen=True)
class _Begun:
    """What `begin` cost for one size, the steps it asks for by their batch size, and the bytes it leaves behind."""

    flops: int
    peak: int
    resident: int
    batches: Mapping[int, int]


@dataclass(frozen=True)
class _Chain:
    """One job with two steps: FLOPs of a step and of `finish`, peaks above what `begin` left behind, bytes sent, and
    operations of a step."""

    step: int
    first: int
    later: int
    finish: int
    end: int
    sent: int
    calls: int


class _Loop:
    """The trace of a client that has begin, step and finish."""

    def __init__(self, tracer: Tracer, client: LoopClient, down: Packet, own: State) -> None:
        self.inputs = Inputs(tracer, client, down, own)
        self.batch = 0
        self.large = self.inputs.first_that_works(lambda: self._chain(LARGE, None))
        self.small = self._chain(SMALL, SMALL_BATCH)
        self.known: dict[Hashable, Work] = {}

    def work(self, scalars: Mapping[str, float], size: int, labels: Labels | None) -> Work:
        counts = None if labels is None or self.inputs.looks_at == SHAPES else labels()
        # The values of scalars are in the key because a server may send how many epochs to train.
        key = (size, tuple(scalars.values()), counts)
        work = self.known.get(key)
        if work is None:
            if len(self.known) >= KNOWN_LIMIT:
                self.known.clear()
            work = self.known[key] = self._work(scalars, size, counts)
        return work

    def _work(self, scalars: Mapping[str, float], size: int, counts: Counts | None) -> Work:
        with self.inputs.job(size, counts, scalars) as job:
            begun, carry, _, _ = self._begin(job)
            sent = self._sent(job, carry)
        flops = begun.flops + self._between("finish", size, SMALL, LARGE)
        for batch, count in begun.batches.items():
            flops += count * self._between("step", batch, SMALL_BATCH, self.batch)
        steps = sum(begun.batches.values())
        # What runs on the whole shard after the steps does so in pieces of this size.
        extra = self._between("end", min(size, EVALUATION_BATCH), SMALL, LARGE)
        if steps:
            peak = "first" if steps == 1 else "later"  # after the first step, old and new weights lie side by side
            extra = max(extra, self._between(peak, max(begun.batches), SMALL_BATCH, self.batch))
        samples = sum(batch * count for batch, count in begun.batches.items())
        calls = steps * self.large.calls
        return Work(float(flops), int(max(begun.peak, begun.resident + extra)), steps, samples, sent, calls)

    def _sent(self, job: TracedJob, carry: Any) -> int:
        """The bytes of the upload, which need not lie on a line: of every class a device may send a few samples."""
        if self.inputs.looks_at == SHAPES and self.small.sent == self.large.sent:
            return self.small.sent
        job.meter.guess = True
        with job.meter:  # what it sends after many steps, it sends after none too
            up, _ = job.client.finish(job.task, job.down, carry, job.shard, job.own, job.context)
        return self.inputs.tracer.weigh(up)

    def _between(self, name: str, at: int, low: int, high: int) -> float:
        start, end = getattr(self.small, name), getattr(self.large, name)
        return float(start + (at - low) * (end - start) / (high - low))

    def _begin(self, job: TracedJob) -> tuple[_Begun, Any, Mapping[str, Tensor], int]:
        client, meter = job.client, job.meter
        with meter:
            carry, steps = client.begin(job.task, job.down, job.shard, job.own, job.context)
        # Samples that were put together anew can be streamed like those of the shard.
        kind = (self.inputs.tracer.shape, self.inputs.tracer.dtype)
        meter.release(*(values for values in steps.data.values() if (tuple(values.shape[1:]), values.dtype) == kind))
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
                first, before, calls = meter.peak, meter.flops, meter.calls
                carry = job.client.step(job.task, carry, some)
                later, step, calls = meter.peak, meter.flops - before, meter.calls - calls
                del some
                meter.peak, before = meter.live, meter.flops
                up, _ = job.client.finish(job.task, job.down, carry, job.shard, job.own, job.context)
                finish, end = meter.flops - before, meter.peak
        left = begun.resident
        return _Chain(step, first - left, later - left, finish, end - left, self.inputs.tracer.weigh(up), calls)


class _Several:
    """The traces of updates that are done one after the other; what one has finished is sent before the next begins."""

    def __init__(self, updates: Sequence[_Loop]) -> None:
        self.updates = updates

    def work(self, scalars: Mapping[str, float], size: int, labels: Labels | None) -> Work:
        parts = [update.work(scalars, size, labels) for update in self.updates]
        return Work(
            sum(part.flops for part in parts),
            max((part.memory for part in parts), default=0),
            sum(part.steps for part in parts),
            sum(part.samples for part in parts),
            sum(part.bytes_up for part in parts),
            sum(part.calls for part in parts),
        )


class _Whole:
    """The trace of a client that only has `local`: FLOPs on a line through two sizes, all classes equally frequent.

    Memory stops growing at the larger size: beyond a whole batch it is only copies of the shard that grow. Numbers
    that are read out of tensors are taken to be reports, so work that depends on them is not seen: a client that
    decides how long to train by a loss should be a LoopClient.
    """

    def __init__(self, tracer: Tracer, client: Client, down: Packet, own: State) -> None:
        self.inputs = Inputs(tracer, client, down, own)
        # At least a whole batch, so that the peak is that of a whole batch.
        self.low = max(SMALL, tracer.task.train.batch)
        self.large = self.inputs.first_that_works(lambda: self._local(2 * self.low))
        self.small = self._local(self.low)

    def work(self, scalars: Mapping[str, float], size: int, labels: Labels | None) -> Work:
        (flops, memory, sent, _), (more_flops, more_memory, more_sent, calls) = self.small, self.large
        slope = (more_flops - flops) / self.low
        grown = min(size, 2 * self.low) - self.low
        return Work(
            max(0.0, flops + (size - self.low) * slope),
            int(memory + grown * (more_memory - memory) / self.low),
            1,
            size,
            max(0, round(sent + (size - self.low) * (more_sent - sent) / self.low)),
            round(calls * size / (2 * self.low)),
        )

    def _local(self, size: int) -> tuple[int, int, int, int]:
        with self.inputs.job(size, guess=True) as job, job.meter:
            up, _ = job.client.local(job.task, job.down, job.shard, job.own, job.context)
        return job.meter.flops, job.meter.peak, self.inputs.tracer.weigh(up), job.meter.calls


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
