"""How torch computes during a run."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext

import torch


def set_torch(tf32: bool, threads: int = 1, torch_device: str = "cpu") -> None:
    """Sets the number of threads, the precision of matrix products and convolutions, and the current GPU.

    A worker has one thread because there is one worker per core, and because sums depend on the number of threads.
    """
    used = torch.device(torch_device)
    if used.type == "cuda" and used.index is not None:
        # Triton's kernels, recordings and events are those of the current GPU, wherever their tensors are.
        torch.cuda.set_device(used.index)
    torch.set_num_threads(threads)
    # The defaults of torch differ between matrix products and convolutions.
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = tf32
    # Otherwise cuDNN may choose algorithms that sum in another order each time, or measure which one is fastest.
    torch.backends.cudnn.deterministic, torch.backends.cudnn.benchmark = True, False


_LOCK = threading.RLock()


@contextmanager
def restore_torch_settings() -> Iterator[None]:
    """Restores torch's threads, precision, default type, GPU and CPU random state when the block ends.

    These belong to the process, and runs set them. So the blocks of other threads wait until this one ends. What a
    program has set for itself, such as another default device, does not reach the block.
    """
    cpu = torch.device("cpu")  # as a context it slows every function down a little
    on_cpu = nullcontext() if torch.get_default_device() == cpu else cpu
    autocast = torch.autocast("cpu", enabled=False)
    with _LOCK, _restored(), torch.inference_mode(False), torch.enable_grad(), autocast, on_cpu:
        yield


@contextmanager
def _restored() -> Iterator[None]:
    cuda, cudnn, random_state = torch.backends.cuda, torch.backends.cudnn, torch.get_rng_state()
    precision, dtype = torch.get_float32_matmul_precision(), torch.get_default_dtype()
    before = cuda.matmul.allow_tf32, cudnn.allow_tf32, cudnn.deterministic, cudnn.benchmark
    threads = torch.get_num_threads()
    gpu = torch.cuda.current_device() if torch.cuda.is_initialized() else 0
    try:
        torch.set_float32_matmul_precision("highest")
        torch.set_default_dtype(torch.float32)
        yield
    finally:
        if torch.cuda.is_initialized() and torch.cuda.current_device() != gpu:
            torch.cuda.set_device(gpu)
        torch.set_num_threads(threads)
        cuda.matmul.allow_tf32, cudnn.allow_tf32, cudnn.deterministic, cudnn.benchmark = before
        torch.set_float32_matmul_precision(precision)
        torch.set_default_dtype(dtype)
        torch.set_rng_state(random_state)
