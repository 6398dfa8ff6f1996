"""Crates: things packed for another process, their tensors and arrays beside the pickle rather than in it.

What lies beside is mapped by an object store and not copied, so all workers of a machine can read one population.
"""

from __future__ import annotations

import io
import pickle
import warnings
from typing import Any, NamedTuple

import numpy as np
import torch
from ray import cloudpickle
from torch import Tensor


class Crate(NamedTuple):
    text: bytes
    buffers: list[Any]  # arrays of bytes: whoever passes them on can pickle those


class _Packer(cloudpickle.CloudPickler):  # type: ignore[misc]
    """Cloudpickle, because models and clients of users may be closures; but torch's own way copies every tensor."""

    def reducer_override(self, thing: Any) -> Any:
        if type(thing) is Tensor and thing.layout == torch.strided and not thing.is_quantized:
            flat = thing.detach().cpu().contiguous().reshape(-1)
            beside = pickle.PickleBuffer(flat.view(torch.uint8).numpy().data) if flat.numel() else b""
            return _tensor, (beside, thing.dtype, tuple(thing.shape))
        return super().reducer_override(thing)


def packed(thing: Any) -> Crate:
    """Anything at all. Tensors arrive on the CPU, wherever they were."""
    text = io.BytesIO()
    buffers: list[pickle.PickleBuffer] = []
    _Packer(text, protocol=5, buffer_callback=buffers.append).dump(thing)
    return Crate(text.getvalue(), [np.asarray(buffer.raw()) for buffer in buffers])


def unpacked(crate: Crate, copy: bool = True) -> Any:
    """What was packed. Without a copy it lies in shared memory, and nobody may write into it."""
    buffers = [_copy(buffer) for buffer in crate.buffers] if copy else crate.buffers
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=".*not writable", category=UserWarning)  # as it was asked for
        return pickle.loads(crate.text, buffers=buffers)


def _tensor(beside: Any, dtype: torch.dtype, shape: tuple[int, ...]) -> Tensor:
    flat = torch.frombuffer(beside, dtype=dtype) if memoryview(beside).nbytes else torch.empty(0, dtype=dtype)
    return flat.reshape(shape)


def _copy(buffer: Any) -> Any:
    given = np.asarray(buffer)
    # Memory of torch's own, aligned like every other tensor: sums may depend on the alignment in their last bit.
    ours = torch.empty(len(given), dtype=torch.uint8).numpy()
    ours[:] = given
    return ours
