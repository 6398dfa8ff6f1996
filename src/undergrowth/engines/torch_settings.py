"""How torch computes during a run."""

from __future__ import annotations

import operator
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext, suppress
from typing import TypeVar

import torch

Value = TypeVar("Value")

# Where torch keeps a precision since 2.9, the general one first.
_PLACES = (
    "backends", "backends.cuda.matmul", "backends.cudnn", "backends.cudnn.conv", "backends.cudnn.rnn",
    "backends.mkldnn", "backends.mkldnn.matmul", "backends.mkldnn.conv", "backends.mkldnn.rnn",
)  # fmt: skip


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
    cudnn, random_state, dtype = torch.backends.cudnn, torch.get_rng_state(), torch.get_default_dtype()
    before = torch.get_num_threads(), cudnn.deterministic, cudnn.benchmark
    gpu = torch.cuda.current_device() if torch.cuda.is_initialized() else 0
    try:
        torch.set_default_dtype(torch.float32)
        with _full_precision():
            yield
    finally:
        if torch.cuda.is_initialized() and torch.cuda.current_device() != gpu:
            torch.cuda.set_device(gpu)
        torch.set_num_threads(before[0])
        cudnn.deterministic, cudnn.benchmark = before[1:]
        torch.set_default_dtype(dtype)
        torch.set_rng_state(random_state)


@contextmanager
def _full_precision() -> Iterator[None]:
    """Matrix products in float32 until the block changes that; then restores the precision of the program.

    Since 2.9, torch has two sets of names for it, and refuses to read one after a program has written the other.
    """
    cuda, cudnn = torch.backends.cuda, torch.backends.cudnn
    kept = []
    for place in _PLACES:
        with suppress(AttributeError):  # not in this version of torch
            owner = operator.attrgetter(place)(torch)
            kept.append((owner, owner.fp32_precision))
    matmul, convolution = _read(torch.get_float32_matmul_precision), _read(lambda: cudnn.allow_tf32)
    tf32 = _read(lambda: cuda.matmul.allow_tf32)
    try:
        for owner, _ in kept:
            owner.fp32_precision = "none"
        torch.set_float32_matmul_precision("highest")
        cudnn.allow_tf32 = True  # torch's default, until `set_torch` is called
        yield
    finally:
        cuda.matmul.allow_tf32, cudnn.allow_tf32 = bool(tf32), convolution is not False
        torch.set_float32_matmul_precision(matmul or "highest")
        for owner, before in kept:
            owner.fp32_precision = before


def _read(get: Callable[[], Value]) -> Value | None:
    """The value; None if the program has set it by its other name."""
    try:
        return get()
    except RuntimeError:
        return None
