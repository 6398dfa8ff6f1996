"""The store with many concurrent writers: every run gets a unique id, and no round is lost."""

from __future__ import annotations

import secrets
import sqlite3
from contextlib import suppress
from multiprocessing import get_context
from multiprocessing.connection import Connection
from pathlib import Path
from threading import BrokenBarrierError

import pytest

from undergrowth.core import InputError, RunError
from undergrowth.engines.states import States
from undergrowth.runs.checkpoint import Checkpoints
from undergrowth.runs.config import parse_experiment
from undergrowth.runs.listing import UNREADABLE, list_runs
from undergrowth.runs.schema import migrate
from undergrowth.runs.store import FILE, ROUND_COLUMNS, Store
from undergrowth.runs.stored_experiment import stored_experiment

from ..warm import begin

FACTS = {"method": "fedavg", "data": "d", "model": "m", "seed": 0, "rounds": 1, "clients": 1, "engine": "serial"}


def test_runs_that_draw_the_same_suffix_get_different_ids(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    endings = iter(["aaaa", "aaaa", "aaaa", "bbbb"])
    monkeypatch.setattr(secrets, "token_hex", lambda count: next(endings))
    monkeypatch.setattr("time.strftime", lambda form: form)
    store = Store(tmp_path, create=True)
    first, second = store.create(FACTS, {}), store.create(FACTS, {})
    store.close()
    assert first.endswith("aaaa") and second.endswith("bbbb")


def write(pipe: Connection, folder: str) -> None:
    for _ in range(5):
        store = Store(folder, create=True)
        run = store.create(FACTS, {})
        for number in range(4):
            store.finish_round(run, [{**dict.fromkeys(ROUND_COLUMNS, 0), "round": number}], [], None)
        store.finish_run(run, {}, [])
        store.close()


def test_several_processes_create_the_store_and_write_to_it_at_once(tmp_path: Path) -> None:
    writers = [begin(write, str(tmp_path))[0] for _ in range(3)]
    for writer in writers:
        writer.join(60)
    assert [writer.exitcode for writer in writers] == [0, 0, 0]
    store = Store(tmp_path)
    rows = store.runs()
    assert len(rows) == 15 and {row["status"] for row in rows} == {"done"}
    assert all(len(store.rounds(row["id"])) == 4 for row in rows)
    store.close()


def test_several_processes_may_create_one_store_at_the_same_moment(tmp_path: Path) -> None:
    def go(folder: Path) -> None:
        with suppress(BrokenBarrierError):
            together.wait(60)
        Store(folder, create=True).close()

    context = get_context("fork")
    for number in range(8):
        together = context.Barrier(3)
        children = [context.Process(target=go, args=(tmp_path / str(number),)) for _ in range(3)]
        for child in children:
            child.start()
        for child in children:
            child.join()
        assert [child.exitcode for child in children] == [0, 0, 0]


@pytest.mark.parametrize(("runs", "words"), [(3, "choose one of: 2"), (9, "and `undergrowth list` shows all 9")])
def test_an_unknown_run_is_refused_with_a_short_message(tmp_path: Path, runs: int, words: str) -> None:
    store = Store(tmp_path, create=True)
    names = [store.create(FACTS, {}) for _ in range(runs)]
    with pytest.raises(InputError, match=words) as raised:
        store.find("zzz")
    store.close()
    assert names[-1] in str(raised.value) and len(str(raised.value)) < 300


def broken(folder: Path, change: str) -> Store:
    """A store with one run of one round, changed by a statement of SQL."""
    store = Store(folder, create=True)
    run = store.create(FACTS, {"settings": {"method": {"name": "fedavg"}, "model": {"name": "m"}}, "objects": {}})
    store.finish_round(run, [{**dict.fromkeys(ROUND_COLUMNS, 0), "round": 1}], [], None)
    store.finish_run(run, {}, [{"device": "a"}])
    with store.transaction() as connection:
        connection.execute(change)
    return store


@pytest.mark.parametrize(
    "change",
    [
        "UPDATE rounds SET more='x'",
        "UPDATE devices SET facts='['",
        "UPDATE runs SET experiment='{'",
        "DROP TABLE rounds",
        "DROP TABLE runs",
    ],
)
def test_a_damaged_store_is_named_in_one_sentence(tmp_path: Path, change: str) -> None:
    store = broken(tmp_path, change)
    with pytest.raises((InputError, RunError), match=r"store '.*sqlite' cannot be read|has a damaged row in the store"):
        for run in store.ids():
            store.run(run), store.rounds(run), store.last_round(run), store.devices(run), list(store.links(run))
    store.close()


def test_an_experiment_that_lacks_a_part_is_named_in_one_sentence(tmp_path: Path) -> None:
    store = broken(tmp_path, "PRAGMA user_version")
    with pytest.raises(InputError, match=r"has a damaged row in the store \(KeyError: 'defaults'\)"):
        stored_experiment(store.run(store.find("last")))
    store.close()


def test_a_damaged_page_is_named_in_one_sentence(tmp_path: Path) -> None:
    broken(tmp_path, "PRAGMA user_version").close()
    file = tmp_path / FILE
    content = bytearray(file.read_bytes())
    content[4096:] = b"\xff" * (len(content) - 4096)
    file.write_bytes(content)
    store = Store(tmp_path)
    with pytest.raises(RunError, match=r"store '.*sqlite' cannot be read: database disk image is malformed"):
        store.runs()
    store.close()


def test_a_store_on_a_full_disk_says_that_the_disk_is_full(tmp_path: Path) -> None:
    connection = sqlite3.connect(tmp_path / FILE, isolation_level=None)
    connection.execute("PRAGMA max_page_count=2")  # SQLite reports what it reports for a full disk
    with pytest.raises(sqlite3.OperationalError, match="database or disk is full"):
        migrate(connection)
    connection.close()


def test_scores_of_devices_are_read_beside_figures_that_are_not_numbers(tmp_path: Path) -> None:
    """The r2 of a single test sample is NaN."""
    store = Store(tmp_path, create=True)
    run = store.create(FACTS, {})
    rows = [{**dict.fromkeys(ROUND_COLUMNS, 0), "round": number, "r2": float("nan")} for number in (1, 2)]
    store.finish_round(run, rows, [], None, {2: {"a": 0.5}})
    assert store.device_scores(run) == [(2, {"a": 0.5})]
    store.close()


def test_the_last_run_is_the_one_that_was_created_last(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever the clock says, which may be set back for the winter."""
    times = iter(["2", "2", "1", "1"])
    monkeypatch.setattr("time.strftime", lambda form: next(times))
    store = Store(tmp_path, create=True)
    first, second = store.create(FACTS, {}), store.create(FACTS, {})
    assert store.ids() == [first, second] and store.find("last") == second
    store.close()


@pytest.mark.parametrize("moved", [False, True], ids=["deleted", "moved"])
def test_a_store_that_is_gone_is_noticed_at_the_next_write(tmp_path: Path, moved: bool) -> None:
    store = Store(tmp_path / "runs", create=True)
    run = store.create(FACTS, {})
    if moved:
        (tmp_path / "runs").rename(tmp_path / "elsewhere")
    else:
        (tmp_path / "runs" / FILE).unlink()
    with pytest.raises(RunError, match="was moved or deleted while it was in use"):
        store.set_status(run, "running")
    store.close()


@pytest.mark.parametrize("change", ["summary='[1]'", "experiment='{}'", "experiment='{'", "summary='{'"])
def test_a_damaged_row_hides_no_other_run_in_a_list(tmp_path: Path, change: str) -> None:
    store = Store(tmp_path, create=True)
    good, bad = (store.create(FACTS, {"settings": parse_experiment({}).model_dump(mode="json")}) for _ in range(2))
    with store.transaction() as connection:
        connection.execute(f"UPDATE runs SET {change} WHERE id=?", (bad,))
    store.close()
    rows = {row["run"]: row for row in list_runs(tmp_path)}
    assert rows[good]["problem"] is None and rows[bad]["status"] == UNREADABLE and "damaged" in rows[bad]["problem"]


def test_a_run_with_objects_is_resumed_by_a_call(tmp_path: Path) -> None:
    store = Store(tmp_path, create=True)
    plain = store.create(FACTS, {"settings": {}, "objects": {"model": None}})
    own = store.create(FACTS, {"settings": {}, "objects": {"model": "Net", "data": None, "loss": "mine"}})
    assert store.resume_command(plain) == f"undergrowth resume {plain} --out {tmp_path}"
    assert store.resume_command(own) == f"ug.resume('{own}', out='{tmp_path}', model=..., loss=...)"
    store.close()


def test_drafts_that_a_kill_left_are_removed(tmp_path: Path) -> None:
    checkpoints = Checkpoints(tmp_path)
    for name in (".tmpAb12Cd", "round-00001.safetensors.part"):
        (tmp_path / name).write_bytes(b"half of a file")
    checkpoints.save(1, {"round": 1}, States())
    checkpoints.tidy()
    assert [path.name for path in tmp_path.iterdir()] == ["round-00001.safetensors"]
