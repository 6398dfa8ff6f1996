"""Photographs with official splits: Flowers-102, CUB-200-2011, Stanford Cars; and EuroSAT. All need Pillow."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from undergrowth.core import InputError
from undergrowth.data.dataset import Dataset
from undergrowth.data.dataset_entry import DatasetEntry
from undergrowth.data.loaders import images
from undergrowth.data.loaders.files import file_error, find_file, find_folder, read_lines
from undergrowth.data.loaders.images import check_image_options, read_images

_SIZE = {"size": "height and width in pixels, to which all images are resized"}


def load_flowers(path: Path, *, size: int | Sequence[int] = 224, validation: bool = False) -> Dataset:
    """The official training and test images."""
    folder = find_folder(path, ("flowers-102", "flowers102"), ("setid.mat",))
    labels = _matlab(find_file(folder, "imagelabels.mat"), "labels").astype(np.int64).ravel() - 1
    file = find_file(folder, "setid.mat")
    parts = [_matlab(file, name).astype(np.int64).ravel() for name in ("trnid", "tstid")]
    if validation:
        parts[0] = np.concatenate([parts[0], _matlab(file, "valid").astype(np.int64).ravel()])
    highest = max(part.max() for part in parts)
    if highest > len(labels):
        raise file_error(file, f"it names image {highest}, and there are {len(labels)} labels")
    files = [[folder / "jpg" / f"image_{number:05d}.jpg" for number in part] for part in parts]
    train_y, test_y = (labels[part - 1] for part in parts)
    return _dataset("flowers102", files[0], train_y, files[1], test_y, size, 102)


def load_cub(path: Path, *, size: int | Sequence[int] = 224) -> Dataset:
    """The official training and test images."""
    folder = find_folder(path, ("CUB_200_2011", "cub"), ("train_test_split.txt",))
    names, labels, is_train = (
        dict(line.split(maxsplit=1) for line in read_lines(find_file(folder, name)))
        for name in ("images.txt", "image_class_labels.txt", "train_test_split.txt")
    )
    if not names.keys() == labels.keys() == is_train.keys():
        raise file_error(folder, "images.txt, image_class_labels.txt and train_test_split.txt list different images")
    parts = [[key for key in names if (is_train[key] == "1") is wanted] for wanted in (True, False)]
    files = [[folder / "images" / names[key] for key in part] for part in parts]
    train_y, test_y = (np.array([int(labels[key]) - 1 for key in part], dtype=np.int64) for part in parts)
    classes = tuple(line.split(maxsplit=1)[1] for line in read_lines(folder / "classes.txt"))
    return _dataset("cub", files[0], train_y, files[1], test_y, size, 200, classes)


def load_cars(path: Path, *, size: int | Sequence[int] = 224) -> Dataset:
    """The official training and test images, which are not cut to their boxes."""
    folder = find_folder(path, ("stanford_cars", "cars"), ("devkit/cars_train_annos.mat",))
    with_labels = "cars_test_annos_withlabels.mat"
    files, labels = [], []
    for part, *names in (
        ("cars_train", "devkit/cars_train_annos.mat"),
        ("cars_test", with_labels, f"devkit/{with_labels}"),
    ):
        notes = _matlab(find_file(folder, *names), "annotations").ravel()
        files.append([folder / part / str(np.asarray(note["fname"]).item()) for note in notes])
        labels.append(np.array([int(np.asarray(note["class"]).item()) - 1 for note in notes], dtype=np.int64))
    return _dataset("cars", files[0], labels[0], files[1], labels[1], size, 196)


def load_eurosat(path: Path, *, size: int | Sequence[int] = 64, test_share: float = 0.2, seed: int = 0) -> Dataset:
    """The satellite images in colour. There is no official split: `test_share` of every class is the test set."""
    folder = find_folder(path, ("EuroSAT_RGB", "EuroSAT/2750", "2750", "EuroSAT"), ("*/*.jpg",))
    dataset = images.load(folder, size=size, test_share=test_share, seed=seed)
    return replace(dataset, name="eurosat")


def _dataset(
    name: str,
    files: Sequence[Path],
    y: np.ndarray,
    test_files: Sequence[Path],
    test_y: np.ndarray,
    size: Any,
    classes: int,
    class_names: tuple[str, ...] = (),
) -> Dataset:
    wanted = check_image_options(size, 3)
    x, test_x = (read_images(part, wanted, 3) for part in (files, test_files))
    return Dataset(name, x, y, test_x, test_y, classes, class_names)


def _matlab(file: Path, name: str) -> np.ndarray:
    """One variable of a MATLAB file."""
    from scipy.io import loadmat  # a dependency of scikit-learn; importing it takes a tenth of a second

    try:
        found: np.ndarray = loadmat(file)[name]
    except KeyError:
        raise file_error(file, f"it has no variable '{name}'") from None
    except (ValueError, TypeError, OSError, NotImplementedError) as error:
        raise InputError(f"{file}: it cannot be read as a MATLAB file: {error}") from error
    return found


FLOWERS102 = DatasetEntry(
    name="flowers102",
    title="Flowers-102, species of flowers",
    shape=(3, 224, 224),
    classes=102,
    train=1_020,
    test=6_149,
    megabytes=1_079,
    licence="none stated; cite Nilsback and Zisserman 2008",
    how_to_get=(
        "unpack 102flowers.tgz (https://www.robots.ox.ac.uk/~vgg/data/flowers/102) there, put imagelabels.mat and "
        "setid.mat beside it, and pip install 'undergrowth[images]'"
    ),
    layout="jpg/image_*.jpg, imagelabels.mat and setid.mat",
    example='load("flowers102", "~/data/flowers-102")',
    loader=load_flowers,
    loader_options={**_SIZE, "validation": "true: train on the 1020 validation images too"},
)

CUB = DatasetEntry(
    name="cub",
    title="CUB-200-2011, species of birds",
    shape=(3, 224, 224),
    classes=200,
    train=5_994,
    test=5_794,
    megabytes=1_775,
    licence="for research, not for commerce (Wah et al. 2011)",
    how_to_get=(
        "unpack CUB_200_2011.tgz (https://www.vision.caltech.edu/datasets/cub_200_2011) there, and "
        "pip install 'undergrowth[images]'"
    ),
    layout="images/, images.txt, image_class_labels.txt and train_test_split.txt",
    example='load("cub", "~/data/CUB_200_2011")',
    loader=load_cub,
    loader_options=_SIZE,
)

CARS = DatasetEntry(
    name="cars",
    title="Stanford Cars, models of cars",
    shape=(3, 224, 224),
    classes=196,
    train=8_144,
    test=8_041,
    megabytes=2_436,
    licence="for research, not for commerce (Krause et al. 2013)",
    how_to_get=(
        "put the folders cars_train, cars_test and devkit of Stanford Cars and the file cars_test_annos_withlabels.mat "
        "there, and pip install 'undergrowth[images]'"
    ),
    layout="cars_train/, cars_test/, devkit/cars_train_annos.mat and cars_test_annos_withlabels.mat",
    example='load("cars", "~/data/stanford_cars")',
    loader=load_cars,
    loader_options=_SIZE,
)

EUROSAT = DatasetEntry(
    name="eurosat",
    title="EuroSAT, the use of land in satellite images",
    shape=(3, 64, 64),
    classes=10,
    train=21_600,
    test=5_400,
    megabytes=332,
    licence="MIT (Helber et al. 2019); contains Copernicus data",
    how_to_get=(
        "unpack EuroSAT_RGB.zip (https://github.com/phelber/EuroSAT) there, and pip install 'undergrowth[images]'"
    ),
    layout="EuroSAT_RGB/CLASS/*.jpg",
    example='load("eurosat", "~/data/EuroSAT_RGB")',
    loader=load_eurosat,
    loader_options={
        **_SIZE,
        "test_share": "fraction of every class for the central test set",
        "seed": "seed of the draw of that set",
    },
)
