"""Headcount: how many workers share a GPU, from what one typical job takes of it.

Kernels of different processes take turns on a GPU, so the shares of the time that workers keep it busy add up. There
are as many workers as fill it together, but no more than its memory and the cores of the machine bear. How many there
are changes the order of sums and so the last bits of a result, and nothing else.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

MEMORY_SHARE = 0.8  # of what is free on the GPU: some jobs need more than the typical one
SLIGHT = 0.1  # of a worker: for less than that there is none more


@dataclass(frozen=True)
class Profile:
    """What a worker took of a GPU for a typical job."""

    seconds: float  # that the job lasted
    busy: float  # of these, the ones in which the GPU computed; 0: that cannot be seen here
    held: int  # bytes of the GPU's memory that the worker takes, with all that is there besides tensors
    free: int  # bytes that were free before it came

    @property
    def share(self) -> float:
        """The part of the time in which one worker keeps the GPU busy; all of it where that cannot be seen."""
        return min(1.0, self.busy / self.seconds) if self.busy else 1.0

    @property
    def workers(self) -> int:
        """Those that fill the GPU, as far as its memory goes."""
        fitting = int(MEMORY_SHARE * self.free / max(1, self.held))
        return max(1, min(fitting, math.ceil(1 / self.share - SLIGHT)))

    def told(self) -> str:
        memory = f"a worker takes {self.held / 1e9:.2g} of {self.free / 1e9:.3g} GB"
        if not self.busy:
            return f"how busy a job keeps it cannot be seen here, {memory}"
        return f"a job keeps it busy {self.share:.0%} of the time, {memory}"


def on_gpu(device: str) -> bool:
    return device.startswith("cuda")


def in_turn(devices: Sequence[str], workers: int) -> list[str]:
    """The device of every worker where the user says how many there are."""
    return [devices[number % len(devices)] for number in range(workers)]


def dealt(devices: Sequence[str], most: Mapping[str, int], cores: int) -> list[str]:
    """The device of every worker where the user does not say. `most`: for each GPU, how many it bears.

    Every device has a worker, however few cores there are. The GPUs then get more in turn, and the devices without an
    entry in `most` share the cores that are left over.
    """
    others = [device for device in dict.fromkeys(devices) if device not in most]
    workers = list(most)
    for turn in range(1, cores):
        for device, count in most.items():
            if turn < count and len(workers) + len(others) < cores:
                workers.append(device)
    return workers + (in_turn(others, max(len(others), cores - len(workers))) if others else [])
