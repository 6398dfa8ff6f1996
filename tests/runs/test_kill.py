"""Processes that are killed with `kill -9`, and two runs in one folder at the same time."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

import pytest

import undergrowth as ug
from undergrowth.runs import Store
from undergrowth.runs.execution import start

from ..stopping import facts
from ..warm import begin
from .killed import ROUNDS, resume_run, run, settings
from .objects import digest


@pytest.fixture(scope="module")
def never_killed(tmp_path_factory) -> dict[str, ug.Result]:
    """The results of the same runs in this process, by method."""
    folder = tmp_path_factory.mktemp("whole")
    return {method: start(settings(str(folder), method)) for method in ("fedavgm", "local")}


def receive_round(pipe, number: int) -> None:
    """Waits until the process has finished that round, or has ended."""
    with suppress(EOFError):
        assert pipe.poll(120)
        while pipe.recv() < number:
            assert pipe.poll(120)


@pytest.mark.slow
def test_killed_again_and_again_a_run_resumes_to_the_same_model(out, never_killed):
    """Each kill comes while a later round is computed or saved."""
    child, pipe = begin(run, out)
    for number in (1, 3, 5):
        receive_round(pipe, number)
        child.kill()
        child.join()
        child, pipe = begin(resume_run, out)
    receive_round(pipe, 7)
    child.kill()
    child.join()
    result = ug.resume("last", out)
    assert facts(result) == facts(never_killed["fedavgm"])


@pytest.mark.parametrize(
    ("method", "step"), [("fedavgm", "drafted"), ("local", "drafted"), ("local", "moved"), ("fedavgm", "stored")]
)
def test_killed_while_a_round_is_saved_a_run_resumes_to_the_same_model(out, never_killed, method, step):
    whole = never_killed[method]
    child, _ = begin(run, out, method, 0, 5, step)
    child.join(120)
    assert child.exitcode == -9
    done = {"drafted": 4, "moved": 4, "stored": 5}[step]
    store = Store(out)
    (row,) = store.runs()
    assert row["status"] == "killed"
    assert [r["round"] for r in store.rounds(row["id"])] == list(range(1, done + 1))
    store.close()
    result = ug.resume("last", out)
    assert facts(result) == facts(whole)


def test_two_runs_in_one_folder_at_the_same_time_do_not_disturb_each_other(out, tmp_path, never_killed):
    children = [begin(run, out, "fedavgm", seed) for seed in (0, 1)]
    digests = [[pipe.recv() for _ in range(ROUNDS + 1)][-1] for _, pipe in children]
    for child, _ in children:
        child.join(120)
    assert [child.exitcode for child, _ in children] == [0, 0]
    alone = [digest(never_killed["fedavgm"]), digest(start(settings(str(Path(tmp_path) / "alone"), seed=1)))]
    assert digests == alone
    assert alone[0] != alone[1]
    store = Store(out)
    for row in store.runs():
        assert row["status"] == "done"
        assert len(store.rounds(row["id"])) == ROUNDS
        assert sum(1 for _ in store.links(row["id"])) == ROUNDS * 3
    store.close()
