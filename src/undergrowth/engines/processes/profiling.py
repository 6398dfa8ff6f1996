"""Profiling: what a worker takes of its GPU, measured in that worker, since no process could be forked afterwards."""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from time import perf_counter

import torch
from torch.autograd import DeviceType
from torch.profiler import ProfilerActivity, profile

from undergrowth.engines.processes.headcount import Profile

MOST_STEPS = 20  # of the job that is tried out
REPEATS = 3  # of the timing; what disturbs it only adds to it
LARGEST_CONTEXT = 2**30  # bytes that CUDA takes for a process before there is a tensor; half of that is usual


def measured(device: str, work: Callable[[], object]) -> Profile:
    """`work`: a job on that device, which can be done again and again."""
    free, total = torch.cuda.mem_get_info(device)
    tensors = torch.cuda.memory_reserved(device)
    # The context of this process is there already. It is what is in use, unless others are on the GPU as well.
    context = min(total - free - tensors, LARGEST_CONTEXT)
    work()  # the first one also loads libraries and kernels
    seconds = min(_seconds(device, work) for _ in range(REPEATS))
    taken = max(tensors + free - torch.cuda.mem_get_info(device)[0], torch.cuda.max_memory_reserved(device))
    return Profile(seconds, busy_seconds(device, work), context + taken, context + tensors + free)


def _seconds(device: str, work: Callable[[], object]) -> float:
    torch.cuda.synchronize(device)
    began = perf_counter()
    work()
    torch.cuda.synchronize(device)
    return perf_counter() - began


def busy_seconds(device: str, work: Callable[[], object]) -> float:
    """How long the GPU computes for it. 0: that cannot be seen, because another tool has taken the GPU's tracing.

    Events around the work would not tell: between them the GPU also waits for the CPU.
    """
    spans: list[tuple[float, float]] = []
    with suppress(RuntimeError), _quiet():
        with profile(activities=[ProfilerActivity.CUDA]) as seen:
            work()
            torch.cuda.synchronize(device)
        spans = [
            (event.time_range.start, event.time_range.end)
            for event in seen.events() or ()
            if event.device_type == DeviceType.CUDA and not event.is_user_annotation
        ]
    return 1e-6 * covered(spans)


@contextmanager
def _quiet() -> Iterator[None]:
    """The profiler writes a log to standard error, and not by way of Python."""
    kept, nowhere = os.dup(2), os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, 2)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        os.dup2(kept, 2)
        os.close(kept)
        os.close(nowhere)


def covered(spans: Iterable[tuple[float, float]]) -> float:
    """The length of the time in which there is at least one of the spans."""
    length, end = 0.0, float("-inf")
    for start, stop in sorted(spans):
        length += max(0.0, stop - max(start, end))
        end = max(end, stop)
    return length
