"""Data sets of several sensors: every moment of a person is an image from each sensor, which is a modality."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from undergrowth.core import InputError
from undergrowth.data.dataset import Dataset

FUSED, SEPARATE = "fused", "separate"
MODALITIES_HELP = (
    "fused: one sample is the images of all sensors side by side; separate: every image is a sample, and the field "
    "modality says from which sensor it is"
)


def check_modalities(modalities: object) -> None:
    """Raises an `InputError` if the option `modalities` of a loader is wrong."""
    if modalities not in (FUSED, SEPARATE):
        raise InputError(f"modalities is {modalities!r}; it must be {FUSED} or {SEPARATE}")


def join_modalities(
    name: str,
    images: Mapping[str, np.ndarray],
    y: np.ndarray,
    fields: Mapping[str, np.ndarray],
    is_test: np.ndarray,
    modalities: str,
    class_names: Sequence[str],
    notes: Sequence[str] = (),
) -> Dataset:
    """The data set of moments with one image from each sensor, N × C × H × W of bytes, in the order of `images`.

    Fused images are joined along their width. Separate ones are padded with black to the width of the widest sensor.
    `fields` and `is_test` have one entry per moment.
    """
    if modalities == FUSED:
        x = np.concatenate(list(images.values()), axis=3)
    else:
        widest = max(each.shape[3] for each in images.values())
        x = np.concatenate([_pad(each, widest) for each in images.values()])
        count = len(images)
        fields = {key: np.tile(values, count) for key, values in fields.items()}
        fields = {**fields, "modality": np.repeat(list(images), len(y))}
        y, is_test = np.tile(y, count), np.tile(is_test, count)
    channels = x.shape[1]
    return Dataset(
        name,
        x[~is_test],
        y[~is_test],
        x[is_test],
        y[is_test],
        len(class_names),
        tuple(class_names),
        {key: values[~is_test] for key, values in fields.items()},
        (0.5,) * channels,
        (0.25,) * channels,
        notes=tuple(notes),
        test_fields={key: values[is_test] for key, values in fields.items()},
    )


def _pad(images: np.ndarray, width: int) -> np.ndarray:
    return np.pad(images, ((0, 0), (0, 0), (0, 0), (0, width - images.shape[3])))
