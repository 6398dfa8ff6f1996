"""A Hugging Face data set: a folder that `save_to_disk` wrote, or an object of the library `datasets` (extra `hf`)."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from undergrowth.core import TASKS, InputError, suggest
from undergrowth.data.dataset import Dataset
from undergrowth.data.dataset_entry import DatasetEntry
from undergrowth.data.loaders import words as texts
from undergrowth.data.loaders.files import MissingFilesError, file_error
from undergrowth.data.loaders.images import check_image_options, stack_images
from undergrowth.data.loaders.targets import (
    TASK_OPTION,
    as_targets,
    check_task,
    count_targets,
    next_tokens,
    split_samples,
)

_USUAL_LABELS = ("label", "labels", "target", "fine_label", "class")
_TEST_PARTS = ("test", "validation")


def is_hugging_face(value: Any) -> bool:
    """Whether `value` is a data set of the library `datasets`, which need not be imported for that."""
    return any(kind.__module__.partition(".")[0] == "datasets" for kind in type(value).__mro__)


def load(
    path: Any,
    *,
    input: str | Sequence[str] | None = None,
    label: str | Sequence[str] | None = None,
    group: str | None = None,
    size: int | Sequence[int] | None = None,
    channels: int = 3,
    length: int = 64,
    vocabulary: int = 20_000,
    words: str | None = None,
    tokenizer: str | None = None,
    test_share: float = 0.2,
    seed: int = 0,
    task: str = "classification",
) -> Dataset:
    """The data set in the folder `path`, or the object `path` itself.

    The input is one column of images or of texts, or columns of numbers. Without a part `test` or `validation`, the
    fraction `test_share` of every class is the central test set.
    """
    check_task(task, TASKS, "a Hugging Face data set")
    parts = _parts(path)
    train = parts[0]
    label_columns = _label_columns(train, label, task, tokenizer)
    group_column = None if group is None else _column(train, "group", group)
    columns = _inputs(train, input, {*label_columns, group_column})
    kinds = {_kind(train, column) for column in columns}
    if kinds == {"image"} and len(columns) == 1:
        inputs = _images(parts, columns[0], check_image_options(size, channels), channels)
    elif kinds == {"text"} and len(columns) == 1:
        rows = [[str(text) for text in part[columns[0]]] for part in parts]
        inputs = texts.token_rows(rows, length, vocabulary, words, tokenizer)
    elif kinds == {"number"}:
        inputs = [_numbers(part, columns, "input", np.int64 if task == "next-token" else np.float32) for part in parts]
    else:
        raise InputError(f"input is {columns}; it must be one column of images or of texts, or columns of numbers")
    labels, classes, names = _labels(parts, label_columns, task, inputs, texts.PADDING if kinds == {"text"} else None)
    fields = {} if group_column is None else {group_column: np.array([str(each) for each in train[group_column]])}
    if len(parts) == 1:
        kept, held = split_samples(labels[0], task, test_share, seed)
        inputs, labels = [inputs[0][kept], inputs[0][held]], [labels[0][kept], labels[0][held]]
        fields = {key: values[kept] for key, values in fields.items()}
    name = "dataset" if is_hugging_face(path) else Path(path).resolve().name
    chosen = f"the input is {', '.join(columns)} and the label {', '.join(label_columns) or 'the next token'}"
    notes = (chosen,) if input is None or (label is None and label_columns) else ()
    (x, test_x), (y, test_y) = inputs, labels
    return Dataset(name, x, y, test_x, test_y, classes, names, fields, notes=notes, task=task)


def _parts(path: Any) -> list[Any]:
    """The training part, and the test part if there is one."""
    found = path if is_hugging_face(path) else _read(path)
    parts = [found]
    if isinstance(found, dict):
        if "train" not in found:
            raise InputError(f"data set 'hf' has the parts {', '.join(found)}; one of them must be called train")
        parts = [found["train"], *[found[part] for part in _TEST_PARTS if part in found][:1]]
    for part in parts:
        if not hasattr(part, "__len__"):
            raise InputError(f"data: a {type(part).__name__} of datasets cannot be used; load it without streaming")
    return parts


def _read(folder: Path) -> Any:
    if not any((folder / name).is_file() for name in ("dataset_dict.json", "dataset_info.json")):
        raise MissingFilesError("it is not a folder that Dataset.save_to_disk wrote")
    try:
        import datasets
    except ImportError as error:
        raise InputError("data set 'hf' needs the library datasets: pip install 'undergrowth[hf]'") from error
    try:
        return datasets.load_from_disk(str(folder))
    except (OSError, ValueError) as error:
        raise file_error(folder, f"it cannot be read by datasets: {error}") from error


def _column(part: Any, option: str, wanted: Any) -> str:
    if wanted not in part.column_names:
        raise InputError(f"{option} is {wanted!r}; {suggest(str(wanted), part.column_names)}")
    return str(wanted)


def _kind(part: Any, column: str) -> str:
    feature = part.features[column]
    if type(feature).__name__ == "Image":
        return "image"
    dtype = str(getattr(feature, "dtype", ""))
    if dtype in ("string", "large_string"):
        return "text"
    inner = str(getattr(getattr(feature, "feature", None), "dtype", dtype))  # of a list
    return "number" if inner.startswith(("int", "uint", "float", "bool")) else "other"


def _label_columns(part: Any, label: Any, task: str, tokenizer: str | None) -> list[str]:
    """The columns of the label: one for classes, any number for other tasks, none for the next token of the input."""
    if task == "next-token":
        if label is not None:
            raise InputError(
                f"label is {label!r}; the task next-token has none: its labels are the tokens of the input"
            )
        if tokenizer is not None:
            raise InputError("tokenizer: the task next-token reads texts as words of a vocabulary; leave it out")
        return []
    if isinstance(label, list | tuple):
        if task == "classification" or not label:
            raise InputError(f"label {list(label)}: name one column; several are for regression and multi-label")
        return list(dict.fromkeys(_column(part, "label", each) for each in label))
    return [_label(part, label)]


def _label(part: Any, label: str | None) -> str:
    if label is not None:
        return _column(part, "label", label)
    classes = [name for name, feature in part.features.items() if type(feature).__name__ == "ClassLabel"]
    usual = [name for name in part.column_names if name.lower() in _USUAL_LABELS]
    if len(classes) != 1 and not usual:
        raise InputError(f"label is not given; name one of the columns: {', '.join(part.column_names)}")
    return str(usual[0] if usual else classes[0])


def _inputs(part: Any, given: Any, taken: set[str | None]) -> list[str]:
    if given is not None:
        return [_column(part, "input", each) for each in ([given] if isinstance(given, str) else given)]
    free = [name for name in part.column_names if name not in taken]
    for kind in ("image", "text", "number"):
        found = [name for name in free if _kind(part, name) == kind]
        if found and (kind == "number" or len(found) == 1):
            return found
        if found:
            raise InputError(f"input is not given; name one of the columns: {', '.join(found)}")
    raise InputError("data set 'hf' has no column of images, texts or numbers besides label and group")


def _labels(
    parts: Sequence[Any], columns: Sequence[str], task: str, inputs: Sequence[np.ndarray], padding: int | None
) -> tuple[list[np.ndarray], int, tuple[str, ...]]:
    """The labels of each part, the number of outputs that they need, and the names of the classes.

    `padding`: the token of `inputs` that does not count.
    """
    if task == "classification":
        labels, names = _classes(parts, columns[0])
        return labels, len(names), names
    if task == "next-token":
        if any(each.ndim != 2 or each.dtype.kind not in "iu" for each in inputs):
            raise InputError("task 'next-token': the input must be a column of texts, or of lists of tokens")
        return [next_tokens(each, padding) for each in inputs], 1 + max(int(each.max()) for each in inputs), ()
    named = getattr(getattr(parts[0].features[columns[0]], "feature", None), "names", None)
    if task == "multi-label" and named and len(columns) == 1:  # lists of the classes that a sample has
        return [_marks(part[columns[0]], len(named)) for part in parts], len(named), tuple(named)
    labels = [as_targets(_numbers(part, columns, "label", np.float32), task) for part in parts]
    count = count_targets(labels[0])
    return labels, count, tuple(columns) if count == len(columns) else ()


def _marks(rows: Any, classes: int) -> np.ndarray:
    """A row of 0 and 1 for each list of classes."""
    marks = np.zeros((len(rows), classes), dtype=np.float32)
    for place, found in enumerate(rows):
        marks[place, list(found)] = 1.0
    return marks


def _classes(parts: Sequence[Any], column: str) -> tuple[list[np.ndarray], tuple[str, ...]]:
    """The labels of each part from 0, and the names of the classes."""
    values = [list(part[column]) for part in parts]
    names = getattr(parts[0].features[column], "names", None)
    if names:
        return [np.array(each, dtype=np.int64) for each in values], tuple(names)
    if any(value is None or isinstance(value, float | list) for each in values for value in each):
        raise InputError(f"label '{column}' holds values that are not classes; labels are words or whole numbers")
    ordered = sorted({value for each in values for value in each})
    rank = {value: place for place, value in enumerate(ordered)}
    return [np.array([rank[value] for value in each], dtype=np.int64) for each in values], tuple(map(str, ordered))


def _images(parts: Sequence[Any], column: str, size: tuple[int, int] | None, channels: int) -> list[np.ndarray]:
    stacks: list[np.ndarray] = []
    for part in parts:
        images = (row[column] for row in part.select_columns([column]))
        stacks.append(stack_images(images, len(part), size, channels))
        size = stacks[0].shape[2], stacks[0].shape[3]
    return stacks


def _numbers(part: Any, columns: Sequence[str], option: str, dtype: Any) -> np.ndarray:
    if wrong := [column for column in columns if _kind(part, column) != "number"]:
        raise InputError(f"{option} '{wrong[0]}' does not hold numbers; name a column that does")
    rows = part.select_columns(list(columns)).with_format("numpy")[:]
    try:
        arrays = [np.asarray(rows[column], dtype=dtype) for column in columns]
    except (TypeError, ValueError):
        raise InputError(f"{option} {', '.join(columns)}: the lists of a column must be equally long") from None
    if len(arrays) == 1 and arrays[0].ndim > 1:
        return arrays[0]
    return np.concatenate([array.reshape(len(array), -1) for array in arrays], axis=1)


ENTRY = DatasetEntry(
    name="hf",
    title="Any Hugging Face data set on the disk",
    licence="that of the data set",
    how_to_get="write it there with Dataset.save_to_disk, and pip install 'undergrowth[hf]'",
    layout="the folder that Dataset.save_to_disk or DatasetDict.save_to_disk wrote",
    example='load("hf", "~/data/emotion", input="text", label="label")',
    loader=load,
    loader_options={
        "input": "column of images or texts, or columns of numbers; by default the only such column",
        "label": "column of the label; by default the one called label, or the only ClassLabel; of regression and "
        "multi-label also several columns, or one of lists",
        "group": "column of the natural groups; the partition is then natural by default",
        "size": "of images: height and width in pixels; by default those of the first image",
        "channels": "of images: 3 for colour, 1 for grey",
        **{key: f"of texts: {meaning}" for key, meaning in texts.OPTIONS.items()},
        "test_share": "fraction of every class for the central test set, if there is no part test or validation",
        "seed": "seed of the draw of that set",
        "task": TASK_OPTION.format("classification, regression, multi-label, next-token (of the input)"),
    },
)
