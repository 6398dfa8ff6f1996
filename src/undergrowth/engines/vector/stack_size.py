"""How many clients are computed at once."""

from __future__ import annotations

import warnings

import torch

from undergrowth.core import RunError, RunWarning

MAX_CPU_BYTES = 8 << 20  # of stacked weights on a CPU; more do not stay in its caches
CPU_CLIENTS = (4, 16)  # the least and the most, whatever the weights
MAX_GPU_CLIENTS = 256  # more at once are not faster
MEMORY_FRACTION = 0.4  # of the free memory of a GPU: a recording needs as much again


def clients_on_cpu(model_bytes: int) -> int:
    """The number of clients in a stack on a CPU, by the bytes of the weights of one."""
    least, most = CPU_CLIENTS
    return max(least, min(most, MAX_CPU_BYTES // model_bytes))


class StackSize:
    """The number of clients in a stack, by kind of job. On a GPU it depends on the measured memory of one client.

    `given`: the number that the user has set; `model_bytes`: of one model's weights.
    """

    def __init__(self, torch_device: str, given: int | None, model_bytes: int) -> None:
        self._torch_device = torch_device
        self.cuda = torch.device(torch_device).type == "cuda"
        self._given = given
        self._model_bytes = model_bytes
        self._measured: dict[int, tuple[float, int]] = {}  # kind → bytes of one client, width of its batch
        self._limits: dict[int, int] = {}  # kind → clients, after more did not fit
        self._fitting: dict[tuple[int, int], int] = {}  # kind and width → clients that fit in this round
        self._bytes_before = 0  # allocated on the GPU before the measured step

    def start_round(self) -> None:
        """Forgets how many fit: others use the GPU's memory too."""
        self._fitting.clear()

    def forget(self, kind: int) -> None:
        self._measured.pop(kind, None)
        self._limits.pop(kind, None)

    def clients(self, kind: int, width: int) -> int:
        """`width`: samples for which the batch of a client has room."""
        if kind in self._limits or self._given is not None:
            return self._limits.get(kind) or self._given or 1
        if not self.cuda:
            return clients_on_cpu(self._model_bytes)
        if (kind, width) not in self._fitting:
            free, _ = torch.cuda.mem_get_info(self._torch_device)
            # Not torch.cuda.memory_reserved, which sorts all statistics and takes ten times as long.
            statistics = torch.cuda.memory_stats_as_nested_dict(self._torch_device)
            free += statistics["reserved_bytes"]["all"]["current"] - statistics["allocated_bytes"]["all"]["current"]
            client_bytes, measured = self._measured[kind]
            fitting = int(MEMORY_FRACTION * free / (client_bytes * max(1, width / measured)))
            self._fitting[kind, width] = max(1, min(MAX_GPU_CLIENTS, fitting))
        return self._fitting[kind, width]

    def start_measuring(self) -> None:
        """Called before the step that is measured."""
        if self.cuda:
            self._bytes_before = torch.cuda.memory_allocated(self._torch_device)
            torch.cuda.reset_peak_memory_stats(self._torch_device)

    def measure(self, kind: int, clients: int, width: int) -> None:
        """Called after a step of `clients` clients with batches of `width`: computes how much memory one takes."""
        if self.cuda:
            peak = torch.cuda.max_memory_allocated(self._torch_device) - self._bytes_before
            self._measured[kind] = max(1.0, peak / clients), width

    def halve(self, kind: int, clients: int) -> None:
        """Called when `clients` clients did not fit."""
        if clients == 1:
            raise RunError(f"the job of one device does not fit into the memory of {self._torch_device}")
        self._limits[kind] = clients // 2
        text = f"the jobs of {clients} devices at once do not fit on the GPU; continuing with {clients // 2}"
        warnings.warn(text, RunWarning, stacklevel=2)
