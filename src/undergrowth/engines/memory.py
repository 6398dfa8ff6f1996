"""Memory that a job gives back is kept for the next one, which needs as much; garbage may wait."""

from __future__ import annotations

import ctypes
import gc
import sys
from collections.abc import Iterator
from contextlib import contextmanager

RARER = 20  # times; one such search takes as long as some hundred steps of a small model
KEPT = 1 << 26  # bytes of free memory that a process holds on to
_TRIM_THRESHOLD, _MMAP_THRESHOLD = -1, -3  # names that glibc gives these numbers


def keep_memory() -> None:
    """Stops glibc from returning memory to the system after every step: getting it back costs a tenth of a step."""
    if sys.platform == "linux":
        system = ctypes.CDLL(None)
        if hasattr(system, "mallopt"):
            system.mallopt(_TRIM_THRESHOLD, KEPT)
            system.mallopt(_MMAP_THRESHOLD, KEPT // 2)


@contextmanager
def garbage_waits() -> Iterator[None]:
    """Python looks less often through all it holds, which is mostly what was imported and never becomes garbage."""
    before = gc.get_threshold()
    gc.set_threshold(*before[:2], RARER * before[2])
    try:
        yield
    finally:
        gc.set_threshold(*before)
