"""The groups of devices that a method has models for: by a field of the data set, such as the sensor of a device."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from undergrowth.core import InputError
from undergrowth.data import Dataset, Population

AUTO, MODALITY, LABEL = "auto", "modality", "label"


class DeviceGroups(NamedTuple):
    """The group of every device and, if it is known, of every sample of the central test set."""

    of_device: dict[str, str]
    of_test: np.ndarray | None = None


def device_groups(population: Population, field: str) -> DeviceGroups:
    """The groups by `field` of the data set, or none if it is empty. "auto": modality, or else the label.

    The label of a test sample is what a model has to find out, so groups by label are not known for test samples.
    """
    if field == AUTO:
        field = _automatic_field(population)
    if not field:
        return DeviceGroups({})
    groups_by = getattr(population, "groups_by", None)
    if groups_by is None:
        raise InputError(
            f"method.group '{field}': the data object has no function `groups_by(field)`, which returns a group for "
            "each device; write auto"
        )
    names = [str(name) for name in groups_by(field)]
    for name in names:
        if "/" in name or not name:
            raise InputError(f"method.group '{field}': the group '{name}' must be a name without a slash; rename it")
    test_groups = getattr(population, "test_groups", None)
    known = None if test_groups is None or field == LABEL else test_groups(field)
    return DeviceGroups(dict(zip(population.devices, names, strict=True)), known)


def _automatic_field(population: Population) -> str:
    """The field that `auto` stands for; "" if devices cannot be grouped."""
    dataset = getattr(population, "dataset", None)
    if not isinstance(dataset, Dataset):
        return ""
    if MODALITY in dataset.fields:
        return MODALITY
    return LABEL if dataset.task == "classification" else ""
