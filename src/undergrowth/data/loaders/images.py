"""A folder of images with one folder per class. Needs Pillow, which the extra `images` installs."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from undergrowth.core.errors import InputError
from undergrowth.data.dataset import Dataset
from undergrowth.data.dataset_entry import DatasetEntry
from undergrowth.data.loaders.files import MissingFilesError, file_error
from undergrowth.data.split import stratified_split

_MODES = {3: "RGB", 1: "L"}  # channels → Pillow's name
_SUFFIXES = {".png", ".jpg", ".jpeg", ".bmp", ".gif", ".webp", ".tif", ".tiff"}


def load(
    path: Path, *, size: int | Sequence[int] | None = None, channels: int = 3, test_share: float = 0.2, seed: int = 0
) -> Dataset:
    """Images from path/CLASS/*, or path/train/CLASS/* and path/test/CLASS/*, all resized to one size.

    `size` is (height, width), by default that of the first image; `channels` is 3 for colour or 1 for grey. Without a
    test folder, the fraction `test_share` of every class is the central test set.
    """
    wanted = check_image_options(size, channels)
    folder = path / "train" if (path / "train").is_dir() else path
    class_names = _classes(folder)
    files, y = _files(folder, class_names)
    x = read_images(files, wanted, channels)
    if folder != path and (path / "test").is_dir():
        unknown = sorted(set(_classes(path / "test")) - set(class_names))
        if unknown:
            raise InputError(f"{path / 'test' / unknown[0]}: there is no such class in {folder}")
        test_files, test_y = _files(path / "test", class_names)
        test_x = read_images(test_files, (x.shape[2], x.shape[3]), channels)
    else:
        train, test = stratified_split(y, test_share, seed)
        x, y, test_x, test_y = x[train], y[train], x[test], y[test]
    return Dataset(path.resolve().name, x, y, test_x, test_y, len(class_names), class_names)


def _pillow() -> Any:
    try:
        from PIL import Image
    except ImportError as error:
        raise InputError("images need Pillow: pip install 'undergrowth[images]'") from error
    return Image


def check_image_options(size: Any, channels: Any) -> tuple[int, int] | None:
    """Height and width, or None if they are those of the first image."""
    if isinstance(channels, bool) or channels not in _MODES:
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
            return opened.convert(_MODES[channels])
    except (OSError, ValueError, SyntaxError, pillow.DecompressionBombError) as error:
        raise file_error(file, f"it cannot be read as an image: {error}") from error


def stack_images(images: Iterable[Any], count: int, size: tuple[int, int] | None, channels: int) -> np.ndarray:
    """All `count` images of Pillow in one array of bytes, N×C×H×W; without `size` in the size of the first."""
    pillow = _pillow()
    pixels: np.ndarray | None = None
    for position, image in enumerate(images):
        image = image.convert(_MODES[channels])
        if size is None:
            size = (image.height, image.width)
        if pixels is None:
            pixels = np.empty((count, channels, *size), dtype=np.uint8)
        if (image.height, image.width) != size:
            image = image.resize((size[1], size[0]), pillow.Resampling.BILINEAR)
        pixels[position] = np.asarray(image).reshape(*size, channels).transpose(2, 0, 1)
    assert pixels is not None  # the caller found at least one image
    return pixels


ENTRY = DatasetEntry(
    name="images",
    title="Any folder of images with one folder per class",
    licence="that of the images",
    how_to_get="put the images there, in one folder per class, and pip install 'undergrowth[images]'",
    layout="CLASS/*.png, or train/CLASS/*.png and test/CLASS/*.png (also jpg, bmp, gif, webp, tiff)",
    example='load("images", "~/data/flowers", size=(32, 32))',
    loader=load,
    loader_options={
        "size": "height and width in pixels; by default those of the first image",
        "channels": "3 for colour, 1 for grey",
        "test_share": "fraction of every class for the central test set, if the files have none",
        "seed": "seed of the draw of that set",
    },
)
