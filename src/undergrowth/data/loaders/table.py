"""A table in a CSV or Parquet file: numeric columns are features, one column or several are the label."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from undergrowth.core import InputError, suggest
from undergrowth.data.dataset import Dataset
from undergrowth.data.dataset_entry import DatasetEntry
from undergrowth.data.loaders.files import MissingFilesError, file_error
from undergrowth.data.loaders.table_file import SUFFIXES, TableFile, TextColumn, open_table
from undergrowth.data.loaders.targets import as_targets, check_task, split_samples
from undergrowth.data.split import group_split

_TASKS = ("classification", "regression", "multi-label")
_USUAL_LABELS = ("label", "target")
MAX_VALUES_PER_ROW = 0.5  # a label with more different values than this fraction of the rows is not a class


def is_table_file(name: str) -> bool:
    """Whether the name of a data set is the path of a table."""
    return name.lower().endswith(SUFFIXES)


def load(
    path: Path,
    *,
    label: str | int | Sequence[str | int] | None = None,
    group: str | int | None = None,
    ignore: str | int | Sequence[str | int] = (),
    missing: str | None = "refuse",
    standardise: bool = True,
    standardise_label: bool = False,
    header: bool | None = None,
    test_share: float = 0.2,
    test_by: str = "row",
    seed: int = 0,
    task: str = "classification",
) -> Dataset:
    """Every column but `label`, `group` and `ignore` is a feature and must hold numbers.

    The table is divided into training and test rows; means and deviations are those of the training rows.
    """
    _check_options(missing, standardise, header, test_by, group)
    _check_task(task, label, standardise_label)
    table = open_table(_find(path), header)
    notes = _header_notes(table, header)
    ignored: Sequence[Any] = ignore if isinstance(ignore, list | tuple) else [ignore]
    left_out = {_column(table, "ignore", each) for each in ignored}
    left_out |= {table.names[number - 1] for number in table.unnamed}
    groups_by = None if group is None else _column(table, "group", group)
    labels = _labels(table, label, left_out | {groups_by}, notes)
    features = [name for name in table.names if name not in (left_out | {groups_by, *labels})]
    if not features:
        raise file_error(table.path, "it has no column for features besides label, group and ignore")
    has_classes = task == "classification"
    texts = list(dict.fromkeys([*(labels if has_classes else ()), *([] if groups_by is None else [groups_by])]))
    numbers = features if has_classes else [*features, *labels]
    matrix, columns = table.read(numbers, texts)
    kept = _complete_rows(table, numbers, len(features), matrix, columns, missing, notes)
    matrix, targets = matrix[:, : len(features)], matrix[:, len(features) :]
    if has_classes:
        y, class_names = _classes(table, labels[0], columns[labels[0]], kept)
    else:
        y, class_names = _targets(table, labels, targets, kept, task), tuple(labels)
    fields = {} if groups_by is None else {groups_by: _values(columns[groups_by])[kept]}
    matrix = matrix[kept]
    if test_by == "group":
        train, test = group_split(fields[str(groups_by)], test_share, seed)
    else:
        train, test = split_samples(y, task, test_share, seed)
    if not len(test):
        raise file_error(table.path, f"it has {len(y)} rows; at least 2 are needed, one of them for the test set")
    x = _prepare(table, features, matrix, train, standardise)
    if standardise_label:
        y = _prepare(table, labels, y, train, True)
    fields = {key: values[train] for key, values in fields.items()}
    name = table.path.name.partition(".")[0]
    return Dataset(
        name, x[train], y[train], x[test], y[test], len(class_names), class_names, fields, notes=tuple(notes), task=task
    )


def _check_options(missing: Any, standardise: Any, header: Any, test_by: Any, group: Any) -> None:
    if missing not in (None, "refuse", "drop", "mean"):
        raise InputError(
            f"missing is {missing!r}; it must be refuse, drop (leave such rows out) or mean (of the column)"
        )
    if not isinstance(standardise, bool):
        raise InputError(f"standardise is {standardise!r}; it must be true or false")
    if header is not None and not isinstance(header, bool):
        raise InputError(f"header is {header!r}; it must be true or false")
    if test_by not in ("row", "group"):
        raise InputError(f"test_by is {test_by!r}; it must be row or group")
    if test_by == "group" and group is None:
        raise InputError("test_by is 'group'; it needs the name of the column in group")


def _check_task(task: Any, label: Any, standardise_label: Any) -> None:
    check_task(task, _TASKS, "a table")
    if not isinstance(standardise_label, bool):
        raise InputError(f"standardise_label is {standardise_label!r}; it must be true or false")
    if standardise_label and task != "regression":
        raise InputError(f"standardise_label is for the task regression, and the task is {task}; leave it out")
    if task == "classification" and isinstance(label, list | tuple):
        raise InputError(
            f"label {list(label)}: several columns are for the tasks regression and multi-label; write task"
        )


def _find(path: Path) -> Path:
    if not path.is_file():
        raise MissingFilesError("it is a folder and must be a file" if path.is_dir() else "there is no such file")
    if not is_table_file(path.name):
        raise file_error(path, f"it must end in one of: {', '.join(SUFFIXES)}")
    return path


def _header_notes(table: TableFile, header: bool | None) -> list[str]:
    notes = []
    if header is None and table.first_row == 1 and table.names == tuple(map(str, range(1, len(table.names) + 1))):
        notes.append(f"{table.path.name} has no header: its columns are called 1 to {len(table.names)}")
    notes.extend(f"column {number} of {table.path.name} has no name and is left out" for number in table.unnamed)
    return notes


def _column(table: TableFile, option: str, wanted: str | int) -> str:
    if isinstance(wanted, bool) or not isinstance(wanted, str | int):
        raise InputError(f"{option} is {wanted!r}; it must be the name of a column")
    if str(wanted) not in table.names:
        raise file_error(table.path, f"{option}: there is no column '{wanted}'; {suggest(str(wanted), table.names)}")
    return str(wanted)


def _labels(
    table: TableFile, label: str | int | Sequence[str | int] | None, taken: set[Any], notes: list[str]
) -> list[str]:
    """The columns of the label: one, unless the task allows several."""
    if isinstance(label, list | tuple):
        if not label:
            raise InputError("label [] names no column; name at least one")
        return list(dict.fromkeys(_column(table, "label", each) for each in label))
    if label is not None:
        return [_column(table, "label", label)]  # type: ignore[arg-type]
    free = [name for name in table.names if name not in taken]
    if not free:
        raise file_error(table.path, "it has no column for the label besides group and ignore")
    chosen = next((name for name in free if name.lower() in _USUAL_LABELS), free[-1])
    notes.append(f"the label is column '{chosen}' of {table.path.name}; data.label names another")
    return [chosen]


def _complete_rows(
    table: TableFile,
    names: Sequence[str],
    features: int,
    matrix: np.ndarray,
    columns: dict[str, TextColumn],
    missing: str | None,
    notes: list[str],
) -> np.ndarray:
    """Indices of the rows to use. A label always needs a value.

    names: of the columns of the matrix; the first `features` are features, and the others labels.
    """
    empty = {name: column.codes == column.values.index("") for name, column in columns.items() if "" in column.values}
    if missing != "drop":
        for name, rows in empty.items():
            raise _no_value(table, int(np.argmax(rows)), name, "drop (leave such rows out)")
    holes = np.isnan(matrix)
    if missing != "drop" and holes[:, features:].any():
        row, column = np.argwhere(holes[:, features:])[0]
        raise _no_value(table, int(row), names[features + column], "drop (leave such rows out)")
    if missing in (None, "refuse") and holes.any():
        row, column = np.argwhere(holes)[0]
        raise _no_value(table, int(row), names[column], "drop (leave such rows out) or mean (of the column)")
    if missing == "mean":
        if holes.any():
            notes.append(f"{int(holes.sum())} cells of {table.path.name} without a value got the mean of their column")
        return np.arange(len(matrix))
    dropped = holes.any(axis=1)
    for rows in empty.values():
        dropped |= rows
    if dropped.all():
        raise file_error(table.path, "no row has a value in every column; name columns with few values in ignore")
    if dropped.any():
        notes.append(f"{int(dropped.sum())} of {len(matrix)} rows of {table.path.name} lack a value and were dropped")
    return np.flatnonzero(~dropped)


def _no_value(table: TableFile, row: int, column: str, choices: str) -> InputError:
    where = f"row {table.first_row + row}, column '{column}'"
    return file_error(table.path, f"{where} has no value; fill it in, or set data.missing to {choices}")


def _values(column: TextColumn) -> np.ndarray:
    return np.take(np.array(column.values), column.codes)


def _classes(table: TableFile, name: str, column: TextColumn, kept: np.ndarray) -> tuple[np.ndarray, tuple[str, ...]]:
    """Labels from 0, and the names of the classes: in the order of numbers if all are whole numbers."""
    codes = column.codes[kept]
    used = np.unique(codes)
    values = [column.values[code] for code in used]
    if len(values) > MAX_VALUES_PER_ROW * len(codes) and len(codes) > 10:
        raise file_error(
            table.path,
            f"column '{name}' has {len(values)} different values in {len(codes)} rows; a label must be a class: "
            "name its column in label",
        )
    numbers = [_as_number(value) for value in values]
    if None not in numbers:
        for number, value, code in zip(numbers, values, used, strict=True):
            if not float(number or 0).is_integer():
                row = table.first_row + int(np.argmax(column.codes == code))
                raise file_error(
                    table.path,
                    f"row {row}, column '{name}': {value!r} is not a class; labels are words or whole numbers",
                )
        values = [str(int(number or 0)) for number in numbers]  # 1 and 1.0 are one class
        names = sorted(set(values), key=int)
    else:
        names = sorted(values)
    rank = {name: place for place, name in enumerate(names)}
    table_of_ranks = np.zeros(len(column.values), dtype=np.int64)
    table_of_ranks[used] = [rank[value] for value in values]
    return table_of_ranks[codes], tuple(names)


def _targets(table: TableFile, labels: Sequence[str], values: np.ndarray, kept: np.ndarray, task: str) -> np.ndarray:
    """The label columns as float32: one number for each row, or several; 0 or 1 if the task is multi-label."""
    bad = np.argwhere((values != 0) & (values != 1)) if task == "multi-label" else np.empty((0, 2), np.int64)
    bad = bad[np.isin(bad[:, 0], kept)]
    if len(bad):
        row, column = bad[0]
        where = f"row {table.first_row + row}, column '{labels[column]}'"
        raise file_error(
            table.path, f"{where}: {values[row, column]:g} is not 0 or 1, as a label of multi-label must be"
        )
    return as_targets(values[kept], task)


def _as_number(value: str) -> float | None:
    try:
        return float(value)
    except ValueError:
        return None


def _prepare(
    table: TableFile, features: Sequence[str], matrix: np.ndarray, train: np.ndarray, standardise: bool
) -> np.ndarray:
    """Fills cells without a value with the mean of the training rows, and standardises with these rows."""
    holes = np.isnan(matrix)
    for name in np.array(features)[holes[train].all(axis=0)]:
        raise file_error(table.path, f"column '{name}' has no value in any training row; name it in ignore")
    means = np.nanmean(matrix[train], axis=0)
    matrix = np.where(holes, means, matrix)
    if standardise:
        with np.errstate(over="ignore", invalid="ignore"):
            deviations = matrix[train].std(axis=0)
        for name in np.array(features)[~np.isfinite(deviations)]:
            raise file_error(table.path, f"column '{name}' has numbers that are too large to standardise; correct them")
        matrix = (matrix - means) / np.where(deviations > 0, deviations, 1.0)
    return matrix.astype(np.float32)


ENTRY = DatasetEntry(
    name="table",
    title="Any CSV or Parquet file: numeric columns and a label",
    licence="that of the file",
    how_to_get="give the path of the file, or write --data FILE.csv",
    layout=f"one file ({', '.join(SUFFIXES)}); CSV with or without a header; Parquet needs 'undergrowth[parquet]'",
    example='load("table", "~/data/measured.csv", label="activity", group="user")',
    loader=load,
    loader_options={
        "label": "column of the label; by default label, target, or the last column; [a, b]: several, of another task",
        "group": "column of the natural groups; the partition is then natural by default",
        "ignore": "columns that are not features, such as [id, date]",
        "missing": "cells without a value: drop (leave the row out) or mean (of the training rows); by default refused",
        "standardise": "features with mean 0 and deviation 1 over the training rows",
        "standardise_label": "the same for the label of a regression; metrics are then in units of its deviation",
        "header": "whether a CSV file begins with names; by default unless its first row has a number",
        "test_share": "fraction for the central test set",
        "test_by": "row: that fraction of every class; group: that fraction of the groups, with all their rows",
        "seed": "seed of the draw of that set",
        "task": "classification, regression (numeric label) or multi-label (columns of 0 and 1); by default the run's",
    },
)
