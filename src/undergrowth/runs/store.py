"""The run store: one SQLite file for all runs of an output folder.

A finished round is one transaction: its row, its ledger entries and the pointer to its checkpoint are there
together or not at all. Write-ahead logging lets several runs write, and others read, at the same time.
"""

from __future__ import annotations

import json
import os
import secrets
import shlex
import sqlite3
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from os import PathLike
from pathlib import Path
from typing import Any

from undergrowth.core import InputError, RunError, nearest
from undergrowth.exchange import COLUMNS, Entry
from undergrowth.runs.lock import is_held

FILE = "undergrowth.sqlite"

_SCHEMA = f"""
CREATE TABLE IF NOT EXISTS runs (
  id TEXT PRIMARY KEY, created TEXT, status TEXT, method TEXT, data TEXT, model TEXT, seed INTEGER, rounds INTEGER,
  clients INTEGER, engine TEXT, experiment TEXT, notes TEXT, summary TEXT);
CREATE TABLE IF NOT EXISTS rounds (
  run TEXT, round INTEGER, accuracy REAL, loss REAL, simulated_seconds REAL, wall_seconds REAL, arrived INTEGER,
  lost INTEGER, refused INTEGER, late INTEGER, bytes_down INTEGER, bytes_up INTEGER, flops REAL, joules REAL,
  more TEXT, PRIMARY KEY (run, round));
CREATE TABLE IF NOT EXISTS devices (
  run TEXT, device TEXT, facts TEXT, PRIMARY KEY (run, device));
CREATE TABLE IF NOT EXISTS links (
  run TEXT, {", ".join(COLUMNS)});
CREATE INDEX IF NOT EXISTS links_of_run ON links (run, round);
CREATE TABLE IF NOT EXISTS checkpoints (
  run TEXT, round INTEGER, file TEXT, checksum INTEGER, PRIMARY KEY (run, round));
"""

PATIENCE = 60.0  # seconds for which others may write
SHOWN = 5  # runs that a sentence names

ROUND_COLUMNS = (
    "round", "accuracy", "loss", "simulated_seconds", "wall_seconds", "arrived", "lost", "refused", "late",
    "bytes_down", "bytes_up", "flops", "joules",
)  # fmt: skip


