"""Tests every device on the central test set, weighted by how frequent a class is in its training samples."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from undergrowth.core import Shard
from undergrowth.data import Population


@dataclass(frozen=True)
class ClassShares:
    """The same devices with the central test set as test samples, and a weight of each of these for a device.

    The accuracy of a device is then Σ_c p_c·a_c, with its shares p_c of the classes and the accuracies a_c of its model
    on the samples of each class. Classes that the test set does not have are left out. A device that has no other ones
    has no test samples.
    """

    population: Population

    def __getattr__(self, name: str) -> Any:
        return getattr(self.population, name)

    @cached_property
    def _test(self) -> Shard:
        return self.population.central_test()

    @cached_property
    def _tested(self) -> Tensor:
        """The number of test samples of each class."""
        return self._test.y.cpu().bincount(minlength=self.population.classes)

    def _owned(self, device: str) -> Tensor:
        return self.population.train(device).y.cpu().bincount(minlength=self.population.classes)

    def test(self, device: str) -> Shard:
        return self._test if (self._owned(device) * self._tested).any() else self._test.take(torch.arange(0))

    def test_weights(self, device: str) -> Tensor:
        """What each test sample counts for `device`, which has test samples: 1 on average."""
        labels = self._test.y.cpu()
        weights = (self._owned(device).double() / self._tested.clamp_min(1))[labels]
        return weights * (len(labels) / weights.sum())
