"""Flowers-102, CUB, Cars and EuroSAT from small folders in their public layouts."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from scipy.io import savemat

from undergrowth.core.errors import InputError
from undergrowth.data import load

Image = pytest.importorskip("PIL.Image")


def picture(file: Path, shade: int) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    Image.new("RGB", (6, 4), (shade, shade, shade)).save(file, quality=95)


def shades(x: np.ndarray) -> list[int]:
    return [round(int(image.mean()) / 10) * 10 for image in np.asarray(x)]


def test_flowers_102(tmp_path: Path) -> None:
    for number in range(1, 6):
        picture(tmp_path / "jpg" / f"image_{number:05d}.jpg", 10 * number)
    savemat(tmp_path / "imagelabels.mat", {"labels": [[1, 102, 3, 4, 5]]})
    savemat(tmp_path / "setid.mat", {"trnid": [[2, 1]], "valid": [[3]], "tstid": [[5, 4]]})
    data = load("flowers102", tmp_path, size=8)
    assert data.shape == (3, 8, 8) and data.classes == 102
    assert np.asarray(data.y).tolist() == [101, 0] and shades(data.x) == [20, 10]
    assert np.asarray(data.test_y).tolist() == [4, 3] and shades(data.test_x) == [50, 40]
    assert np.asarray(load("flowers102", tmp_path, size=8, validation=True).y).tolist() == [101, 0, 2]
    savemat(tmp_path / "setid.mat", {"trnid": [[2, 9]], "tstid": [[5]]})
    with pytest.raises(InputError, match="it names image 9, and there are 5 labels"):
        load("flowers102", tmp_path)


def test_cub(tmp_path: Path) -> None:
    for number in (1, 2, 3):
        picture(tmp_path / "images" / f"00{number}.Bird" / "a.jpg", 10 * number)
    (tmp_path / "images.txt").write_text("".join(f"{n} 00{n}.Bird/a.jpg\n" for n in (1, 2, 3)))
    (tmp_path / "image_class_labels.txt").write_text("1 1\n2 2\n3 200\n")
    (tmp_path / "train_test_split.txt").write_text("1 1\n2 0\n3 1\n")
    data = load("cub", tmp_path, size=(4, 6))
    assert data.shape == (3, 4, 6) and np.asarray(data.y).tolist() == [0, 199] and shades(data.test_x) == [20]
    (tmp_path / "train_test_split.txt").write_text("1 1\n2 0\n")
    with pytest.raises(InputError, match="list different images"):
        load("cub", tmp_path)


def test_cars(tmp_path: Path) -> None:
    (tmp_path / "devkit").mkdir()
    kind = [("fname", object), ("class", object)]
    for part, file in (("train", "devkit/cars_train_annos.mat"), ("test", "cars_test_annos_withlabels.mat")):
        notes = np.array([(f"{part}{number}.jpg", number) for number in (1, 196)], dtype=kind)
        savemat(tmp_path / file, {"annotations": notes})
        for number in (1, 196):
            picture(tmp_path / f"cars_{part}" / f"{part}{number}.jpg", number)
    data = load("cars", tmp_path, size=4)
    assert data.classes == 196 and np.asarray(data.y).tolist() == [0, 195] == np.asarray(data.test_y).tolist()
    assert shades(data.x) == [0, 200]


def test_eurosat(tmp_path: Path) -> None:
    for name in ("Forest", "River"):
        for number in range(5):
            picture(tmp_path / "EuroSAT_RGB" / name / f"{name}_{number}.jpg", number)
    data = load("eurosat", tmp_path)
    assert data.name == "eurosat" and data.shape == (3, 64, 64) and data.class_names == ("Forest", "River")
    assert len(data) == 8 and sorted(np.asarray(data.test_y).tolist()) == [0, 1]


def test_what_is_missing_is_named(tmp_path: Path) -> None:
    for name, words in (("flowers102", "102flowers.tgz"), ("cub", "CUB_200_2011.tgz"), ("eurosat", "EuroSAT_RGB.zip")):
        with pytest.raises(InputError, match=f"data set '{name}' is not in .*{words}"):
            load(name, tmp_path)