class Store:
    """Runs, rounds, devices and links of one output folder."""

    def __init__(self, folder: str | PathLike[str], create: bool = False) -> None:
        try:
            self.folder = Path(folder).expanduser()
        except (RuntimeError, TypeError) as error:  # ~someone, where there is no such user; or no text at all
            raise InputError(f"out {str(folder)!r} cannot be a folder ({error}); name one that can") from None
        if not create and not (self.folder / FILE).exists():
            raise InputError(f"out '{folder}' holds no runs; name the folder that a run wrote to")
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            self._connection = sqlite3.connect(self._address, timeout=PATIENCE, isolation_level=None, uri=True)
            self._connection.row_factory = sqlite3.Row
            if create:
                self._set_up()
        except (OSError, ValueError, sqlite3.Error) as error:
            raise InputError(f"out '{folder}' cannot be written to ({error}); name a folder that can") from None

    @property
    def _address(self) -> str:
        """In a folder that cannot be written to, SQLite must not try to make files of its own beside the store. Where
        they are there already, somebody else may be writing, and what they hold must be read too."""
        path = (self.folder / FILE).resolve()
        if os.access(self.folder, os.W_OK):
            return path.as_uri()
        logged = path.with_name(f"{FILE}-wal").exists()
        return f"{path.as_uri()}?{'mode=ro' if logged else 'immutable=1'}"

    def _set_up(self) -> None:
        deadline = time.monotonic() + PATIENCE
        while True:
            try:
                self._connection.execute("PRAGMA journal_mode=WAL")
                self._connection.executescript(_SCHEMA)
                return
            except sqlite3.OperationalError as error:
                # SQLite waits for others, but not when two set up the same new file at the same moment.
                if "locked" not in str(error) or time.monotonic() > deadline:
                    raise
                time.sleep(0.01)

    def close(self) -> None:
        self._connection.close()

    def resume_command(self, run: str) -> str:
        """What a user types to go on with a run."""
        place = "" if self.folder == Path("runs") else f" --out {shlex.quote(str(self.folder))}"
        return f"undergrowth resume {run}{place}"

    @contextmanager
    def transaction(self) -> Iterator[sqlite3.Connection]:
        """All or nothing."""
        try:
            self._connection.execute("BEGIN IMMEDIATE")
            try:
                yield self._connection
                self._connection.execute("COMMIT")
            except BaseException:
                if self._connection.in_transaction:
                    self._connection.execute("ROLLBACK")
                raise
        except sqlite3.Error as error:
            raise RunError(f"the run store '{self.folder / FILE}' could not be written: {error}") from error

    # Writing ------------------------------------------------------------------------------------------------

    def create(self, facts: Mapping[str, Any], experiment: Mapping[str, Any]) -> str:
        """Enters a new run and gives it an id that sorts by time."""
        row = {
            "created": time.strftime("%Y-%m-%d %H:%M:%S"), "status": "running", "experiment": json.dumps(experiment),
            "notes": "[]", "summary": "{}", **facts,
        }  # fmt: skip
        with self.transaction() as connection:
            while True:
                run = f"{time.strftime('%Y%m%d-%H%M%S')}-{facts['method']}-{secrets.token_hex(2)}"
                # Of many runs that start in the same second, two may draw the same ending.
                if not connection.execute("SELECT 1 FROM runs WHERE id=?", (run,)).fetchone():
                    _insert(connection, "runs", {"id": run, **row})
                    return run

    def finish_round(
        self,
        run: str,
        rounds: Iterable[Mapping[str, Any]],
        entries: Iterable[Entry],
        checkpoint: tuple[int, str, int] | None,
    ) -> None:
        with self.transaction() as connection:
            for row in rounds:
                known = {name: row[name] for name in ROUND_COLUMNS}
                more = {name: value for name, value in row.items() if name not in known}
                _insert(connection, "rounds", {"run": run, **known, "more": json.dumps(more)})
            connection.executemany(
                f"INSERT INTO links VALUES ({', '.join('?' * (1 + len(COLUMNS)))})",
                ((run, *entry) for entry in entries),
            )
            if checkpoint:
                _insert(connection, "checkpoints", dict(zip(("run", "round", "file", "checksum"), (run, *checkpoint))))

    def finish_run(self, run: str, summary: Mapping[str, Any], devices: Iterable[Mapping[str, Any]]) -> None:
        with self.transaction() as connection:
            connection.execute("UPDATE runs SET status='done', summary=? WHERE id=?", (json.dumps(summary), run))
            connection.execute("DELETE FROM devices WHERE run=?", (run,))
            connection.executemany(
                "INSERT INTO devices VALUES (?, ?, ?)", ((run, facts["device"], json.dumps(facts)) for facts in devices)
            )

    def set_status(self, run: str, status: str, notes: Sequence[str] | None = None) -> None:
        with self.transaction() as connection:
            connection.execute("UPDATE runs SET status=? WHERE id=?", (status, run))
            if notes is not None:
                connection.execute("UPDATE runs SET notes=? WHERE id=?", (json.dumps(list(notes)), run))

    def rewind(self, run: str, round: int) -> None:
        """Forgets everything after that round; it will be done again."""
        with self.transaction() as connection:
            for table in ("rounds", "links", "checkpoints"):
                connection.execute(f"DELETE FROM {table} WHERE run=? AND round>?", (run, round))

    def forget_checkpoints(self, run: str, before: int) -> None:
        with self.transaction() as connection:
            connection.execute("DELETE FROM checkpoints WHERE run=? AND round<?", (run, before))

    # Reading ------------------------------------------------------------------------------------------------

    def find(self, name: str) -> str:
        """The id of the run that a user means: an id, the beginning of one, or `last`."""
        if not isinstance(name, str) or not name:
            raise InputError(f"run {name!r} must be the id of a run, the beginning of one, or 'last'")
        ids = [row["id"] for row in self._connection.execute("SELECT id FROM runs ORDER BY created, rowid")]
        if name == "last" and ids:
            return str(ids[-1])
        found = [run for run in ids if run == name] or [run for run in ids if run.startswith(name)]
        if len(found) == 1:
            return str(found[0])
        if found:
            raise InputError(f"run '{name}' could be any of {', '.join(found[:5])}; write more of it")
        hint = nearest(name, ids) if ids else "there is none yet"
        if len(ids) > SHOWN and not hint.startswith("did"):
            hint = f"the latest is {ids[-1]}, and `undergrowth list` shows all {len(ids)}"
        raise InputError(f"run '{name}' is not in '{self.folder}'; {hint}")

    def runs(self) -> list[dict[str, Any]]:
        return [self._told(row) for row in self._connection.execute("SELECT * FROM runs ORDER BY created, rowid")]

    def run(self, run: str) -> dict[str, Any]:
        return self._told(self._connection.execute("SELECT * FROM runs WHERE id=?", (run,)).fetchone())

    def _told(self, row: sqlite3.Row) -> dict[str, Any]:
        told = _decoded(row, "experiment", "notes", "summary")
        if told["status"] == "running" and not is_held(self.folder / told["id"]):
            told["status"] = "killed"  # and had no time to say so
        return told

    def rounds(self, run: str) -> list[dict[str, Any]]:
        rows = self._connection.execute("SELECT * FROM rounds WHERE run=? ORDER BY round", (run,))
        decoded = [_decoded(row, "more") for row in rows]
        return [{**{k: v for k, v in row.items() if k not in ("run", "more")}, **row["more"]} for row in decoded]

    def devices(self, run: str) -> list[dict[str, Any]]:
        rows = self._connection.execute("SELECT facts FROM devices WHERE run=? ORDER BY device", (run,))
        return [json.loads(row["facts"]) for row in rows]

    def links(self, run: str) -> Iterator[Entry]:
        names = ", ".join(COLUMNS)
        for row in self._connection.execute(f"SELECT {names} FROM links WHERE run=? ORDER BY round, rowid", (run,)):
            yield Entry(*row)

    def costs_by_device(self, run: str) -> dict[str, dict[str, Any]]:
        """Totals of every child that was ever asked."""
        rows = self._connection.execute(
            "SELECT child, COUNT(*) AS asked, SUM(outcome='arrived') AS rounds, SUM(outcome='late') AS late,"
            " SUM(outcome='lost') AS lost, SUM(outcome='refused') AS refused,"
            " SUM(bytes_down) AS bytes_down, SUM(bytes_up) AS bytes_up,"
            " SUM(flops) AS flops, SUM(joules) AS joules, SUM(seconds_compute) AS compute_seconds,"
            " MAX(memory) AS memory FROM links WHERE run=? GROUP BY child",
            (run,),
        )
        return {row["child"]: {k: row[k] for k in row.keys() if k != "child"} for row in rows}  # noqa: SIM118

    def servers(self, run: str) -> set[str]:
        """The nodes that have asked anybody: the root, and in a tree the inner ones."""
        return {
            row["parent"] for row in self._connection.execute("SELECT DISTINCT parent FROM links WHERE run=?", (run,))
        }

    def checkpoints(self, run: str) -> list[tuple[int, str, int]]:
        """Round, file and checksum of the checkpoints that are there, the newest first."""
        rows = self._connection.execute(
            "SELECT round, file, checksum FROM checkpoints WHERE run=? ORDER BY round DESC", (run,)
        )
        return [tuple(row) for row in rows]


def _insert(connection: sqlite3.Connection, table: str, row: Mapping[str, Any]) -> None:
    marks = ", ".join("?" * len(row))
    connection.execute(f"INSERT INTO {table} ({', '.join(row)}) VALUES ({marks})", tuple(row.values()))


def _decoded(row: sqlite3.Row, *texts: str) -> dict[str, Any]:
    return {key: json.loads(row[key]) if key in texts else row[key] for key in row.keys()}  # noqa: SIM118
