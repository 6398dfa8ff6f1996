"""Reads pickles that hold only arrays and plain types: a data file must never be able to run code."""

from __future__ import annotations

import io
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from undergrowth.data.loaders.files import broken, read_bytes


def read_plain_pickle(path: Path) -> dict[str, Any]:
    """The dictionary in a pickle of Python 2 or 3, its keys as text; other texts of Python 2 stay bytes."""
    try:
        content = _PlainUnpickler(io.BytesIO(read_bytes(path)), encoding="bytes").load()
    except _Refused as error:
        raise broken(path, f"{error}; only numpy arrays and plain types are read") from error
    except Exception as error:  # damaged bytes make the unpickler fail in any way at all
        raise broken(path, f"it is truncated or not a pickle: {error}") from error
    if not isinstance(content, dict):
        raise broken(path, f"it holds a {type(content).__name__} where a dictionary belongs")
    return {key.decode("latin1") if isinstance(key, bytes) else str(key): content[key] for key in content}


class _Refused(pickle.UnpicklingError):
    """The pickle names something that is not on the list."""


class _PlainUnpickler(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        found = _ADMITTED.get((module, name))
        if found is None:
            raise _Refused(f"it asks for {module}.{name}")
        return found


def _dtype(code: str | bytes, *_flags: int) -> np.dtype:
    # Old files give align and copy as the numbers 0 and 1, which newer versions of numpy warn about.
    return np.dtype(code.decode("ascii") if isinstance(code, bytes) else code, copy=True)


def _encode(text: str, encoding: str | bytes) -> bytes:
    # How Python 3 writes bytes in the old protocols; any other codec is not needed.
    if encoding not in ("latin1", b"latin1"):
        raise _Refused(f"it asks for the codec {encoding!r}")
    return text.encode("latin1")


# What numpy's arrays are rebuilt with is asked of an array, since its home differs between versions of numpy.
_RECONSTRUCT: Callable[..., Any] = np.zeros(0).__reduce__()[0]  # type: ignore[assignment]
_FROM_BUFFER: Callable[..., Any] = np.zeros(1).__reduce_ex__(5)[0]  # type: ignore[assignment]
_ADMITTED: dict[tuple[str, str], Any] = {
    ("numpy", "ndarray"): np.ndarray,
    ("numpy", "dtype"): _dtype,
    ("numpy.core.multiarray", "_reconstruct"): _RECONSTRUCT,
    ("numpy._core.multiarray", "_reconstruct"): _RECONSTRUCT,
    ("numpy.core.numeric", "_frombuffer"): _FROM_BUFFER,
    ("numpy._core.numeric", "_frombuffer"): _FROM_BUFFER,
    ("_codecs", "encode"): _encode,
}
