"""Statistics of the accuracies of all devices: mean, variance, best and worst tenth, number below zero.

Relative accuracy is the accuracy of a model on a device minus that of the model which the device trained alone, both on
the test samples of the device. The best and the worst tenth of n devices are ⌈n/10⌉ devices each, so at least one; with
few devices the two overlap. Devices with equal values are interchangeable: whichever of them is taken, mean and
variance of a tenth are the same. Variances divide by the number of devices: these are all devices, not a sample.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

LOCAL, FEDERATED, PERSONAL = "local", "federated", "personal"
_ROUNDING = 1e-9  # accuracies are quotients of small whole numbers; equal ones may differ by a rounding error


@dataclass(frozen=True)
class Distribution:
    """Figures about one value of every device."""

    devices: int
    mean: float
    variance: float
    best_mean: float
    best_variance: float
    worst_mean: float
    worst_variance: float
    below_zero: int
    fraction_below_zero: float


def tenth(devices: int) -> int:
    """The number of devices in the best, or the worst, tenth: ⌈devices / 10⌉."""
    return math.ceil(devices / 10)


def distribution(values: Iterable[float]) -> Distribution | None:
    """The figures about `values`; None if there are none."""
    ordered = np.sort(np.array(list(values), dtype=np.float64))
    if not len(ordered):
        return None
    count = tenth(len(ordered))
    worst, best = ordered[:count], ordered[-count:]
    below = int((ordered < -_ROUNDING).sum())
    return Distribution(
        devices=len(ordered),
        mean=float(ordered.mean()),
        variance=float(ordered.var()),
        best_mean=float(best.mean()),
        best_variance=float(best.var()),
        worst_mean=float(worst.mean()),
        worst_variance=float(worst.var()),
        below_zero=below,
        fraction_below_zero=below / len(ordered),
    )


@dataclass(frozen=True)
class PersonalAccuracy:
    """The accuracies of every device on its own test samples, by model.

    `models`: "local", "federated", "personal" if the method has a model for every device, and the adapted ones.
    """

    models: tuple[str, ...]
    devices: Sequence[str]
    tiers: Sequence[str]  # the device class of each device
    accuracies: Mapping[str, Sequence[float]]  # model → accuracy of each device

    def relative(self, model: str) -> list[float]:
        """The accuracy of `model` minus that of the local one, of each device."""
        pairs = zip(self.accuracies[model], self.accuracies[LOCAL], strict=True)
        return [accuracy - alone for accuracy, alone in pairs]

    def relative_distribution(self, model: str) -> Distribution:
        """The figures of the relative accuracy of `model`."""
        found = distribution(self.relative(model))
        assert found is not None  # there is at least one device
        return found

    def by_device(self, model: str) -> dict[str, float]:
        """The accuracy of `model` on each device."""
        return dict(zip(self.devices, self.accuracies[model], strict=True))

    @property
    def compared(self) -> tuple[str, ...]:
        """The models that are compared with the local one."""
        return tuple(model for model in self.models if model != LOCAL)

    def figures(self) -> list[dict[str, Any]]:
        """One row per model: the figures of its accuracy and of its relative accuracy, which the local one lacks."""
        rows = []
        for model in self.models:
            relative = None if model == LOCAL else distribution(self.relative(model))
            rows.append({"model": model, "accuracy": distribution(self.accuracies[model]), "relative": relative})
        return rows

    def by_tier(self, model: str) -> dict[str, Distribution]:
        """The figures of the relative accuracy of `model`, by device class."""
        values: dict[str, list[float]] = {}
        for tier, relative in zip(self.tiers, self.relative(model), strict=True):
            values.setdefault(tier, []).append(relative)
        found = {tier: distribution(values[tier]) for tier in sorted(values)}
        return {tier: figures for tier, figures in found.items() if figures is not None}

    def rows(self) -> list[dict[str, Any]]:
        """One row per device: its name, class and accuracies."""
        columns = [self.accuracies[model] for model in self.models]
        names = zip(self.devices, self.tiers, strict=True)
        return [
            {"device": device, "tier": tier, **dict(zip(self.models, values, strict=True))}
            for (device, tier), values in zip(names, zip(*columns, strict=True), strict=True)
        ]


def from_rows(rows: Iterable[tuple[str, str, float]], tiers: Mapping[str, str]) -> PersonalAccuracy | None:
    """The accuracies in rows of device, model and accuracy; None without rows. `tiers`: the class of each device."""
    by_model: dict[str, dict[str, float]] = {}
    for device, model, accuracy in rows:
        by_model.setdefault(model, {})[device] = accuracy
    if not by_model:
        return None
    devices = list(by_model[LOCAL])
    accuracies = {model: [found[device] for device in devices] for model, found in by_model.items()}
    return PersonalAccuracy(tuple(by_model), devices, [tiers.get(device, "") for device in devices], accuracies)


@dataclass(frozen=True)
class Change:
    """How many devices gain and lose between two runs, and by how much on average over all devices."""

    devices: int
    gain: int
    lose: int
    same: int
    mean: float
    largest_losses: tuple[tuple[str, float], ...]  # devices with the largest losses, the largest first


def changes(before: Mapping[str, float], after: Mapping[str, float], shown: int = 5) -> Change | None:
    """The change of a value of each device that both have; None if they share no device."""
    differences = {device: after[device] - before[device] for device in before if device in after}
    if not differences:
        return None
    gain = sum(value > _ROUNDING for value in differences.values())
    losses = sorted((value, device) for device, value in differences.items() if value < -_ROUNDING)
    largest = tuple((device, value) for value, device in losses[:shown])
    count = len(differences)
    mean = sum(differences.values()) / count
    return Change(count, gain, len(losses), count - gain - len(losses), mean, largest)
