"""Columns of an experiment of OPERAnet: a Parquet file, or a .mat file with a cell array or one variable per column.

The published .mat files of CSI hold MATLAB tables, which only MATLAB can read. `convert_and_save.m` of
https://github.com/pedropgusmao/operanet writes them as Parquet files: complex numbers become lists of two numbers.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from undergrowth.core import InputError
from undergrowth.data.loaders.files import file_error

CONVERT = "write it as a Parquet file with convert_and_save.m of https://github.com/pedropgusmao/operanet"


def read_columns(file: Path, is_needed: Callable[[str], bool]) -> dict[str, np.ndarray]:
    """The columns whose names are needed: N values each, or N × length if a cell holds several."""
    columns = _read_parquet(file, is_needed) if file.suffix == ".parquet" else _read_mat(file, is_needed)
    lengths = {len(column) for column in columns.values()}
    if len(lengths) > 1:
        raise file_error(file, f"its columns have different lengths, from {min(lengths)} to {max(lengths)}")
    return columns


def _read_parquet(file: Path, is_needed: Callable[[str], bool]) -> dict[str, np.ndarray]:
    try:
        from pyarrow import ArrowException, parquet
    except ImportError as error:
        raise InputError(f"{file} needs pyarrow to be read: pip install 'undergrowth[parquet]'") from error
    try:
        opened = parquet.ParquetFile(file)
        table = opened.read(columns=[name for name in opened.schema_arrow.names if is_needed(name)])
    except (ArrowException, OSError) as error:
        raise file_error(file, f"it cannot be read as a Parquet file: {error}") from error
    return {name: _from_arrow(file, name, table[name].combine_chunks()) for name in table.column_names}


def _from_arrow(file: Path, name: str, column: Any) -> np.ndarray:
    from pyarrow import types

    if not (types.is_list(column.type) or types.is_large_list(column.type)):
        return np.asarray(column.to_numpy(zero_copy_only=False))
    values = column.flatten().to_numpy(zero_copy_only=False)  # millions of rows, so without Python objects
    if len(column) == 0 or len(values) % len(column):
        raise file_error(file, f"the cells of column '{name}' hold different numbers of values")
    return np.asarray(values.reshape(len(column), -1))


def _read_mat(file: Path, is_needed: Callable[[str], bool]) -> dict[str, np.ndarray]:
    from scipy.io import loadmat
    from scipy.io.matlab import MatReadError

    try:
        content = loadmat(file, squeeze_me=True)
    except NotImplementedError:
        raise file_error(file, f"it is a .mat file of version 7.3; {CONVERT}") from None
    except (OSError, ValueError, TypeError, MatReadError) as error:
        raise file_error(file, f"it cannot be read as a .mat file: {error}") from error
    variables = {name: value for name, value in content.items() if not name.startswith("__")}
    only = next(iter(variables.values())) if len(variables) == 1 else None
    if isinstance(only, np.ndarray) and only.dtype == object and only.ndim == 2:  # a cell array with a row of names
        header = [str(name) for name in only[0]]
        variables = {name: only[1:, place] for place, name in enumerate(header)}
    elif only is not None:
        raise file_error(file, f"it holds a MATLAB table; {CONVERT}")
    return {name: _as_array(file, name, values) for name, values in variables.items() if is_needed(name)}


def _as_array(file: Path, name: str, cells: Any) -> np.ndarray:
    try:
        values = np.array([np.asarray(cell).reshape(-1) for cell in np.atleast_1d(cells)])
    except ValueError:
        raise file_error(file, f"the cells of column '{name}' hold different numbers of values") from None
    return values[:, 0] if values.ndim == 2 and values.shape[1] == 1 else values
