"""Memory of a process that runs one job after another: freed memory is reused, and garbage collected less often."""

from __future__ import annotations

import ctypes
import gc
import sys
from collections.abc import Iterator
from contextlib import contextmanager

MAX_THRESHOLD = 2**31 - 1  # that Python takes
COLLECTION_FACTOR = 20  # a full collection takes as long as some hundred steps of a small model
MAX_FREE_BYTES = 1 << 26  # freed memory that a process keeps
_TRIM_THRESHOLD, _MMAP_THRESHOLD = -1, -3  # glibc's M_TRIM_THRESHOLD and M_MMAP_THRESHOLD


def keep_freed_memory() -> None:
    """Stops glibc from returning memory to the system after every step: getting it back costs a tenth of a step."""
    if sys.platform == "linux":
        libc = ctypes.CDLL(None)
        if hasattr(libc, "mallopt"):
            libc.mallopt(_TRIM_THRESHOLD, MAX_FREE_BYTES)
            libc.mallopt(_MMAP_THRESHOLD, MAX_FREE_BYTES // 2)


@contextmanager
def collect_garbage_less_often() -> Iterator[None]:
    """Makes full garbage collections rarer in the block: nearly everything they visit are imported modules."""
    before = gc.get_threshold()
    gc.set_threshold(*before[:2], min(COLLECTION_FACTOR * before[2], MAX_THRESHOLD))
    try:
        yield
    finally:
        gc.set_threshold(*before)
