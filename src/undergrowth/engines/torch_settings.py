"""How torch computes during a run."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager

import torch


def set_torch(tf32: bool, threads: int = 1) -> None:
    """Sets the number of threads and the precision of matrix products and convolutions.

    A worker has one thread because there is one worker per core, and because sums depend on the number of threads.
    """
    torch.set_num_threads(threads)
    # The defaults of torch differ between matrix products and convolutions.
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = tf32
    # Otherwise cuDNN may choose algorithms that sum in another order each time.
    torch.backends.cudnn.deterministic = True


_LOCK = threading.RLock()


@contextmanager
def restore_torch_settings() -> Iterator[None]:
    """Restores torch's threads, precision and CPU random state when the block ends.

    These belong to the process, and runs set them. So the blocks of other threads wait until this one ends.
    """
    with _LOCK, _restored(), torch.enable_grad(), torch.autocast("cpu", enabled=False):
        yield


@contextmanager
def _restored() -> Iterator[None]:
    cuda, cudnn, random_state = torch.backends.cuda, torch.backends.cudnn, torch.get_rng_state()
    precision = torch.get_float32_matmul_precision()
    before = torch.get_num_threads(), cuda.matmul.allow_tf32, cudnn.allow_tf32, cudnn.deterministic
    try:
        torch.set_float32_matmul_precision("highest")
        yield
    finally:
        torch.set_num_threads(before[0])
        cuda.matmul.allow_tf32, cudnn.allow_tf32, cudnn.deterministic = before[1:]
        torch.set_float32_matmul_precision(precision)
        torch.set_rng_state(random_state)
