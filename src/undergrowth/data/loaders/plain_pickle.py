"""Reads pickles that contain only arrays and plain types, so that a data file cannot run code."""

from __future__ import annotations

import io
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from undergrowth.data.loaders.files import file_error, read_bytes


def read_plain_pickle(path: Path) -> dict[str, Any]:
    """The dictionary in a pickle of Python 2 or 3. Keys become text; other strings of Python 2 stay bytes."""
    try:
        content = _PlainUnpickler(io.BytesIO(read_bytes(path)), encoding="bytes").load()
    except _ForbiddenNameError as error:
        raise file_error(path, f"{error}; only numpy arrays and plain types are read") from error
    except Exception as error:  # the unpickler can raise any error on damaged bytes
        raise file_error(path, f"it is truncated or not a pickle: {error}") from error
    if not isinstance(content, dict):
        raise file_error(path, f"it contains a {type(content).__name__} instead of a dictionary")
    return {key.decode("latin1") if isinstance(key, bytes) else str(key): content[key] for key in content}


class _ForbiddenNameError(pickle.UnpicklingError):
    """The pickle refers to a name that is not in _ALLOWED."""


class _PlainUnpickler(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        found = _ALLOWED.get((module, name))
        if found is None:
            raise _ForbiddenNameError(f"it refers to {module}.{name}")
        return found


def _dtype(code: str | bytes, *_flags: int) -> np.dtype:
    # Old files give align and copy as the numbers 0 and 1, which newer versions of numpy warn about.
    return np.dtype(code.decode("ascii") if isinstance(code, bytes) else code, copy=True)


def _encode(text: str, encoding: str | bytes) -> bytes:
    # Python 3 writes bytes in the old protocols with this function and latin1; no other codec is needed.
    if encoding not in ("latin1", b"latin1"):
        raise _ForbiddenNameError(f"it uses the codec {encoding!r}")
    return text.encode("latin1")


# The functions that rebuild arrays are taken from an array, because their module differs between versions of numpy.
_RECONSTRUCT: Callable[..., Any] = np.zeros(0).__reduce__()[0]  # type: ignore[assignment]
_FROM_BUFFER: Callable[..., Any] = np.zeros(1).__reduce_ex__(5)[0]  # type: ignore[assignment]
_ALLOWED: dict[tuple[str, str], Any] = {
    ("numpy", "ndarray"): np.ndarray,
    ("numpy", "dtype"): _dtype,
    ("numpy.core.multiarray", "_reconstruct"): _RECONSTRUCT,
    ("numpy._core.multiarray", "_reconstruct"): _RECONSTRUCT,
    ("numpy.core.numeric", "_frombuffer"): _FROM_BUFFER,
    ("numpy._core.numeric", "_frombuffer"): _FROM_BUFFER,
    ("_codecs", "encode"): _encode,
}
