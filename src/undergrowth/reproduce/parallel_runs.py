"""How many runs are worth executing at a time on this machine."""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path

import torch

from undergrowth.engines.processes.engine import cores
from undergrowth.reproduce.estimate import Work

STACK = 20  # clients that a run computes at once on a GPU; fixed, so that results do not depend on free memory
WITHOUT_MPS = 2  # processes take turns on a GPU: while one prepares its next step, the other computes
GPU_CONTEXT = 3 << 29  # bytes that a process needs on a GPU for CUDA and its kernels
RECORDING = 2  # a recorded step needs as much memory again


def choose_parallel(torch_device: str, runs: int, work: Iterable[Work] = ()) -> int:
    """The number of `runs` at a time: the cores of a CPU; on a GPU as many as its memory and MPS allow.

    `work` is that of the runs. With NVIDIA's Multi-Process Service (MPS) processes compute on a GPU at the same time,
    and each needs a core of the CPU.
    """
    most, device = max(1, min(cores(), runs)), torch.device(torch_device)
    if device.type != "cuda":
        return most
    free, _ = torch.cuda.mem_get_info(device)
    largest = max((gpu_bytes(each) for each in work), default=1)
    return max(1, min(most, int(free // largest), most if has_mps() else WITHOUT_MPS))


def gpu_bytes(work: Work) -> int:
    """The memory of a GPU that a run needs."""
    return GPU_CONTEXT + work.data + RECORDING * work.memory * min(STACK, work.clients)


def has_mps() -> bool:
    """Whether NVIDIA's Multi-Process Service is started on this machine."""
    return (Path(os.environ.get("CUDA_MPS_PIPE_DIRECTORY", "/tmp/nvidia-mps")) / "control").exists()
