"""The store with many writers at once: every run has an id of its own, and no round is lost."""

from __future__ import annotations

import secrets
import subprocess
import sys
from pathlib import Path

import pytest

from undergrowth.runs.store import ROUND_COLUMNS, Store

FACTS = {"method": "fedavg", "data": "d", "model": "m", "seed": 0, "rounds": 1, "clients": 1, "engine": "serial"}


def test_two_runs_that_draw_the_same_ending_in_one_second(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    endings = iter(["aaaa", "aaaa", "aaaa", "bbbb"])
    monkeypatch.setattr(secrets, "token_hex", lambda count: next(endings))
    monkeypatch.setattr("time.strftime", lambda form: form)
    store = Store(tmp_path, create=True)
    first, second = store.create(FACTS, {}), store.create(FACTS, {})
    store.close()
    assert first.endswith("aaaa") and second.endswith("bbbb")


def write(folder: str) -> None:
    for _ in range(5):
        store = Store(folder, create=True)
        run = store.create(FACTS, {})
        for number in range(4):
            store.finish_round(run, [{**dict.fromkeys(ROUND_COLUMNS, 0), "round": number}], [], None)
        store.finish_run(run, {}, [])
        store.close()


def test_several_processes_create_the_store_and_write_to_it_at_once(tmp_path: Path) -> None:
    code = f"from tests.runs.test_store import write; write({str(tmp_path)!r})"
    writers = [subprocess.Popen([sys.executable, "-c", code]) for _ in range(3)]
    assert [writer.wait() for writer in writers] == [0, 0, 0]
    store = Store(tmp_path)
    rows = store.runs()
    assert len(rows) == 15 and {row["status"] for row in rows} == {"done"}
    assert all(len(store.rounds(row["id"])) == 4 for row in rows)
    store.close()
