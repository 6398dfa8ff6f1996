"""How many workers share a GPU: the arithmetic, and the measuring on a GPU that is made up."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from itertools import product
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch.autograd import DeviceType

from undergrowth.engines.processes import profiling
from undergrowth.engines.processes.headcount import Profile, dealt, in_turn
from undergrowth.engines.processes.profiling import LARGEST_CONTEXT, REPEATS, busy_seconds, covered, measured

GB = 10**9


@pytest.mark.parametrize(
    ("busy", "held", "free", "workers"),
    [
        (1.0, 1 * GB, 80 * GB, 1),  # one worker fills it
        (1.3, 1 * GB, 80 * GB, 1),  # measured with two streams, or on another clock
        (0.95, 1 * GB, 80 * GB, 1),  # for a twentieth of a worker there is none more
        (0.8, 1 * GB, 80 * GB, 2),
        (0.5, 1 * GB, 80 * GB, 2),
        (0.38, 1 * GB, 80 * GB, 3),
        (1 / 3, 1 * GB, 80 * GB, 3),
        (0.01, 1 * GB, 80 * GB, 64),  # it would take a hundred, but four fifths of the memory hold 64
        (0.01, 1 * GB, 1000 * GB, 100),
        (0.01, 30 * GB, 80 * GB, 2),
        (0.01, 60 * GB, 80 * GB, 1),
        (0.01, 90 * GB, 80 * GB, 1),  # it does not even fit once; the run itself says so, better than this could
        (1e-9, 1 * GB, 3 * GB, 2),
        (0.01, 0, 80 * GB, 100),
        (0.0, 1 * GB, 80 * GB, 1),  # nothing was seen of the GPU
    ],
)
def test_as_many_workers_as_fill_a_gpu_and_fit_into_it(busy, held, free, workers):
    assert Profile(1.0, busy, held, free).workers == workers
    assert Profile(0.25, 0.25 * busy, held, free).workers == workers, "only the share counts"


@pytest.mark.parametrize(
    ("devices", "most", "cores", "expected"),
    [
        (["cuda:0"], {"cuda:0": 3}, 16, {"cuda:0": 3}),
        (["cuda:0"], {"cuda:0": 30}, 16, {"cuda:0": 16}),
        (["cuda:0"], {"cuda:0": 30}, 1, {"cuda:0": 1}),
        (["cuda:0", "cuda:1"], {"cuda:0": 3, "cuda:1": 3}, 16, {"cuda:0": 3, "cuda:1": 3}),
        (["cuda:0", "cuda:1"], {"cuda:0": 8, "cuda:1": 8}, 6, {"cuda:0": 3, "cuda:1": 3}),
        (["cuda:0", "cuda:1"], {"cuda:0": 8, "cuda:1": 8}, 7, {"cuda:0": 4, "cuda:1": 3}),
        (["cuda:0", "cuda:1"], {"cuda:0": 1, "cuda:1": 9}, 6, {"cuda:0": 1, "cuda:1": 5}),  # cores go where they help
        (["cuda:0", "cuda:1"], {"cuda:0": 2, "cuda:1": 2}, 1, {"cuda:0": 1, "cuda:1": 1}),
        (["cpu", "cuda:0"], {"cuda:0": 3}, 16, {"cuda:0": 3, "cpu": 13}),
        (["cpu", "cuda:0"], {"cuda:0": 30}, 16, {"cuda:0": 15, "cpu": 1}),
        (["cpu", "cuda:0"], {"cuda:0": 3}, 1, {"cuda:0": 1, "cpu": 1}),
        (["cuda:0", "cpu", "cuda:1"], {"cuda:0": 4, "cuda:1": 2}, 8, {"cuda:0": 4, "cuda:1": 2, "cpu": 2}),
        (["cuda:0", "cuda:0"], {"cuda:0": 2}, 8, {"cuda:0": 2}),
    ],
)
def test_cores_are_dealt_to_the_devices(devices, most, cores, expected):
    assert Counter(dealt(devices, most, cores)) == expected


def test_whatever_there_is_every_device_works_and_no_core_is_promised_twice():
    for cores, first, second, others in product((1, 2, 3, 8, 64), (1, 2, 7), (1, 5, 100), ([], ["cpu"])):
        most = {"cuda:0": first, "cuda:1": second}
        found = dealt([*others, *most], most, cores)
        counts = Counter(found)
        assert set(counts) == {*most, *others}
        assert all(counts[device] <= most[device] for device in most)
        assert len(found) <= max(cores, len(most) + len(others))
        if others:
            assert len(found) == max(cores, 3), "a CPU has something to do with every core"
        elif len(found) < cores:
            assert counts == most, "a core is left over only when no GPU wants it"
        assert in_turn(found, len(found)) == found, "so the settings of a run can hold it"


class MadeUp:
    """A GPU of 80 GB on which others hold some, a context is 0.4 GB, and a job holds memory and libraries."""

    def __init__(self, others: int, monkeypatch: Any) -> None:
        self.free, self.reserved, self.peak = 80 * GB - others - 400_000_000, 50_000_000, 0
        self.free -= self.reserved
        self.works = 0
        for name, does in {
            "mem_get_info": lambda device: (self.free, 80 * GB),
            "memory_reserved": lambda device: self.reserved,
            "max_memory_reserved": lambda device: self.peak,
            "synchronize": lambda device: None,
        }.items():
            monkeypatch.setattr(torch.cuda, name, does)

    def work(self) -> None:
        if not self.works:
            self.free -= 1 * GB + 300_000_000  # tensors, and libraries that CUDA loads when they are first used
            self.reserved = self.peak = 50_000_000 + 1 * GB
        self.works += 1


def test_a_worker_takes_its_tensors_its_libraries_and_its_context(monkeypatch):
    gpu = MadeUp(0, monkeypatch)
    monkeypatch.setattr(profiling, "busy_seconds", lambda device, work: 0.125)
    found = measured("cuda:0", gpu.work)
    assert (found.held, found.free) == (400_000_000 + 50_000_000 + 1_300_000_000, 80 * GB)
    assert found.busy == 0.125 and found.seconds > 0
    assert gpu.works == 1 + REPEATS


def test_what_others_hold_on_the_gpu_is_not_taken_for_a_context(monkeypatch):
    gpu = MadeUp(60 * GB, monkeypatch)
    monkeypatch.setattr(profiling, "busy_seconds", lambda device, work: 0.125)
    found = measured("cuda:0", gpu.work)
    assert found.held == LARGEST_CONTEXT + 1_350_000_000
    assert found.free == pytest.approx(20 * GB, abs=GB)


def test_the_fastest_of_several_times_counts(monkeypatch):
    gpu, times = MadeUp(0, monkeypatch), iter([0.0, 5.0, 5.0, 7.0, 7.0, 10.0])
    monkeypatch.setattr(profiling, "perf_counter", lambda: next(times))
    monkeypatch.setattr(profiling, "busy_seconds", lambda device, work: 0.5)
    assert measured("cuda:0", gpu.work).share == 0.25


@pytest.mark.parametrize(
    ("spans", "length"),
    [([], 0), ([(1, 4)], 3), ([(6, 7), (1, 4)], 4), ([(1, 4), (2, 3), (3, 6)], 5), ([(1, 4), (4, 5), (4, 4)], 4)],
)
def test_spans_that_overlap_count_once(spans, length):
    assert covered(spans) == length


def traced(*events: tuple[DeviceType, float, float, bool]) -> Callable[..., Any]:
    class Trace:
        def __init__(self, activities: Any) -> None:
            assert activities == [torch.profiler.ProfilerActivity.CUDA]

        def __enter__(self) -> Trace:
            return self

        def __exit__(self, *_: object) -> None: ...

        def events(self) -> list[Any]:
            return [
                SimpleNamespace(
                    device_type=kind, time_range=SimpleNamespace(start=start, end=end), is_user_annotation=annotation
                )
                for kind, start, end, annotation in events
            ]

    return Trace


def test_only_what_the_gpu_does_counts_as_busy(monkeypatch):
    monkeypatch.setattr(torch.cuda, "synchronize", lambda device: None)
    gpu, cpu, done = DeviceType.CUDA, DeviceType.CPU, []
    seen = traced((cpu, 0, 900, False), (gpu, 100, 300, False), (gpu, 0, 900, True), (gpu, 500, 550, False))
    monkeypatch.setattr(profiling, "profile", seen)
    assert busy_seconds("cuda:0", lambda: done.append(1)) == pytest.approx(250e-6)
    assert done == [1]


def test_a_gpu_that_cannot_be_traced_is_said_to_be(monkeypatch):
    def taken(activities: Any) -> Any:
        raise RuntimeError("CUPTI is used by another tool")

    monkeypatch.setattr(profiling, "profile", taken)
    assert busy_seconds("cuda:0", lambda: None) == 0
    unseen = Profile(1.0, 0.0, GB, 80 * GB)
    assert unseen.told() == "how busy a job keeps it cannot be seen here, a worker takes 1 of 80 GB"
    seen = Profile(1.0, 0.38, 12 * GB // 10, 80 * GB)
    assert seen.told() == "a job keeps it busy 38% of the time, a worker takes 1.2 of 80 GB"


def test_the_real_profiler_has_what_is_asked_of_it(capfd):
    """It sees no GPU here; but what it gives has the right names, and its own log does not reach the user."""
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as seen:
        torch.ones(4, 4) @ torch.ones(4, 4)
    event = seen.events()[0]
    assert event.time_range.end >= event.time_range.start
    assert (event.device_type, event.is_user_annotation) == (DeviceType.CPU, False)
    capfd.readouterr()
    with profiling._quiet(), torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]):
        torch.ones(4, 4) @ torch.ones(4, 4)
    assert capfd.readouterr() == ("", "")
