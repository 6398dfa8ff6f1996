"""The populations of the phase after the last round: the run's devices with other training or test samples."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any, ClassVar

import torch
from torch import Tensor

from undergrowth.core import Context, InputError, Shard
from undergrowth.data import Population
from undergrowth.learning.gradient_client import split_samples
from undergrowth.runs.personal_section import PersonalSection


@dataclass(frozen=True)
class OtherSamples:
    """The base of populations that have all of `population` but what they define themselves."""

    population: Population

    def __getattr__(self, name: str) -> Any:
        return getattr(self.population, name)


@dataclass(frozen=True)
class PartOfPopulation(OtherSamples):
    """The same devices, with samples only on those in `chosen`."""

    chosen: frozenset[str]

    def size(self, device: str) -> int:
        return self.population.size(device) if device in self.chosen else 0

    def train(self, device: str) -> Shard:
        shard = self.population.train(device)
        return shard if device in self.chosen else shard.take(torch.arange(0))


@dataclass(frozen=True)
class ValidationPopulation(OtherSamples):
    """The same devices; their test samples are those that early stopping holds out."""

    fraction: float
    seed: int
    test_weights: ClassVar[None] = None  # all of them count the same, whatever `population` says

    def test(self, device: str) -> Shard:
        return split_samples(self.population.train(device), self.fraction, Context(self.seed, device, 0))[1]


@dataclass(frozen=True)
class ClassWeightedPopulation(OtherSamples):
    """The same devices with the central test set as test samples, and a weight of each of these for a device.

    The accuracy of a device is then Σ_c p_c·a_c, with the fraction p_c of its training samples that are of class c, and
    the accuracy a_c of its model on the test samples of that class. Classes that the test set does not have are left
    out. A device that has no other ones has no test samples.
    """

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


def tested_population(section: PersonalSection, population: Population) -> Population:
    """The devices with the test samples that score their models."""
    if section.test == "own":
        return population
    task = getattr(population, "task", "classification")
    if task != "classification":
        raise InputError(f"personal.test by-class needs classes, and the task is {task}; write own")
    return ClassWeightedPopulation(population)
