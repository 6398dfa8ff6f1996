"""A Hugging Face data set: a folder that `save_to_disk` wrote, or an object of the library `datasets` (extra `hf`)."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from undergrowth.core.errors import InputError, suggest
from undergrowth.data.dataset import Dataset
from undergrowth.data.dataset_entry import DatasetEntry
from undergrowth.data.loaders import words as texts
from undergrowth.data.loaders.files import MissingFilesError, file_error
from undergrowth.data.loaders.images import check_image_options, stack_images
from undergrowth.data.split import stratified_split

_USUAL_LABELS = ("label", "labels", "target", "fine_label", "class")
_TEST_PARTS = ("test", "validation")


def is_hugging_face(value: Any) -> bool:
    """Whether `value` is a data set of the library `datasets`, which need not be imported for that."""
    return any(kind.__module__.partition(".")[0] == "datasets" for kind in type(value).__mro__)


def load(
    path: Any,
    *,
    input: str | Sequence[str] | None = None,
    label: str | None = None,
    group: str | None = None,
    size: int | Sequence[int] | None = None,
    channels: int = 3,
    length: int = 64,
    vocabulary: int = 20_000,
    words: str | None = None,
    test_share: float = 0.2,
    seed: int = 0,
) -> Dataset:
    """The data set in the folder `path`, or the object `path` itself.

    The input is one column of images or of texts, or columns of numbers. Without a part `test` or `validation`, the
    fraction `test_share` of every class is the central test set.
    """
    train, test = _parts(path)
    label_column = _label(train, label)
    group_column = None if group is None else _column(train, "group", group)
    columns = _inputs(train, input, {label_column, group_column})
    kinds = {_kind(train, column) for column in columns}
    y, names = _labels(train, label_column, None)
    test_y = None if test is None else _labels(test, label_column, names)[0]
    if kinds == {"image"} and len(columns) == 1:
        wanted = check_image_options(size, channels)
        x = _images(train, columns[0], wanted, channels)
        test_x = None if test is None else _images(test, columns[0], x.shape[2:], channels)
    elif kinds == {"text"} and len(columns) == 1:
        texts.check_options(length, vocabulary, words)
        tokens: dict[str, int] = {}
        x, tokens = _texts(train, columns[0], length, vocabulary, words, tokens)
        test_x = None if test is None else _texts(test, columns[0], length, vocabulary, words, tokens)[0]
    elif kinds == {"number"}:
        x, test_x = _numbers(train, columns), None if test is None else _numbers(test, columns)
    else:
        raise InputError(f"input is {columns}; it must be one column of images or of texts, or columns of numbers")
    fields = {} if group_column is None else {group_column: np.array([str(each) for each in train[group_column]])}
    if test_x is None or test_y is None:
        kept, held = stratified_split(y, test_share, seed)
        x, y, test_x, test_y = x[kept], y[kept], x[held], y[held]
        fields = {key: values[kept] for key, values in fields.items()}
    name = "dataset" if is_hugging_face(path) else Path(path).resolve().name
    notes = (f"the input is {', '.join(columns)} and the label {label_column}",) if None in (input, label) else ()
    return Dataset(name, x, y, test_x, test_y, len(names), names, fields, notes=notes)


def _parts(path: Any) -> tuple[Any, Any]:
    """The training part and the test part, or None if there is no test part."""
    if not is_hugging_face(path):
        path = _read(path)
    if isinstance(path, dict):
        if "train" not in path:
            raise InputError(f"data set 'hf' has the parts {', '.join(path)}; one of them must be called train")
        return path["train"], next((path[part] for part in _TEST_PARTS if part in path), None)
    if not hasattr(path, "select_columns") or not hasattr(path, "__len__"):
        raise InputError(f"data: a {type(path).__name__} of datasets cannot be used; load it without streaming")
    return path, None


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


def _labels(part: Any, column: str, names: tuple[str, ...] | None) -> tuple[np.ndarray, tuple[str, ...]]:
    values = list(part[column])
    if getattr(part.features[column], "names", None):
        return np.array(values, dtype=np.int64), tuple(part.features[column].names)
    if any(value is None or isinstance(value, float | list) for value in values):
        raise InputError(f"label '{column}' holds values that are not classes; labels are words or whole numbers")
    ordered = sorted(set(values)) if names is None else names
    rank = {str(value): place for place, value in enumerate(ordered)}
    unknown = next((value for value in values if str(value) not in rank), None)
    if unknown is not None:
        raise InputError(f"label '{column}': {unknown!r} is in the test part and not in the training part")
    return np.array([rank[str(value)] for value in values], dtype=np.int64), tuple(map(str, ordered))


def _images(part: Any, column: str, size: Any, channels: int) -> np.ndarray:
    images = (row[column] for row in part.select_columns([column]))
    return stack_images(images, len(part), None if size is None else (size[0], size[1]), channels)


def _texts(
    part: Any, column: str, length: int, vocabulary: int, words: str | None, tokens: dict[str, int]
) -> tuple[np.ndarray, dict[str, int]]:
    rows = [texts.tokenise(str(text)) for text in part[column]]
    tokens = tokens or texts.build_vocabulary(rows, words, vocabulary)
    return texts.encode(rows, tokens, length), tokens


def _numbers(part: Any, columns: Sequence[str]) -> np.ndarray:
    rows = part.select_columns(list(columns)).with_format("numpy")[:]
    try:
        arrays = [np.asarray(rows[column], dtype=np.float32) for column in columns]
    except (TypeError, ValueError):
        raise InputError(f"input {', '.join(columns)}: the lists of a column must be equally long") from None
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
        "label": "column of the label; by default the one called label, or the only ClassLabel",
        "group": "column of the natural groups; the partition is then natural by default",
        "size": "of images: height and width in pixels; by default those of the first image",
        "channels": "of images: 3 for colour, 1 for grey",
        **{key: f"of texts: {meaning}" for key, meaning in texts.OPTIONS.items()},
        "test_share": "fraction of every class for the central test set, if there is no part test or validation",
        "seed": "seed of the draw of that set",
    },
)
