"""Clusters of devices find groups that were planted in the data."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.methods.planted import PlantedPopulation, recovery

METHODS_AND_OPTIONS = [("kmeans-clusters", True), ("ifca", True), ("auxo", False)]


# The settings of the tests and the default of `gain` were chosen on seeds 0 to 3.
@pytest.mark.parametrize(("name", "takes_k"), METHODS_AND_OPTIONS)
def test_two_planted_groups_are_found(name: str, takes_k: bool, tmp_path: Path) -> None:
    options = {"k": 2} if takes_k else {}
    assert recovery(name, options, PlantedPopulation("rotated", 2, 11), 11, tmp_path) >= 0.9


@pytest.mark.slow
@pytest.mark.parametrize("seed", [12, 13, 14])
@pytest.mark.parametrize("groups", [2, 4])
@pytest.mark.parametrize("kind", ["rotated", "permuted"])
@pytest.mark.parametrize(("name", "takes_k"), METHODS_AND_OPTIONS)
def test_planted_groups_are_found(name: str, takes_k: bool, kind: str, groups: int, seed: int, tmp_path: Path) -> None:
    options = {"k": groups} if takes_k else {}
    assert recovery(name, options, PlantedPopulation(kind, groups, seed), seed, tmp_path) >= 0.9
