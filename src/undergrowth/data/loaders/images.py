"""A folder of images with one folder per class, or with a table of numbers to predict.

Needs Pillow, which the extra `images` installs.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from undergrowth.core import InputError
from undergrowth.data.dataset import Dataset
from undergrowth.data.dataset_entry import DatasetEntry
from undergrowth.data.loaders.files import MissingFilesError, file_error
from undergrowth.data.loaders.table_file import open_table
from undergrowth.data.loaders.targets import TASK_OPTION, as_targets, check_task, count_targets, split_samples

TABLE = "metadata.csv"  # the name that Hugging Face's imagefolder uses, as of its column with the files
FILE_COLUMN = "file_name"
_TASKS = ("classification", "regression", "multi-label")
_MODES = {3: "RGB", 1: "L"}  # channels → Pillow's name
_SUFFIXES = {".png", ".jpg", ".jpeg", ".bmp", ".gif", ".webp", ".tif", ".tiff"}


def load(
    path: Path,
    *,
    size: int | Sequence[int] | None = None,
    channels: int = 3,
    label: str | Sequence[str] | None = None,
    test_share: float = 0.2,
    seed: int = 0,
    task: str = "classification",
) -> Dataset:
    """Images from path/CLASS/*, or path/train/CLASS/* and path/test/CLASS/*, all resized to one size.

    With the task regression or multi-label, the folder (or each of train and test) has a table metadata.csv instead of
    folders: a column `file_name` and columns of numbers, of which `label` names those to predict. `size` is (height,
    width), by default that of the first image; `channels` is 3 for colour or 1 for grey. Without a test folder, the
    fraction `test_share` of every class is the central test set.
    """
    wanted = check_image_options(size, channels)
    check_task(task, _TASKS, "a folder of images")
    if task == "classification" and label is not None:
        raise InputError(f"label is {label!r}; the classes of images are folders, so leave it out")
    folder = path / "train" if (path / "train").is_dir() else path
    has_test = folder != path and (path / "test").is_dir()
    names = _classes(folder) if task == "classification" else _label_columns(folder, label)
    files, y = _samples(folder, names, task)
    x = read_images(files, wanted, channels)
    if has_test:
        unknown = sorted(set(_classes(path / "test")) - set(names)) if task == "classification" else ()
        if unknown:
            raise InputError(f"{path / 'test' / unknown[0]}: there is no such class in {folder}")
        test_files, test_y = _samples(path / "test", names, task)
        test_x = read_images(test_files, (x.shape[2], x.shape[3]), channels)
    else:
        train, test = split_samples(y, task, test_share, seed)
        x, y, test_x, test_y = x[train], y[train], x[test], y[test]
    classes = len(names) if task == "classification" else count_targets(y)
    return Dataset(path.resolve().name, x, y, test_x, test_y, classes, names, task=task)


def _pillow() -> Any:
    try:
        from PIL import Image
    except ImportError as error:
        raise InputError("images need Pillow: pip install 'undergrowth[images]'") from error
    return Image


def check_image_options(size: Any, channels: Any) -> tuple[int, int] | None:
    """Height and width, or None if they are those of the first image."""
    if isinstance(channels, bool) or channels not in tuple(_MODES):  # a list cannot be a key
        raise InputError(f"channels is {channels!r}; it must be 3 (colour) or 1 (grey)")
    return None if size is None else _size(size)


def _size(size: Any) -> tuple[int, int]:
    pair = (size, size) if isinstance(size, int) else size
    is_pair = isinstance(pair, Sequence) and not isinstance(pair, str) and len(pair) == 2
    if not is_pair or any(isinstance(side, bool) or not isinstance(side, int) or side < 1 for side in pair):
        raise InputError(f"size is {size!r}; it must be (height, width) in pixels, such as (32, 32)")
    return pair[0], pair[1]


def _classes(folder: Path) -> tuple[str, ...]:
    if not folder.is_dir():
        raise MissingFilesError("there is no such folder")
    inside = sorted(each for each in folder.iterdir() if each.is_dir() and not each.name.startswith("."))
    found = tuple(each.name for each in inside if _image_files(each))
    if not found:
        raise MissingFilesError(f"{folder} contains no folder with images")
    return found


def _image_files(folder: Path) -> list[Path]:
    return sorted(each for each in folder.glob("*") if each.suffix.lower() in _SUFFIXES)


def _label_columns(folder: Path, label: str | Sequence[str] | None) -> tuple[str, ...]:
    """The columns to predict: those that `label` names, or all but that of the files."""
    if not (folder / TABLE).is_file():
        raise MissingFilesError(f"{folder} contains no {TABLE} with a column {FILE_COLUMN} and the numbers to predict")
    known = open_table(folder / TABLE, header=True).names
    if FILE_COLUMN not in known:
        raise file_error(folder / TABLE, f"it has no column '{FILE_COLUMN}', only {', '.join(known)}")
    wanted = [name for name in known if name != FILE_COLUMN] if label is None else label
    columns = (wanted,) if isinstance(wanted, str) else tuple(wanted)
    for name in columns:
        if name not in known or name == FILE_COLUMN:
            raise file_error(folder / TABLE, f"label: it has no column '{name}' to predict, only {', '.join(known)}")
    return columns


def _samples(folder: Path, names: tuple[str, ...], task: str) -> tuple[list[Path], np.ndarray]:
    """The image files of a folder and their labels: classes by folder, or columns of its table."""
    if task == "classification":
        return _files(folder, names)
    table = open_table(folder / TABLE, header=True)
    values, texts = table.read(names, [FILE_COLUMN])
    files = texts[FILE_COLUMN]
    if np.isnan(values).any():
        row, column = np.argwhere(np.isnan(values))[0]
        raise file_error(table.path, f"row {table.first_row + row}, column '{names[column]}' has no value; fill it in")
    return [folder / files.values[code] for code in files.codes], as_targets(values, task)


def _files(folder: Path, class_names: tuple[str, ...]) -> tuple[list[Path], np.ndarray]:
    by_class = [_image_files(folder / name) for name in class_names]
    labels = np.repeat(np.arange(len(by_class), dtype=np.int64), [len(files) for files in by_class])
    return [file for files in by_class for file in files], labels


def read_images(files: Sequence[Path], size: tuple[int, int] | None, channels: int) -> np.ndarray:
    """The images in these files as bytes, N×C×H×W; without `size` in the size of the first."""
    pillow = _pillow()
    return stack_images((_open(pillow, file, channels) for file in files), len(files), size, channels)


def _open(pillow: Any, file: Path, channels: int) -> Any:
    try:
        with pillow.open(file) as opened:
            return _convert(pillow, opened, channels)
    except (OSError, ValueError, SyntaxError, pillow.DecompressionBombError) as error:
        raise file_error(file, f"it cannot be read as an image: {error}") from error


def _convert(pillow: Any, image: Any, channels: int) -> Any:
    """The image with one byte for each channel of a pixel. Pillow would cut larger numbers off at 255."""
    if image.mode.startswith("I;16") or (image.mode == "I" and image.format == "PNG"):  # older versions of Pillow
        image = pillow.fromarray((np.asarray(image) >> 8).astype(np.uint8))  # as Pillow reads colours of 16 bits
    elif image.mode in ("I", "F"):
        pixels = np.asarray(image)
        low, high = pixels.min(), pixels.max()
        if not (low >= 0 and high <= 255) or (high <= 1 and (pixels % 1).any()):
            raise InputError(
                f"its pixels are numbers from {low:g} to {high:g}, of no known range; save it with 8 or 16 bits"
            )
    elif image.mode == "P" and "transparency" in image.info:
        image = image.convert("RGBA")  # Pillow warns of any other conversion
    return image.convert(_MODES[channels])


def stack_images(images: Iterable[Any], count: int, size: tuple[int, int] | None, channels: int) -> np.ndarray:
    """All `count` images of Pillow in one array of bytes, N×C×H×W; without `size` in the size of the first."""
    pillow = _pillow()
    pixels: np.ndarray | None = None
    for position, image in enumerate(images):
        image = _convert(pillow, image, channels)
        if size is None:
            size = (image.height, image.width)
        if pixels is None:
            try:
                pixels = np.empty((count, channels, *size), dtype=np.uint8)
            except (MemoryError, ValueError):  # numpy raises a ValueError for a size that no machine could have
                raise InputError(
                    f"{count} images of {size[0]}×{size[1]} pixels do not fit into memory; choose a smaller size"
                ) from None
        if (image.height, image.width) != size:
            image = image.resize((size[1], size[0]), pillow.Resampling.BILINEAR)
        pixels[position] = np.asarray(image).reshape(*size, channels).transpose(2, 0, 1)
    assert pixels is not None  # the caller found at least one image
    return pixels


ENTRY = DatasetEntry(
    name="images",
    title="Any folder of images, with one folder per class or a table of numbers",
    licence="that of the images",
    how_to_get="put the images there, in one folder per class, and pip install 'undergrowth[images]'",
    layout="CLASS/*.png, or train/CLASS/*.png and test/CLASS/*.png (also jpg, bmp, gif, webp, tiff); "
    "for regression and multi-label metadata.csv with the column file_name, beside the images",
    example='load("images", "~/data/flowers", size=(32, 32))',
    loader=load,
    loader_options={
        "size": "height and width in pixels; by default those of the first image",
        "channels": "3 for colour, 1 for grey",
        "test_share": "fraction of every class for the central test set, if the files have none",
        "label": "columns of metadata.csv to predict, for regression and multi-label; by default all but file_name",
        "seed": "seed of the draw of that set",
        "task": TASK_OPTION.format("classification, regression, multi-label"),
    },
)
