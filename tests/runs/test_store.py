"""The store with many concurrent writers: every run gets a unique id, and no round is lost."""

from __future__ import annotations

import secrets
from contextlib import suppress
from multiprocessing import get_context
from multiprocessing.connection import Connection
from pathlib import Path
from threading import BrokenBarrierError

import pytest

from undergrowth.core import InputError
from undergrowth.runs.store import ROUND_COLUMNS, Store

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
