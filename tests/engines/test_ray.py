"""The Ray engine on a local cluster gives what serial gives, also if workers die, and leaves nothing behind."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import undergrowth as ug
from tests.typed_commands import invoke
from undergrowth.core import InputError, RunError
from undergrowth.engines import ENGINES, EngineSettings, Job, Outcome, RayEngine, SerialEngine, World
from undergrowth.engines.ray_cluster import engine as ray_engine

from ..simulation.federations import close_model, same_model
from .obedient import NAMES, days, jobs, world

pytestmark = pytest.mark.slow
ray = pytest.importorskip("ray")
cluster_utils = pytest.importorskip("ray.cluster_utils")


@pytest.fixture(scope="module")
def cluster() -> Iterator[Any]:
    options = {"num_cpus": 2, "include_dashboard": False, "object_store_memory": 80_000_000}
    made = cluster_utils.Cluster(initialize_head=True, head_node_args=options)
    ray.init(made.address, log_to_driver=False, logging_level="error")
    yield made
    ray.shutdown()
    made.shutdown()


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("ray")


@pytest.fixture(scope="module")
def shared(cluster: Any, folder: Path) -> Iterator[RayEngine]:
    """One engine with two workers for all tests that only run jobs."""
    engine = RayEngine(EngineSettings(workers=2))
    engine.open(world(folder))
    yield engine
    engine.close()


@pytest.fixture
def engine(shared: RayEngine) -> RayEngine:
    shared.world.states.restore({})
    return shared


def test_without_the_extra_it_is_refused(monkeypatch):
    monkeypatch.setattr(ray_engine, "find_spec", lambda name: None)
    with pytest.raises(InputError, match=r"run.engine 'ray' needs the extra: pip install 'undergrowth\[ray\]'"):
        ENGINES["ray"](EngineSettings())


def serially(given: list[Job]) -> tuple[list[Outcome], World]:
    engine, place = SerialEngine(), world()
    engine.open(place)
    return list(engine.run(given)), place


def check_same(outcomes: list[Outcome], expected: list[Outcome]) -> None:
    for ours, theirs in zip(outcomes, expected, strict=True):
        assert (ours.node, ours.combined, ours.refused) == (theirs.node, theirs.combined, theirs.refused)
        assert list(ours.sent.items()) == list(theirs.sent.items())
        assert ours.refused_bytes == theirs.refused_bytes
        assert list(ours.scalars.items()) == list(theirs.scalars.items())
        assert (ours.up is None) == (theirs.up is None)
        assert theirs.up is None or close_model(ours.up.tensors, theirs.up.tensors)


@pytest.mark.parametrize("combine", [True, False])
def test_the_same_jobs_give_the_same_outcomes_and_states_in_the_same_order(engine, tmp_path, combine):
    for round in range(2):
        given = jobs(tmp_path, combine, round, device_1="spoil", device_2="forget the weight")
        outcomes = list(engine.run(given))
        expected, _ = serially(given)
        check_same(outcomes, expected)
    states = engine.world.states
    assert [(name, states.get(name)["times"]) for name in states.all()] == [
        (name, 2) for name in NAMES if name != "device-1" and not (combine and name == "device-2")
    ]
    assert set(states.take_changed()) == set(states.all())


@pytest.mark.parametrize("odd", [["device_1"], ["device_0", "device_3", "device_4"], ["device_0"]])
def test_uploads_that_do_not_go_together_are_refused_as_in_the_serial_engine(engine, tmp_path, odd):
    given = [job._replace(node="trusting") for job in jobs(tmp_path, **dict.fromkeys(odd, "shrink"))]
    outcomes, (expected, place) = list(engine.run(given)), serially(given)
    check_same(outcomes, expected)
    assert outcomes[0].refused
    assert list(engine.world.states.all()) == list(place.states.all())


def test_no_jobs_give_no_outcomes(engine):
    assert list(engine.run([])) == []


def test_facts_are_about_the_workers(engine, tmp_path):
    list(engine.run(jobs(tmp_path)))
    assert engine.facts()["workers"] == 2
    assert engine.facts()["workers_timedelta"] >= 0


def test_a_worker_that_dies_repeats_only_its_jobs_and_changes_no_bit(engine, tmp_path):
    calm, rough = tmp_path / "calm", tmp_path / "rough"
    for diary in (calm, rough):
        diary.mkdir()
    expected = list(engine.run(jobs(calm)))
    engine.world.states.restore({})
    outcomes = list(engine.run(jobs(rough, device_2="die once")))
    check_same(outcomes, expected)
    assert all(same_model(a.up.tensors, b.up.tensors) for a, b in zip(outcomes, expected, strict=True))
    again = days(rough)
    assert days(calm) == dict.fromkeys(NAMES, 1)
    # Largest first: 5, 2 and 1 were on one worker, 4, 3 and 0 on the other.
    assert again["device-2"] == 2 and sum(again.values()) <= 6 + 3
    assert all(state["times"] == 1 for state in engine.world.states.all().values())
    assert list(engine.run(jobs(calm, round=1))) and engine.facts()["workers"] == 2


def test_a_worker_that_died_between_rounds_is_replaced(engine, tmp_path):
    expected = list(engine.run(jobs(tmp_path)))
    engine.world.states.restore({})
    ray.kill(engine._pool.members[0].actor)
    check_same(list(engine.run(jobs(tmp_path))), expected)


def test_a_worker_that_dies_while_merging_repeats_no_job(engine, folder, tmp_path):
    given = [job._replace(node="brittle") for job in jobs(tmp_path)]
    expected = list(engine.run(given))
    (folder / "armed").touch()
    outcomes = list(engine.run(given))
    assert not (folder / "armed").exists()
    check_same(outcomes, expected)
    assert same_model(outcomes[0].up.tensors, expected[0].up.tensors)
    assert days(tmp_path) == dict.fromkeys(NAMES, 2)


def test_a_job_that_kills_every_worker_ends_the_run_and_is_named(engine, tmp_path, monkeypatch):
    from undergrowth.engines.ray_cluster import worker_pool

    monkeypatch.setattr(worker_pool, "MAX_RETRIES", 1)
    with pytest.raises(RunError, match=r"the worker of device-.*device-2.* died 2 times"):
        list(engine.run(jobs(tmp_path, device_2="die")))
    assert days(tmp_path)["device-2"] == 2


def test_errors_of_a_job_are_those_of_the_serial_engine(engine, tmp_path):
    given = jobs(tmp_path, round=2, device_1="fail", device_4="complain")
    with pytest.raises(RunError) as caught:
        list(engine.run(given))
    assert str(caught.value) == "device-1 failed in round 3 with 11 samples: no luck"
    assert "ZeroDivisionError" in caught.value.__notes__[0]
    with pytest.raises(InputError, match=r"^method.mu -1 must be at least 0\n"):
        list(engine.run(jobs(tmp_path, device_4="complain")))


def test_machines_may_come_and_go(cluster, shared, tmp_path):
    """Three workers on two machines; then one machine is killed, and the rounds continue."""
    shared.close()
    expected, _ = serially(jobs(tmp_path))
    engine = RayEngine(EngineSettings())
    engine.open(world())
    check_same(list(engine.run(jobs(tmp_path))), expected)
    assert engine.facts()["workers"] == 2
    machine = cluster.add_node(num_cpus=1, object_store_memory=80_000_000)
    engine.world.states.restore({})
    check_same(list(engine.run(jobs(tmp_path))), expected)
    assert engine.facts()["workers"] == 3
    assert len({member.machine for member in engine._pool.members}) == 2
    cluster.remove_node(machine, allow_graceful=False)
    engine.world.states.restore({})
    check_same(list(engine.run(jobs(tmp_path))), expected)
    engine.close()
    engine.close()


RUNS = {"own states": {"method": "local"}, "tree": {"topology": "tree:2x2", "partition": "iid"}}


@pytest.mark.parametrize("settings", RUNS.values(), ids=RUNS.keys())
def test_a_run_is_that_of_the_serial_engine(cluster, shared, tmp_path, settings):
    shared.close()
    small = {"model": "logistic", "clients": 4, "rounds": 2, "out": str(tmp_path), **settings}
    ours, theirs = ug.run(**small, engine="ray", workers=2), ug.run(**small)
    assert close_model(ours.model.state_dict(), theirs.model.state_dict())
    assert list(ours.ledger.rows()) == list(theirs.ledger.rows())
    for row, other in zip(ours.history, theirs.history, strict=True):
        assert row["simulated_seconds"] == other["simulated_seconds"]
        assert row["loss"] == pytest.approx(other["loss"], rel=1e-5)
    if "topology" in settings:
        again = ug.run(**small, engine="ray", workers=2)
        assert again.summary["model_digest"] == ours.summary["model_digest"]


def command(tmp_path: Path, *words: str, **environment: str) -> subprocess.CompletedProcess[str]:
    small = ["--model", "logistic", "--clients", "4", "--rounds", "2", "--out", str(tmp_path), "--no-report"]
    return subprocess.run(
        [sys.executable, "-m", "undergrowth", "run", "--engine", "ray", "--workers", "1", *small, *words],
        capture_output=True, text=True, env={**os.environ, **environment},
    )  # fmt: skip


def marked(mark: str) -> list[str]:
    """Command lines of the processes with `mark` in their environment."""
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        try:
            if mark.encode() in (process / "environ").read_bytes():
                found.append((process / "cmdline").read_text().replace("\0", " "))
        except OSError:  # it has ended, or belongs to another user
            continue
    return found


def gone(mark: str) -> bool:
    end = time.monotonic() + 10
    while marked(mark) and time.monotonic() < end:
        time.sleep(0.1)
    return not marked(mark)


def test_a_local_ray_leaves_no_process_behind(tmp_path):
    mark = f"of-{os.getpid()}-{time.monotonic_ns()}"
    done = command(tmp_path, "--json", UNDERGROWTH_MARK=mark)
    assert done.returncode == 0, done.stderr
    assert gone(mark)


def test_address_auto_joins_a_running_cluster_and_leaves_it_running(cluster, shared, tmp_path):
    shared.close()
    nodes = {node["NodeID"] for node in ray.nodes()}
    done = command(tmp_path, "--address", "auto", RAY_ADDRESS=cluster.address)
    assert done.returncode == 0, done.stderr
    assert {node["NodeID"] for node in ray.nodes()} == nodes
    assert ray.get(ray.remote(lambda: "still there").remote()) == "still there"


def test_an_address_without_a_cluster_is_refused(tmp_path, monkeypatch):
    monkeypatch.setattr(ray, "is_initialized", lambda: False)  # although earlier tests have connected
    out = tmp_path / "runs"
    done = invoke("run", "--engine", "ray", "--address", "127.0.0.1:1", "--out", out)
    assert done.exit_code == 2 and "run.address '127.0.0.1:1'" in done.stderr
    assert len(done.stderr.splitlines()) == 1 and not done.stdout and not out.exists()
