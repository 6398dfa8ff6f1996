"""How many clients are computed at once."""

from __future__ import annotations

import warnings

import torch

from undergrowth.core import RunError

CPU_BYTES = 8 << 20  # of weights that are stacked on a CPU; more do not stay in its caches
CPU_CLIENTS = (4, 16)  # at least and at most, whatever the weights
GPU_CLIENTS = 256  # more at once gain nothing
SHARE = 0.4  # of the memory that is free on a GPU: a recording needs as much again


class Room:
    """By kind of job. On a GPU it is measured what a client takes.

    given: a number that the user has set.
    weights: bytes of a model.
    """

    def __init__(self, device: str, given: int | None, weights: int) -> None:
        self._device = device
        self.cuda = torch.device(device).type == "cuda"
        self._given = given
        self._weights = weights
        self._bytes: dict[int, float] = {}  # kind → bytes of one client
        self._most: dict[int, int] = {}  # kind → clients, where more did not fit
        self._fitting: dict[int, int] = {}  # kind → clients, as far as can be told in this round
        self._before = 0  # bytes on the GPU before a chunk

    def look_again(self) -> None:
        """Called before every round, since others use the GPU's memory too."""
        self._fitting.clear()

    def clients(self, kind: int) -> int:
        if kind in self._most or self._given is not None:
            return self._most.get(kind) or self._given or 1
        if not self.cuda:
            least, most = CPU_CLIENTS
            return max(least, min(most, CPU_BYTES // self._weights))
        if kind not in self._fitting:
            free, _ = torch.cuda.mem_get_info(self._device)
            # Not torch.cuda.memory_reserved, which sorts all that is known and takes ten times as long.
            held = torch.cuda.memory_stats_as_nested_dict(self._device)
            free += held["reserved_bytes"]["all"]["current"] - held["allocated_bytes"]["all"]["current"]
            self._fitting[kind] = max(1, min(GPU_CLIENTS, int(SHARE * free / self._bytes[kind])))
        return self._fitting[kind]

    def begin(self) -> None:
        """Called before the step that is measured."""
        if self.cuda:
            self._before = torch.cuda.memory_allocated(self._device)
            torch.cuda.reset_peak_memory_stats(self._device)

    def measure(self, kind: int, clients: int) -> None:
        """Looks, after a step of so many clients, how much memory one takes."""
        if self.cuda:
            peak = torch.cuda.max_memory_allocated(self._device) - self._before
            self._bytes[kind] = max(1.0, peak / clients)

    def halve(self, kind: int, clients: int) -> None:
        """So many did not fit."""
        if clients == 1:
            raise RunError(f"one client of this model does not fit into the memory of {self._device}")
        self._most[kind] = clients // 2
        warnings.warn(f"{clients} clients at once do not fit on the GPU; going on with {clients // 2}", stacklevel=2)
