"""Every method: its clients on every engine, its servers in a tree, resumed from a copy of its folder, nothing pickled.

A method takes part by its line in the table of methods. What it needs besides, such as public data, is in
`tests/conformance.py`. The full product of methods, engines and topologies is in `tests/test_conformance_full.py`.
"""

from __future__ import annotations

import pickle
import shutil
import sqlite3
from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import safetensors.torch

import undergrowth as ug
from undergrowth.core.pytree import map_tensors
from undergrowth.engines import ENGINES
from undergrowth.methods import METHODS

from .conformance import (
    COSTS,
    DECIDE_AT_EACH_NODE,
    EXTRA,
    RANDOM,
    TREE,
    UPLOADS_DEPEND_ON_VALUES,
    RecordingEngine,
    assert_close,
    assert_replayed,
    experiment,
    random_experiment,
    record,
    representatives,
    resume,
    run,
    start,
    weights,
)
from .stopping import facts

REPLAYED: dict[str, dict[str, Any]] = {
    "processes": {"workers": 2},
    "vector": {},
    "processes with stacks": {"workers": 2, "stack": True},
}
CLIENTS, SERVERS = representatives("client"), representatives("server")
# Stacks in worker processes are the stacks of the vector engine behind the exchange of the engine `processes`, each of
# which gets every client. Together they get those that differ most in what crosses that exchange: nothing but a model,
# states of devices, statistics of batches, two updates in one, slices, models of several sizes.
STACKED_IN_WORKERS = ("fedavg", "scaffold", "fedbn", "fedfsc", "heterofl", "fedkad")


def test_the_number_of_cases_does_not_shrink() -> None:
    assert len(METHODS) >= 48
    assert len(CLIENTS) >= 39
    assert len(SERVERS) >= 40
    assert {name.partition(" ")[0] for name in REPLAYED} == set(ENGINES) - {"serial", "ray"}  # ray: the full product
    assert set(EXTRA) | DECIDE_AT_EACH_NODE <= set(METHODS) and set(STACKED_IN_WORKERS) <= set(CLIENTS)


@dataclass(frozen=True)
class Recorded:
    result: ug.Result
    engine: RecordingEngine
    after_one_round: Path  # a copy of the output folder, taken while the run was going on


@pytest.fixture(scope="module", params=METHODS)
def method(request: pytest.FixtureRequest) -> str:
    """All tests of one method follow each other, so that they share its serial run."""
    return str(request.param)


@pytest.fixture(scope="module")
def serial(method: str, tmp_path_factory: pytest.TempPathFactory) -> Recorded:
    folder = tmp_path_factory.mktemp(method)
    copy = folder / "copy"

    def copy_folder(row: Any, execution: Any) -> None:
        if not copy.exists():
            shutil.copytree(folder / "runs", copy)

    return Recorded(*record(experiment(method, folder / "runs"), copy_folder), copy)


@pytest.mark.parametrize("engine", [name for name in REPLAYED if name in ENGINES])
@pytest.mark.parametrize("method", CLIENTS, indirect=True)
def test_an_engine_returns_what_the_serial_engine_returns(method: str, engine: str, serial: Recorded) -> None:
    assert_replayed(serial.engine, engine, **REPLAYED[engine])


@pytest.mark.parametrize("method", STACKED_IN_WORKERS, indirect=True)
def test_stacks_in_workers_return_what_the_serial_engine_returns(method: str, serial: Recorded) -> None:
    assert_replayed(serial.engine, "processes", **REPLAYED["processes with stacks"])


@pytest.fixture(scope="module")
def with_random_choices(method: str, tmp_path_factory: pytest.TempPathFactory) -> RecordingEngine:
    return record(random_experiment(method, tmp_path_factory.mktemp(method)))[1]


@pytest.mark.parametrize("method", RANDOM, indirect=True)
def test_stacked_clients_are_augmented_and_drop_values_as_on_the_serial_engine(
    method: str, with_random_choices: RecordingEngine
) -> None:
    facts = assert_replayed(with_random_choices, "vector")
    assert facts["stacked"] > 0 and facts["not_stacked"] == 0


