"""Tests every device on the central test set, weighted by how frequent a class is in its training samples."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

from torch import Tensor

from undergrowth.core import Shard
from undergrowth.data import Population


@dataclass(frozen=True)
class ClassShares:
    """The same devices with the central test set as test samples, and a weight of each of these for a device.

    The accuracy of a device is then Σ_c p_c·a_c, with its shares p_c of the classes and the accuracies a_c of its model
    on the samples of each class. Classes that the test set does not have are left out.
    """

    population: Population

    def __getattr__(self, name: str) -> Any:
        return getattr(self.population, name)

    @cached_property
    def _test(self) -> Shard:
        return self.population.central_test()

    def test(self, device: str) -> Shard:
        return self._test

    def test_weights(self, device: str) -> Tensor:
        """What each test sample counts for `device`: 1 on average."""
        labels = self._test.y.cpu()
        tested = labels.bincount(minlength=self.population.classes)
        owned = self.population.train(device).y.cpu().bincount(minlength=self.population.classes)
        weights = (owned.double() / tested.clamp_min(1))[labels]
        return weights * (len(labels) / weights.sum())
