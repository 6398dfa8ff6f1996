"""kill -9 at any moment, and two runs in one folder at the same time."""

from __future__ import annotations

import random
import time

import pytest

import undergrowth as ug
from undergrowth.core import InputError
from undergrowth.runs import Store
from undergrowth.runs.execution import start

from ..warm import begin
from .killed import ROUNDS, go, go_on, settings
from .objects import digest, without_wall


@pytest.fixture(scope="module")
def never_killed(tmp_path_factory):
    """The same runs in this process, to their end: result and seconds by method."""
    found = {}
    for method in ("fedavgm", "local"):
        began = time.perf_counter()
        result = start(settings(str(tmp_path_factory.mktemp("whole")), method))
        found[method] = result, time.perf_counter() - began
    return found


def resumed(out: str) -> ug.Result:
    try:
        return ug.resume("last", out)
    except InputError:  # killed before there was a run: nothing was finished, nothing is lost
        return start(settings(out))


def test_killed_at_random_moments_it_resumes_to_the_same_model(out, never_killed):
    whole, seconds = never_killed["fedavgm"]
    moments = random.Random(7)
    child, said = begin(go, out)
    assert said.recv() == "started"
    time.sleep(seconds * moments.uniform(0.1, 0.8))
    child.kill()
    child.join()
    result = resumed(out)
    assert digest(result) == digest(whole)
    assert without_wall(result.history) == without_wall(whole.history)


@pytest.mark.parametrize(
    ("method", "step"), [("fedavgm", "drafted"), ("local", "drafted"), ("local", "moved"), ("fedavgm", "stored")]
)
def test_killed_while_a_round_is_saved_it_resumes_to_the_same_model(out, never_killed, method, step):
    whole, _ = never_killed[method]
    child, _ = begin(go, out, method, 0, 11, step)
    child.join(120)
    assert child.exitcode == -9
    done = {"drafted": 10, "moved": 10, "stored": 11}[step]
    store = Store(out)
    (row,) = store.runs()
    assert row["status"] == "killed"
    assert [r["round"] for r in store.rounds(row["id"])] == list(range(1, done + 1))
    store.close()
    result = ug.resume("last", out)
    assert digest(result) == digest(whole)
    assert without_wall(result.history) == without_wall(whole.history)
    assert list(result.ledger.rows()) == list(whole.ledger.rows())


def test_killed_again_and_again_it_still_gets_there(out, never_killed):
    whole, seconds = never_killed["fedavgm"]
    moments = random.Random(3)
    child, said = begin(go, out)
    assert said.recv() == "started"
    for _ in range(3):
        time.sleep(seconds * moments.uniform(0.05, 0.4))
        child.kill()
        child.join()
        child, said = begin(go_on, out)
        assert said.recv() == "up"
    child.kill()
    child.join()
    assert digest(resumed(out)) == digest(whole)


def test_two_runs_at_once_in_one_folder_do_not_disturb_each_other(out, tmp_path):
    children = [begin(go, out, "fedavgm", seed) for seed in (0, 1)]
    assert [said.recv() for _, said in children] == ["started", "started"]
    printed = [said.recv() for _, said in children]
    for child, _ in children:
        child.join(120)
    assert [child.exitcode for child, _ in children] == [0, 0]
    alone = [digest(start(settings(str(tmp_path / "alone"), seed=seed))) for seed in (0, 1)]
    assert printed == alone
    assert alone[0] != alone[1]
    store = Store(out)
    for row in store.runs():
        assert row["status"] == "done"
        assert len(store.rounds(row["id"])) == ROUNDS
        assert sum(1 for _ in store.links(row["id"])) == ROUNDS * 3
    store.close()
