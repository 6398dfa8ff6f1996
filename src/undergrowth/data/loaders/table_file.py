"""Columns of a table file: a CSV file, read with the standard library, or a Parquet file, read with pyarrow."""

from __future__ import annotations

import csv
import gzip
import math
import re
import zlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any, Protocol, TextIO

import numpy as np

from undergrowth.core import InputError
from undergrowth.data.loaders.files import file_error

SUFFIXES = (".csv", ".tsv", ".csv.gz", ".tsv.gz", ".parquet")
ROWS_PER_CHUNK = 1000  # rows that are converted together; more are slower, because they leave the processor's cache
MAX_CELL_CHARACTERS = 2**27
NO_VALUE = frozenset(("", "?", "na", "n/a", "nan", "null", "none"))  # cells without a value, in lower case


@dataclass(frozen=True)
class TextColumn:
    """A column as text: the number of the value of each row, and the values. Cells without a value are ""."""

    codes: np.ndarray
    values: list[str]


class TableFile(Protocol):
    """A file with named columns. `first_row` is the number of its first row of data in messages."""

    path: Path
    names: tuple[str, ...]
    first_row: int
    unnamed: tuple[int, ...]  # numbers of columns whose name is empty

    def read(self, numbers: Sequence[str], texts: Sequence[str]) -> tuple[np.ndarray, dict[str, TextColumn]]:
        """The columns `numbers` as a matrix of float64, NaN without a value, and the columns `texts`."""
        ...


def open_table(path: Path, header: bool | None) -> TableFile:
    """The table at `path`. `header`: whether a CSV file begins with names; None decides by its first row."""
    table: TableFile = ParquetFile(path) if path.suffix == ".parquet" else CsvFile(path, header)
    for place, name in enumerate(table.names):
        if name in table.names[:place]:
            raise file_error(path, f"two columns are called '{name}'; each name must be there once")
    return table


class CsvFile:
    """A CSV file, with commas, semicolons or tabs; compressed if its name ends in .gz.

    Without a header the columns are called 1, 2, 3 and so on.
    """

    def __init__(self, path: Path, header: bool | None) -> None:
        self.path = path
        with self._opened() as file:
            line = file.readline()
        self.delimiter = max(",;\t", key=line.count)
        first = next(self._rows(), None)
        if first is None:
            raise file_error(path, "it is empty; it needs a row of column names and rows of values")
        cells = [cell.strip() for cell in first]
        self.has_header = not any(_number(cell) is not None for cell in cells) if header is None else header
        self.first_row = 2 if self.has_header else 1
        self.unnamed = tuple(n for n, cell in enumerate(cells, 1) if self.has_header and not cell)
        self.names = tuple(cell if self.has_header and cell else str(n) for n, cell in enumerate(cells, 1))

    def read(self, numbers: Sequence[str], texts: Sequence[str]) -> tuple[np.ndarray, dict[str, TextColumn]]:
        rows = self._rows()
        if self.has_header:
            next(rows)
        places = [self.names.index(name) for name in numbers]
        known: dict[str, dict[str, int]] = {name: {} for name in texts}
        matrices: list[np.ndarray] = []
        codes: dict[str, list[np.ndarray]] = {name: [] for name in texts}
        row = self.first_row
        while chunk := list(islice(rows, ROWS_PER_CHUNK)):
            columns = self._columns(chunk, row)
            converted = [self._numbers(columns[place], place, row) for place in places]
            matrices.append(np.stack(converted, axis=1) if converted else np.empty((len(chunk), 0)))
            for name in texts:
                index, cells = known[name], columns[self.names.index(name)]
                codes[name].append(np.array([index.setdefault(_text(cell), len(index)) for cell in cells]))
            row += len(chunk)
        if not matrices:
            raise file_error(self.path, "it has no rows below its header")
        found = {name: TextColumn(np.concatenate(codes[name]), list(known[name])) for name in texts}
        return np.concatenate(matrices), found

    def _rows(self) -> Iterator[list[str]]:
        csv.field_size_limit(MAX_CELL_CHARACTERS)
        with self._opened() as file:
            yield from filter(None, csv.reader(file, delimiter=self.delimiter))

    @contextmanager
    def _opened(self) -> Iterator[TextIO]:
        """The file as text. What goes wrong while the block reads it becomes an `InputError`."""
        opener = gzip.open if self.path.suffix == ".gz" else open
        try:
            with opener(self.path, "rt", encoding="utf-8-sig", newline="") as file:
                yield file
        except UnicodeDecodeError as error:
            raise file_error(self.path, "it is not UTF-8 text") from error
        except (csv.Error, EOFError, zlib.error, OSError) as error:
            raise file_error(self.path, f"it cannot be read as CSV: {error}") from error

    def _columns(self, chunk: list[list[str]], row: int) -> list[tuple[str, ...]]:
        width = len(self.names)
        for place, cells in enumerate(chunk):
            if len(cells) != width:
                raise file_error(
                    self.path, f"row {row + place} has {len(cells)} cells; it must have {width}, one for each column"
                )
        return list(zip(*chunk, strict=True))

    def _numbers(self, cells: Sequence[str], column: int, row: int) -> np.ndarray:
        try:
            converted = np.fromiter(map(float, cells), np.float64, len(cells))
            if not np.isinf(converted).any():
                return converted
        except ValueError:
            pass
        for place, cell in enumerate(cells):
            if _number(cell) is None and _text(cell):
                raise text_error(self.path, row + place, self.names[column], cell)
        return np.array([math.nan if not _text(cell) else float(cell) for cell in cells])


