"""Normalisation: mean and standard deviation of every channel of a set of images."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from undergrowth.core import InputError
from undergrowth.data.dataset import Dataset, to_numpy

IMAGES_PER_PASS = 1024  # whose pixels are summed together, so that the sums need little memory besides the data


def normalise(dataset: Dataset, setting: Any) -> Dataset:
    """The images of `dataset`, normalised per channel as `setting` says.

    True: with the mean and standard deviation that the data set has, or else with those of its training images.
    False: not at all. {"mean": [...], "std": [...]}: with these, one number per channel, for pixels from 0 to 1.
    """
    if not isinstance(setting, bool | Mapping) or (isinstance(setting, Mapping) and setting.keys() != {"mean", "std"}):
        raise InputError(f"normalise is {setting!r}; it must be true, false or {{mean: [...], std: [...]}}")
    if len(dataset.shape) != 3:
        raise InputError(
            f"normalise: one input of data set '{dataset.name}' has shape {dataset.shape}; only images, "
            "channels × height × width, can be normalised"
        )
    if setting is False:
        return replace(dataset, mean=None, std=None)
    if isinstance(setting, Mapping):
        dataset = replace(dataset, mean=_numbers("mean", setting["mean"]), std=_numbers("std", setting["std"]))
        dataset.check_normalisation()
        return dataset
    if dataset.mean is not None:
        return dataset
    mean, std = channel_statistics(dataset)
    if min(std) <= 0:
        raise InputError(
            f"normalise: channel {std.index(min(std))} of data set '{dataset.name}' has the same value everywhere; "
            "give {mean: [...], std: [...]}"
        )
    return replace(dataset, mean=mean, std=std)


def channel_statistics(dataset: Dataset) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Mean and standard deviation of each channel over all training images, before normalisation."""
    pixels = len(dataset) * dataset.shape[1] * dataset.shape[2]
    mean = sum(x.sum((0, 2, 3)) for x in _training_images(dataset)) / pixels
    squares = sum(np.square(x - mean[:, None, None]).sum((0, 2, 3)) for x in _training_images(dataset))
    return tuple(mean.tolist()), tuple(np.sqrt(squares / pixels).tolist())


def _training_images(dataset: Dataset) -> Iterator[np.ndarray]:
    """The images as float64, as they are before normalisation, some at a time."""
    plain = replace(dataset, mean=None, std=None)
    for start in range(0, len(dataset), IMAGES_PER_PASS):
        rows = np.arange(start, min(start + IMAGES_PER_PASS, len(dataset)))
        yield to_numpy(plain.shard(rows).x).astype(np.float64)


def _numbers(key: str, values: Any) -> tuple[float, ...]:
    is_list = isinstance(values, list | tuple)
    if not is_list or any(isinstance(each, bool) or not isinstance(each, int | float) for each in values):
        raise InputError(f"normalise.{key} is {values!r}; it must be a list of numbers, one per channel")
    return tuple(float(each) for each in values)
