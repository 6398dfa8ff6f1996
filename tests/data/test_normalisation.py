"""Per-channel normalisation: the figures of a data set, those of its training images, or given ones."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from undergrowth.core.errors import InputError
from undergrowth.data import Dataset, load, normalise, partition_dataset
from undergrowth.data.normalisation import IMAGES_PER_PASS
from undergrowth.runs.config import parse_experiment
from undergrowth.runs.federation_builder import federate

RANDOM = np.random.default_rng(4)
COUNT = IMAGES_PER_PASS + 7  # more than are summed at once
PIXELS = RANDOM.integers(0, 256, (COUNT, 3, 4, 5), dtype=np.uint8)
PIXELS[:, 1] //= 3
LABELS = np.arange(COUNT) % 2
IMAGES = Dataset("images", PIXELS, LABELS, PIXELS[:9] // 2, LABELS[:9], 2)


def test_the_training_images_get_mean_0_and_standard_deviation_1() -> None:
    found = normalise(IMAGES, True)
    scaled = PIXELS / 255
    assert found.mean is not None and found.std is not None
    np.testing.assert_allclose(found.mean, [scaled[:, channel].mean() for channel in range(3)])
    np.testing.assert_allclose(found.std, [scaled[:, channel].std() for channel in range(3)])
    x = found.shard(np.arange(COUNT)).x.double()
    np.testing.assert_allclose(x.mean((0, 2, 3)), 0, atol=1e-5)
    np.testing.assert_allclose(x.std((0, 2, 3), correction=0), 1, atol=1e-5)
    # The test images are normalised with the figures of the training images.
    expected = (PIXELS[:9] // 2 / 255 - np.array(found.mean)[:, None, None]) / np.array(found.std)[:, None, None]
    np.testing.assert_allclose(found.central_test().x, expected, atol=1e-5)
    assert normalise(found, True) is found, "figures that it has are kept"


def test_it_can_be_switched_off_or_given() -> None:
    known = replace(IMAGES, mean=(0.5, 0.4, 0.3), std=(0.2, 0.2, 0.2))
    assert normalise(known, True) is known
    off = normalise(known, False)
    assert off.mean is None and off.std is None and off.black is None
    given = normalise(IMAGES, {"mean": [0.5, 0.4, 0.3], "std": [0.2, 0.2, 0.2]})
    assert torch.equal(given.shard([3]).x, known.shard([3]).x)


def test_a_black_pixel_has_the_value_that_normalisation_gives_it() -> None:
    dark = replace(normalise(IMAGES, True), x=np.zeros_like(PIXELS))
    assert dark.black is not None and IMAGES.black is None
    assert torch.equal(torch.tensor(dark.black), dark.shard([0]).x[0, :, 0, 0])
    assert partition_dataset(dark, "iid", 2, 0).black == dark.black


@pytest.mark.parametrize(
    ("setting", "words"),
    [
        ("yes", "normalise is 'yes'; it must be true, false or"),
        (1, "normalise is 1"),
        ({"mean": [0.1]}, "it must be true, false or"),
        ({"mean": [0.1, 0.1], "std": [1, 1, 1]}, r"mean is \(0.1, 0.1\); mean and std need one number for each"),
        ({"mean": [0.1, 0.1, 0.1], "std": [1, 0, 1]}, "std positive"),
        ({"mean": 0.1, "std": [1, 1, 1]}, "normalise.mean is 0.1; it must be a list of numbers"),
        ({"mean": [0, 0, True], "std": [1, 1, 1]}, "normalise.mean is .* it must be a list of numbers"),
    ],
)
def test_a_wrong_setting_is_refused(setting: Any, words: str) -> None:
    with pytest.raises(InputError, match=words):
        normalise(IMAGES, setting)


def test_only_images_with_some_contrast_are_normalised() -> None:
    with pytest.raises(InputError, match="channel 0 of data set 'images' has the same value everywhere"):
        normalise(replace(IMAGES, x=np.zeros_like(PIXELS)), True)
    table = Dataset("table", np.ones((4, 6)), LABELS[:4], np.ones((4, 6)), LABELS[:4], 2)
    with pytest.raises(InputError, match=r"data set 'table' has shape \(6,\); only images"):
        normalise(table, True)
    with pytest.raises(InputError, match="'agnews' has no option 'normalise'"):
        load("agnews", normalise=True)


def test_public_data_is_normalised_like_the_devices(tmp_path: Path) -> None:
    for name, brightness in (("mine", 1), ("other", 4)):
        np.savez(tmp_path / f"{name}.npz", x=PIXELS // brightness, y=LABELS)

    def shards(data: dict[str, Any], public: dict[str, Any]) -> tuple[Any, Any]:
        section = {"name": "npz", "path": str(tmp_path / "mine.npz"), "clients": 2, **data}
        other = {"name": "npz", "path": str(tmp_path / "other.npz"), **public}
        federation = federate(parse_experiment({"data": section, "public": other, "model": "logistic"}))
        assert federation.task.public is not None
        return federation.population.dataset, federation.task.public.x  # type: ignore[attr-defined]

    other = load("npz", tmp_path / "other.npz")
    dataset, public = shards({"normalise": True}, {})
    alike = replace(other, mean=dataset.mean, std=dataset.std)
    assert torch.equal(public, alike.shard(np.arange(len(other))).x)
    assert torch.equal(shards({}, {})[1], other.shard(np.arange(len(other))).x), "without the setting it is as before"
    own = normalise(other, True)
    assert torch.equal(shards({"normalise": True}, {"normalise": True})[1], own.shard(np.arange(len(other))).x)
