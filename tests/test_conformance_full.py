"""The full product, for `make test-all`: every method on every engine in every topology, as whole runs.

`tests/test_conformance.py` makes the same claims for `make test` with fewer runs.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import undergrowth as ug
from undergrowth.engines import ENGINES
from undergrowth.methods import METHODS
from undergrowth.runs.execution import start

from .conformance import COSTS, DECIDE_AT_EACH_NODE, TREE, assert_close, experiment, random_experiment, run, weights
from .stopping import facts, stopped_and_resumed
from .test_conformance import REPLAYED, SERVERS, assert_mixed_precision_changes_little

pytestmark = pytest.mark.slow

COMPARED: dict[str, dict[str, Any]] = {**REPLAYED, "ray": {"workers": 2}}
TOPOLOGIES = ("star", TREE)


def test_the_number_of_cases_does_not_shrink() -> None:
    assert {name.partition(" ")[0] for name in COMPARED} == set(ENGINES) - {"serial"}
    assert len(METHODS) * len(COMPARED) * len(TOPOLOGIES) >= 29 * 4 * 2


@pytest.fixture(scope="session")
def _cluster() -> Iterator[None]:
    """One local Ray cluster for all runs; a run that finds none would start one for itself."""
    ray = pytest.importorskip("ray")
    ray.init(num_cpus=2, include_dashboard=False, object_store_memory=200_000_000, log_to_driver=False)
    yield
    ray.shutdown()


@pytest.fixture(scope="module", params=[(method, topology) for method in METHODS for topology in TOPOLOGIES], ids=str)
def case(request: pytest.FixtureRequest) -> tuple[str, str]:
    """Method and topology. The tests of one case follow each other and share its serial run."""
    method, topology = request.param
    return method, topology


@pytest.fixture(scope="module")
def serial(case: tuple[str, str], tmp_path_factory: pytest.TempPathFactory) -> ug.Result:
    method, topology = case
    return run(experiment(method, tmp_path_factory.mktemp("serial"), topology))


@pytest.mark.parametrize("engine", COMPARED)
def test_a_run_on_an_engine_learns_and_costs_the_same(
    case: tuple[str, str], engine: str, serial: ug.Result, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    if engine == "ray":
        request.getfixturevalue("_cluster")
    method, topology = case
    result = run(experiment(method, tmp_path, topology, engine=engine.partition(" ")[0], **COMPARED[engine]))
    assert_close(weights(result), weights(serial))
    assert list(result.ledger.rows()) == list(serial.ledger.rows())
    for cost in COSTS:
        assert getattr(result.ledger, cost) == getattr(serial.ledger, cost)


@pytest.mark.parametrize("engine", COMPARED)
@pytest.mark.parametrize("method", ["fedavg", "fedfsc", "fedft"])
def test_a_run_with_augmentation_and_dropout_learns_and_costs_the_same_on_an_engine(
    method: str, engine: str, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    if engine == "ray":
        request.getfixturevalue("_cluster")
    raw = random_experiment(method, tmp_path)
    serial = run(raw)
    raw["run"] |= {"engine": engine.partition(" ")[0], **COMPARED[engine]}
    result = run(raw)
    assert_close(weights(result), weights(serial))
    assert list(result.ledger.rows()) == list(serial.ledger.rows())


@pytest.mark.parametrize("method", METHODS)
def test_mixed_precision_changes_digits_and_memory_only(method: str, tmp_path: Path) -> None:
    assert_mixed_precision_changes_little(method, tmp_path)


# Trees --------------------------------------------------------------------------------------------------------

ASYNCHRONOUS = {"execution": ["synchronous", "asynchronous"], "rounds_per_level": 2, "residuals": "norm:1"}


def tree(method: str, options: dict[str, Any], folder: Path, engine: str = "serial") -> dict[str, Any]:
    """An experiment with a small model in a tree, with these options of the method only."""
    raw = experiment(method, folder, TREE, engine=engine.partition(" ")[0], **COMPARED.get(engine, {}))
    raw.pop("public", None)  # it would leave devices fewer samples
    return {**raw, "method": {"name": method, **options}, "model": {"name": "logistic"}}


@pytest.mark.parametrize("method", sorted(set(SERVERS) - DECIDE_AT_EACH_NODE))
def test_a_deeper_tree_learns_what_a_star_learns(method: str, tmp_path: Path) -> None:
    deep = run(experiment(method, tmp_path / "deep", "tree:1x2x3"))
    assert_close(weights(deep), weights(run(experiment(method, tmp_path / "star"))))


@pytest.mark.parametrize("engine", ["serial", *COMPARED])
def test_bhfl_with_replacement_is_hierfavg(engine: str, tmp_path: Path, request: pytest.FixtureRequest) -> None:
    if engine == "ray":
        request.getfixturevalue("_cluster")
    replacing = {"down": "average", "eta_down": 1.0, "rounds_per_level": 2}
    expected = run(tree("hierfavg", {"rounds_per_level": 2}, tmp_path / "hierfavg", engine))
    found = run(tree("bhfl", replacing, tmp_path / "bhfl", engine))
    assert_close(weights(found), weights(expected))
    assert found.ledger.bytes_up == expected.ledger.bytes_up


@pytest.mark.parametrize("engine", COMPARED)
def test_an_asynchronous_tree_learns_the_same_on_an_engine(
    engine: str, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    if engine == "ray":
        request.getfixturevalue("_cluster")
    serial = run(tree("bhfl", ASYNCHRONOUS, tmp_path / "serial"))
    other = run(tree("bhfl", ASYNCHRONOUS, tmp_path / "other", engine))
    assert_close(weights(other), weights(serial))
    assert list(other.ledger.rows()) == list(serial.ledger.rows())


def test_an_asynchronous_tree_is_the_same_after_a_resume(tmp_path: Path) -> None:
    raw = tree("bhfl", ASYNCHRONOUS, tmp_path / "whole")
    raw["train"] |= {"rounds": 4}
    again = {**raw, "run": {**raw["run"], "out": str(tmp_path / "stopped")}}
    assert facts(stopped_and_resumed(again, 2, str(tmp_path / "stopped"))) == facts(start(raw))
