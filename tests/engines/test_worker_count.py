"""How many workers run on each torch device: a pure function of memory and cores."""

from __future__ import annotations

from collections import Counter
from itertools import product

import pytest

from undergrowth.engines.processes.worker_count import (
    CONTEXT_BYTES,
    MAX_WORKERS_PER_GPU,
    assign_in_turn,
    assign_to_cores,
    workers_on_gpu,
)

GB = 10**9


@pytest.mark.parametrize(
    ("job_bytes", "gpu_bytes", "workers"),
    [
        (0, 1000 * GB, MAX_WORKERS_PER_GPU),
        (GB, 80 * GB, MAX_WORKERS_PER_GPU),
        (15 * GB, 80 * GB, 3),  # four fifths of the memory hold three jobs with a CUDA context each
        (60 * GB, 80 * GB, 1),
        (90 * GB, 80 * GB, 1),  # it does not fit at all; the run itself reports that
        (0, 2 * CONTEXT_BYTES, 1),
    ],
)
def test_as_many_workers_as_fit_into_the_memory_of_a_gpu(job_bytes, gpu_bytes, workers):
    assert workers_on_gpu(job_bytes, gpu_bytes) == workers


@pytest.mark.parametrize(
    ("torch_devices", "most", "cores", "expected"),
    [
        (["cuda:0"], {"cuda:0": 3}, 16, {"cuda:0": 3}),
        (["cuda:0"], {"cuda:0": 30}, 16, {"cuda:0": 16}),
        (["cuda:0"], {"cuda:0": 30}, 1, {"cuda:0": 1}),
        (["cuda:0", "cuda:1"], {"cuda:0": 3, "cuda:1": 3}, 16, {"cuda:0": 3, "cuda:1": 3}),
        (["cuda:0", "cuda:1"], {"cuda:0": 8, "cuda:1": 8}, 7, {"cuda:0": 4, "cuda:1": 3}),
        (["cuda:0", "cuda:1"], {"cuda:0": 1, "cuda:1": 9}, 6, {"cuda:0": 1, "cuda:1": 5}),
        (["cuda:0", "cuda:1"], {"cuda:0": 2, "cuda:1": 2}, 1, {"cuda:0": 1, "cuda:1": 1}),
        (["cpu", "cuda:0"], {"cuda:0": 3}, 16, {"cuda:0": 3, "cpu": 13}),
        (["cpu", "cuda:0"], {"cuda:0": 30}, 16, {"cuda:0": 15, "cpu": 1}),
        (["cpu", "cuda:0"], {"cuda:0": 3}, 1, {"cuda:0": 1, "cpu": 1}),
        (["cuda:0", "cuda:0"], {"cuda:0": 2}, 8, {"cuda:0": 2}),
    ],
)
def test_cores_are_assigned_to_torch_devices(torch_devices, most, cores, expected):
    assert Counter(assign_to_cores(torch_devices, most, cores)) == expected


def test_every_torch_device_has_a_worker_and_no_core_is_assigned_twice():
    for cores, first, second, others in product((1, 2, 3, 8, 64), (1, 2, 7), (1, 5, 100), ([], ["cpu"])):
        most = {"cuda:0": first, "cuda:1": second}
        found = assign_to_cores([*others, *most], most, cores)
        counts = Counter(found)
        assert set(counts) == {*most, *others}
        assert all(counts[name] <= most[name] for name in most)
        assert len(found) <= max(cores, len(most) + len(others))
        if others:
            assert len(found) == max(cores, 3), "the CPU uses every core that is left"
        elif len(found) < cores:
            assert counts == most, "a core is left over only if no GPU can use it"
        assert found[:2] == list(most), "the workers that were asked for the memory of their GPUs stay there"
        assert assign_in_turn(found, len(found)) == found, "the settings of a run can store the assignment"