class ParquetFile:
    """A Parquet file. Needs pyarrow, which the extra `parquet` installs."""

    first_row: int = 1
    unnamed: tuple[int, ...] = ()

    def __init__(self, path: Path) -> None:
        try:
            from pyarrow import ArrowException, parquet
        except ImportError as error:
            raise InputError(f"{path} needs pyarrow to be read: pip install 'undergrowth[parquet]'") from error
        self.path = path
        try:
            self._file: Any = parquet.ParquetFile(path)
        except (OSError, ArrowException) as error:
            raise file_error(path, f"it cannot be read as Parquet: {error}") from error
        self.names: tuple[str, ...] = tuple(self._file.schema_arrow.names)

    def read(self, numbers: Sequence[str], texts: Sequence[str]) -> tuple[np.ndarray, dict[str, TextColumn]]:
        table = self._file.read(columns=[*numbers, *texts])
        if not table.num_rows:
            raise file_error(self.path, "it has no rows")
        matrix = np.empty((table.num_rows, len(numbers)))
        for place, name in enumerate(numbers):
            matrix[:, place] = self._numbers(name, table.column(name))
        found = {}
        for name in texts:
            index: dict[str, int] = {}
            values = table.column(name).to_pylist()
            codes = [index.setdefault("" if v is None else _text(str(v)), len(index)) for v in values]
            found[name] = TextColumn(np.array(codes), list(index))
        return matrix, found

    def _numbers(self, name: str, column: Any) -> np.ndarray:
        from pyarrow import types

        kind = column.type
        if not (types.is_integer(kind) or types.is_floating(kind) or types.is_boolean(kind) or types.is_null(kind)):
            values = column.to_pylist()
            row = next((place for place, value in enumerate(values) if value is not None), 0)
            raise text_error(self.path, row + 1, name, str(values[row]))
        converted: np.ndarray = column.cast("float64").to_numpy()
        for row in np.flatnonzero(np.isinf(converted))[:1]:
            raise text_error(self.path, int(row) + 1, name, str(converted[row]))
        return converted


def text_error(path: Path, row: int, column: str, cell: str) -> InputError:
    """The error for a cell of a feature that is not a finite number."""
    comma = re.fullmatch(r"\s*-?\d+,\d+\s*", cell)
    remedy = "write numbers with a point" if comma else "name the column in label, group or ignore, or correct the cell"
    return file_error(path, f"row {row}, column '{column}': {cell!r} is not a finite number; {remedy}")


def _text(cell: str) -> str:
    stripped = cell.strip()
    return "" if stripped.lower() in NO_VALUE else stripped


def _number(cell: str) -> float | None:
    """The finite number in a cell, or None."""
    try:
        number = float(cell)
    except ValueError:
        return None
    return number if math.isfinite(number) else None
