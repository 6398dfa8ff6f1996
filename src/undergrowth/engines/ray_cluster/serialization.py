"""Serialization of objects for other processes, with tensors and arrays outside of the pickle.

Ray's object store maps these buffers instead of copying them, so all workers of a machine can share one population.
"""

from __future__ import annotations

import io
import pickle
import sys
import warnings
from collections.abc import Iterable
from typing import Any, NamedTuple

import numpy as np
import torch
from ray import cloudpickle
from torch import Tensor


class SerializedObject(NamedTuple):
    pickled: bytes
    buffers: list[Any]  # arrays of bytes, which Ray can pass on without a copy


class _Pickler(cloudpickle.CloudPickler):  # type: ignore[misc]
    """Cloudpickle, because models and clients of users may be closures. Torch's own reduction copies every tensor."""

    def reducer_override(self, value: Any) -> Any:
        if type(value) is Tensor and value.layout == torch.strided and not value.is_quantized:
            flat = value.detach().cpu().contiguous().reshape(-1)
            buffer = pickle.PickleBuffer(flat.view(torch.uint8).numpy().data) if flat.numel() else b""
            return _tensor, (buffer, value.dtype, tuple(value.shape))
        return super().reducer_override(value)


def send_source(modules: Iterable[str]) -> None:
    """From now on, what these modules define is sent with its code, because workers may not be able to import them."""
    for name in (name for name in modules if name in sys.modules):
        cloudpickle.register_pickle_by_value(sys.modules[name])


def serialize(value: Any) -> SerializedObject:
    """Serializes any object. Its tensors arrive on the CPU."""
    pickled = io.BytesIO()
    buffers: list[pickle.PickleBuffer] = []
    _Pickler(pickled, protocol=5, buffer_callback=buffers.append).dump(value)
    return SerializedObject(pickled.getvalue(), [np.asarray(buffer.raw()) for buffer in buffers])


def deserialize(serialized: SerializedObject, copy: bool = True) -> Any:
    """The object that was serialized. Without `copy` its tensors are in shared memory and must not be written to."""
    buffers = [_copy(buffer) for buffer in serialized.buffers] if copy else serialized.buffers
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=".*not writable", category=UserWarning)  # intended without `copy`
        return pickle.loads(serialized.pickled, buffers=buffers)


def _tensor(buffer: Any, dtype: torch.dtype, shape: tuple[int, ...]) -> Tensor:
    flat = torch.frombuffer(buffer, dtype=dtype) if memoryview(buffer).nbytes else torch.empty(0, dtype=dtype)
    return flat.reshape(shape)


def _copy(buffer: Any) -> Any:
    source = np.asarray(buffer)
    # Allocated by torch, so aligned like every other tensor: sums may depend on the alignment in their last bit.
    copied = torch.empty(len(source), dtype=torch.uint8).numpy()
    copied[:] = source
    return copied