class ForgetfulEngine(RecordingEngine):
    """Does all jobs but the first."""

    def run(self, jobs: Sequence[Any]) -> Iterator[Any]:
        return super().run(jobs[1:])


class InaccurateEngine(RecordingEngine):
    """Sends devices weights that are wrong in the fifth digit."""

    def run(self, jobs: Sequence[Any]) -> Iterator[Any]:
        down = {job.device: map_tensors(lambda tensor: tensor * (1 + 1e-5), job.down) for job in jobs}
        return super().run([job._replace(down=down[job.device]) for job in jobs])


@pytest.mark.parametrize("engine", [ForgetfulEngine, InaccurateEngine])
@pytest.mark.parametrize("method", ["fedavg"], indirect=True)
def test_a_wrong_engine_is_noticed(
    method: str, engine: type[RecordingEngine], serial: Recorded, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(ENGINES, "wrong", engine)
    with pytest.raises(AssertionError):
        assert_replayed(serial.engine, "wrong")


@pytest.mark.parametrize("method", SERVERS, indirect=True)
def test_a_tree_learns_what_a_star_learns(method: str, serial: Recorded, tmp_path: Path) -> None:
    tree = run(experiment(method, tmp_path, TREE))
    assert tree.ledger.bytes_up > 0
    if method not in DECIDE_AT_EACH_NODE:
        assert_close(weights(tree), weights(serial.result))
        assert tree.loss == pytest.approx(serial.result.loss)


def test_a_run_that_was_killed_is_resumed_bit_for_bit(method: str, serial: Recorded) -> None:
    resumed = resume(experiment(method, serial.after_one_round), serial.after_one_round)
    assert facts(resumed) == facts(serial.result)


def test_what_a_run_writes_is_plain_data(method: str, serial: Recorded) -> None:
    assert_plain_data(serial.after_one_round)
    assert_plain_data(serial.result.folder.parent)


def assert_plain_data(folder: Path) -> None:
    """Asserts that all files below `folder` are safetensors, SQLite without binary values, or empty locks."""
    for path in (path for path in folder.rglob("*") if path.is_file()):
        if path.suffix == ".safetensors":
            with safetensors.safe_open(str(path), framework="pt") as file:
                assert file.metadata() or file.keys()
        elif path.suffix == ".sqlite":
            with closing(sqlite3.connect(path)) as connection:
                tables = [name for (name,) in connection.execute("SELECT name FROM sqlite_master WHERE type='table'")]
                values = [
                    value for table in tables for row in connection.execute(f"SELECT * FROM {table}") for value in row
                ]
            assert values and not [value for value in values if isinstance(value, bytes)], path
        elif not path.name.endswith(("-wal", "-shm")):  # SQLite's own
            assert path.stat().st_size == 0, f"{path} is neither safetensors nor SQLite"


@pytest.mark.parametrize("place", ["a file", "a column"])
def test_a_pickled_object_would_be_noticed(place: str, tmp_path: Path) -> None:
    pickled = pickle.dumps({"round": 1})
    if place == "a file":
        (tmp_path / "state.bin").write_bytes(pickled)
    else:
        with closing(sqlite3.connect(tmp_path / "runs.sqlite")) as connection, connection:
            connection.execute("CREATE TABLE runs (state)")
            connection.execute("INSERT INTO runs VALUES (?)", (pickled,))
    with pytest.raises(AssertionError):
        assert_plain_data(tmp_path)


def test_mixed_precision_changes_digits_and_memory_only(tmp_path: Path) -> None:
    assert_mixed_precision_changes_little("fedavg", tmp_path)


def assert_mixed_precision_changes_little(method: str, folder: Path) -> None:
    whole, mixed = (start(experiment(method, folder, precision=kind)) for kind in ("float32", "bf16"))
    assert mixed.loss == pytest.approx(whole.loss, rel=0.2)
    for cost in {"flops"} if method in UPLOADS_DEPEND_ON_VALUES else set(COSTS) - {"peak_device_bytes"}:
        assert getattr(mixed.ledger, cost) == getattr(whole.ledger, cost)
