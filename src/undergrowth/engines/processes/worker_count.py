"""How many workers run on each torch device: a pure function of the job's memory, the GPU's memory and the cores.

How many there are decides which uploads are combined first, and so the last bits of a result. No measured time may
decide that.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

MAX_WORKERS_PER_GPU = 12  # on an H200, more were no faster for logistic regression, a CNN or a WRN
MEMORY_FRACTION = 0.8  # of a GPU's memory that its workers may fill: some jobs need more than the typical one
CONTEXT_BYTES = 2**30  # CUDA's context and libraries in one process; about 0.7 GB is usual


def is_gpu(torch_device: str) -> bool:
    return torch_device.startswith("cuda")


def workers_on_gpu(job_bytes: int, gpu_bytes: int) -> int:
    """How many workers fit on a GPU. `job_bytes`: counted memory of a typical job; `gpu_bytes`: of the GPU."""
    return max(1, min(MAX_WORKERS_PER_GPU, int(MEMORY_FRACTION * gpu_bytes / (CONTEXT_BYTES + job_bytes))))


def assign_in_turn(torch_devices: Sequence[str], workers: int) -> list[str]:
    """The torch device of each of `workers` workers."""
    return [torch_devices[number % len(torch_devices)] for number in range(workers)]


def assign_to_cores(torch_devices: Sequence[str], gpu_workers: Mapping[str, int], cores: int) -> list[str]:
    """The torch device of each worker, about one per core. `gpu_workers`: the most that each GPU can have.

    Every torch device has at least one worker. The GPUs then get more in turn, and the torch devices that are not in
    `gpu_workers` share the cores that are left over.
    """
    others = [name for name in dict.fromkeys(torch_devices) if name not in gpu_workers]
    workers = list(gpu_workers)
    for turn in range(1, cores):
        for name, count in gpu_workers.items():
            if turn < count and len(workers) + len(others) < cores:
                workers.append(name)
    return workers + (assign_in_turn(others, max(len(others), cores - len(workers))) if others else [])
