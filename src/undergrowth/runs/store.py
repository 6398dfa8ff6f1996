"""The run store: one SQLite file for all runs of an output folder.

A finished round is one transaction: its row, its ledger entries and the pointer to its checkpoint are stored together
or not at all. Write-ahead logging lets several runs write, and others read, at the same time.
"""

from __future__ import annotations

import errno
import json
import os
import secrets
import sqlite3
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from os import PathLike
from pathlib import Path
from typing import Any

from undergrowth import __version__
from undergrowth.core import InputError, RunError, suggest
from undergrowth.exchange import COLUMNS, COSTS, ROUND_COST_KEYS, Entry, Totals
from undergrowth.runs.atomic_files import file_identity
from undergrowth.runs.commands import resume_command
from undergrowth.runs.formats import EXPERIMENT_FORMAT, check_format, upgrade_experiment
from undergrowth.runs.lock import is_locked
from undergrowth.runs.schema import connect, insert, insertion

FILE = "undergrowth.sqlite"
MODEL_FILE = "model.safetensors"  # the final weights, in the folder of a run
MAX_RUNS_IN_MESSAGE = 5

DEVICE_SCORES = "device_scores"  # the key of the scores of devices in a row of `rounds`
ROUND_COLUMNS = (
    "round", "accuracy", "loss", "simulated_seconds", "wall_seconds", "arrived", "lost", "refused", "late",
    "bytes_down", "bytes_up", "flops", "joules",
)  # fmt: skip


class Store:
    """Runs, rounds, devices and links of one output folder. A `with` block closes it.

    A store of an older version is migrated when it is opened with `write` or `create`. A reader gets a migrated copy
    and leaves the file as it is. `in_run`: the folder is that of a run under way, which can be resumed after an error.
    """

    def __init__(
        self, folder: str | PathLike[str], create: bool = False, write: bool = False, in_run: bool = False
    ) -> None:
        try:
            self.folder = Path(folder).expanduser()
        except (RuntimeError, TypeError) as error:  # ~name of an unknown user; or not a path
            raise InputError(f"out {str(folder)!r} cannot be a folder ({error}); name one that can") from None
        try:
            if not create and not (self.folder / FILE).exists():
                raise InputError(f"out '{folder}' holds no runs; name the folder that a run wrote to")
            self._open(create, write)
        except (OSError, ValueError, sqlite3.Error) as error:
            if in_run:  # a full disk, say
                raise RunError(f"the run store '{self.folder / FILE}' could not be written: {error}") from error
            if isinstance(error, InputError) or getattr(error, "errno", None) == errno.ENAMETOOLONG:
                raise
            if create or write:
                raise InputError(f"out '{folder}' cannot be written to ({error}); name a folder that can") from None
            raise InputError(f"out '{folder}' has a run store that cannot be read: {error}") from None

    def _open(self, create: bool, write: bool) -> None:
        if create:
            self.folder.mkdir(parents=True, exist_ok=True)
            if not os.access(self.folder, os.W_OK):
                raise PermissionError("it is read-only")
        self._path = (self.folder / FILE).resolve()
        self._connection = connect(self._path, create or write, f"the run store '{self.folder / FILE}'")
        self._connection.row_factory = sqlite3.Row
        self._identity = file_identity(self._path)

    def close(self) -> None:
        self._connection.close()

    def __enter__(self) -> Store:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def resume_command(self, run: str) -> str:
        """What resumes a run."""
        return resume_command(self.folder, run, self.run(run)["experiment"].get("objects"))

    @property
    def in_place(self) -> bool:
        """Whether the file is still there that was opened for writing."""
        return file_identity(self._path) == self._identity

    @contextmanager
    def transaction(self) -> Iterator[sqlite3.Connection]:
        """Commits what the block executes, or nothing of it if the block raises."""
        if not self.in_place:  # SQLite would go on writing to the file that nobody finds any more
            raise RunError(f"the run store '{self._path}' was moved or deleted while it was in use")
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
        """Stores a new run and returns its id, which sorts by time."""
        row = {
            "created": time.strftime("%Y-%m-%d %H:%M:%S"), "status": "running", "experiment": json.dumps(experiment),
            "notes": "[]", "summary": "{}", "version": __version__, "format": EXPERIMENT_FORMAT, **facts,
        }  # fmt: skip
        method = str(facts["method"]).replace(":", "-")  # the id is also the name of a folder
        with self.transaction() as connection:
            while True:
                run = f"{time.strftime('%Y%m%d-%H%M%S')}-{method}-{secrets.token_hex(2)}"
                # Runs that start in the same second may draw the same suffix.
                if not connection.execute("SELECT 1 FROM runs WHERE id=?", (run,)).fetchone():
                    insert(connection, "runs", {"id": run, **row})
                    return run

    def finish_round(
        self,
        run: str,
        rounds: Iterable[Mapping[str, Any]],
        entries: Iterable[Entry],
        checkpoint: tuple[int, str, int] | None,
        device_scores: Mapping[int, Mapping[str, float]] | None = None,
    ) -> None:
        """Stores rounds, the entries of asks that ended in them and a checkpoint (round, file, checksum).

        `device_scores`: by round, the score of each device that was evaluated in it.
        """
        with self.transaction() as connection:
            for row in rounds:
                known = {name: row.get(name) for name in ROUND_COLUMNS}
                more = {name: value for name, value in row.items() if name not in known}
                if device_scores and row["round"] in device_scores:
                    more[DEVICE_SCORES] = device_scores[row["round"]]
                insert(connection, "rounds", {"run": run, **known, "more": json.dumps(more)})
            connection.executemany(insertion("links", ("run", *COLUMNS)), ((run, *entry) for entry in entries))
            if checkpoint:
                row = dict(zip(("run", "round", "file", "checksum"), (run, *checkpoint), strict=True))
                insert(connection, "checkpoints", row)

    def finish_run(
        self, run: str, summary: Mapping[str, Any], devices: Iterable[Mapping[str, Any]], notes: Sequence[str] = ()
    ) -> None:
        """Stores the summary, the facts of every device and the notes, and marks the run as done."""
        values = (json.dumps(summary), json.dumps(list(notes)), run)
        with self.transaction() as connection:
            connection.execute("UPDATE runs SET status='done', summary=?, notes=? WHERE id=?", values)
            connection.execute("DELETE FROM devices WHERE run=?", (run,))
            for facts in devices:
                insert(connection, "devices", {"run": run, "device": facts["device"], "facts": json.dumps(facts)})

    def put_personal(self, run: str, accuracies: Mapping[str, Mapping[str, float]]) -> None:
        """Stores the accuracy of each device with each model, by model and device."""
        rows = ((run, model, device, value) for model, found in accuracies.items() for device, value in found.items())
        with self.transaction() as connection:
            connection.execute("DELETE FROM personal WHERE run=?", (run,))
            connection.executemany(insertion("personal", ("run", "model", "device", "accuracy")), rows)

    def forget_sweep(self, sweep: str) -> None:
        """Deletes which runs belong to `sweep`, before its runs are found or started again."""
        with self.transaction() as connection:
            connection.execute("DELETE FROM sweeps WHERE sweep=?", (sweep,))

    def add_to_sweep(self, run: str, sweep: str, variant: str) -> None:
        with self.transaction() as connection:
            connection.execute("INSERT OR REPLACE INTO sweeps VALUES (?, ?, ?)", (sweep, run, variant))

    def set_status(self, run: str, status: str, notes: Sequence[str] | None = None) -> None:
        with self.transaction() as connection:
            connection.execute("UPDATE runs SET status=? WHERE id=?", (status, run))
            if notes is not None:
                connection.execute("UPDATE runs SET notes=? WHERE id=?", (json.dumps(list(notes)), run))

    def rewind(self, run: str, round: int) -> None:
        """Deletes everything after `round`, before these rounds are computed again."""
        with self.transaction() as connection:
            for table in ("rounds", "links", "checkpoints"):
                connection.execute(f"DELETE FROM {table} WHERE run=? AND round>?", (run, round))

    def forget_checkpoints(self, run: str, before: int) -> None:
        """Deletes the checkpoints of rounds before `before`."""
        with self.transaction() as connection:
            connection.execute("DELETE FROM checkpoints WHERE run=? AND round<?", (run, before))

    # Reading ------------------------------------------------------------------------------------------------

    def _read(self, query: str, *values: str, decode: Callable[[Any], Any] = lambda row: row) -> Iterator[Any]:
        """The decoded rows of a query. Raises `RunError` if the store cannot be read, as a damaged one."""
        try:
            yield from map(decode, self._connection.execute(query, values))
        except (sqlite3.Error, ValueError) as error:
            raise RunError(f"the run store '{self.folder / FILE}' cannot be read: {error}") from error

    def find(self, name: str) -> str:
        """The id of the run that `name` identifies: an id, the beginning of one, or `last`."""
        if not isinstance(name, str) or not name:
            raise InputError(f"run {name!r} must be the id of a run, the beginning of one, or 'last'")
        ids = self.ids()
        if name == "last" and ids:
            return ids[-1]
        found = [run for run in ids if run == name] or [run for run in ids if run.startswith(name)]
        if len(found) == 1:
            return found[0]
        if found:
            raise InputError(f"run '{name}' could be any of {', '.join(found[:MAX_RUNS_IN_MESSAGE])}; write more of it")
        hint = suggest(name, ids) if ids else "it holds no runs yet"
        if len(ids) > MAX_RUNS_IN_MESSAGE and not hint.startswith("did"):
            hint = f"the latest is {ids[-1]}, and `undergrowth list` shows all {len(ids)}"
        raise InputError(f"run '{name}' is not in '{self.folder}'; {hint}")

    def ids(self) -> list[str]:
        """The ids of all runs, the oldest first."""
        return [str(row["id"]) for row in self._read("SELECT id FROM runs ORDER BY rowid")]

    def runs(self) -> list[dict[str, Any]]:
        """The rows of all runs, the oldest first."""
        return [self.run(run) for run in self.ids()]

    def columns(self, run: str) -> dict[str, Any]:
        """The row of a run as it is stored, also of one that this version cannot read."""
        return dict(next(self._read("SELECT * FROM runs WHERE id=?", run)))

    def run(self, run: str) -> dict[str, Any]:
        """The row of a run, with its experiment in the current format. Raises `InputError` if it cannot be read."""
        row = self.columns(run)
        found, name = row["format"] or 0, f"run '{run}' in '{self.folder}'"
        check_format(name, found, EXPERIMENT_FORMAT)
        try:
            decoded = row | {key: json.loads(row[key]) for key in ("experiment", "notes", "summary")}
            decoded["experiment"] = upgrade_experiment(decoded["experiment"], found)
        except (ValueError, TypeError, LookupError) as error:
            raise InputError(f"{name} has a damaged row in the store ({type(error).__name__}: {error})") from None
        if decoded["status"] == "running" and not is_locked(self.folder / decoded["id"]):
            decoded["status"] = "killed"  # its process ended without recording a status
        return decoded

    def sweeps(self) -> dict[str, tuple[str, str]]:
        """The sweep and the variant of every run of a sweep; of several sweeps, the one that used the run last."""
        query = "SELECT run, sweep, variant FROM sweeps ORDER BY rowid"
        return {run: (sweep, variant) for run, sweep, variant in self._read(query)}

    def rounds(self, run: str) -> list[dict[str, Any]]:
        """The history of a run, one row per finished round."""
        return list(self._read("SELECT * FROM rounds WHERE run=? ORDER BY round", run, decode=_decode_round))

    def device_scores(self, run: str) -> list[tuple[int, dict[str, float]]]:
        """Rounds with the scores of the devices in them, as `finish_round` stored them."""
        # Not with SQLite's json_extract, which refuses a row with NaN, such as the r2 of a single sample.
        query = f"SELECT round, more FROM rounds WHERE run=? AND instr(more, '\"{DEVICE_SCORES}\"') ORDER BY round"
        return [(row["round"], json.loads(row["more"])[DEVICE_SCORES]) for row in self._read(query, run)]

    def last_round(self, run: str) -> dict[str, Any]:
        """The last row of the history of a run; empty before its first round is finished."""
        query = "SELECT * FROM rounds WHERE run=? ORDER BY round DESC LIMIT 1"
        return next(self._read(query, run, decode=_decode_round), {})

    def devices(self, run: str) -> list[dict[str, Any]]:
        """The facts of every device of a finished run."""
        query = "SELECT facts FROM devices WHERE run=? ORDER BY device"
        return list(self._read(query, run, decode=lambda row: json.loads(row["facts"])))

    def personal(self, run: str) -> list[tuple[str, str, float]]:
        """Device, model and accuracy, as `put_personal` stored them; empty if the run did not evaluate them."""
        query = "SELECT device, model, accuracy FROM personal WHERE run=? ORDER BY rowid"
        return [tuple(row) for row in self._read(query, run)]

    def links(self, run: str) -> Iterator[Entry]:
        """The ledger of a run, by round."""
        query = f"SELECT {', '.join(COLUMNS)} FROM links WHERE run=? ORDER BY round, rowid"
        return self._read(query, run, decode=lambda row: Entry(*row))

    def costs_by_device(self, run: str) -> dict[str, dict[str, Any]]:
        """Totals per child, of all children that were asked at least once.

        `asked`, `arrived`, `late`, `lost` and `refused` count asks, of which a round may have several.
        """
        totals = ", ".join(f"{'MAX' if cost.peak else 'SUM'}({cost.column}) AS {cost.of_device}" for cost in COSTS)
        rows = self._read(
            "SELECT child, SUM(outcome!='own training') AS asked,"
            " COUNT(DISTINCT CASE WHEN outcome='arrived' THEN round END) AS rounds,"
            " SUM(outcome='arrived') AS arrived, SUM(outcome='late') AS late,"
            f" SUM(outcome='lost') AS lost, SUM(outcome='refused') AS refused, {totals}"
            " FROM links WHERE run=? GROUP BY child",
            run,
        )
        return {row["child"]: {k: row[k] for k in row.keys() if k != "child"} for row in rows}  # noqa: SIM118

    def totals(self, run: str) -> Totals:
        """The costs of a run up to its last finished round."""
        last, devices = self.last_round(run), self.costs_by_device(run).values()
        totals: dict[str, Any] = {name: last.get(name, 0) for name in ROUND_COST_KEYS}
        for cost in COSTS:
            if not cost.of_round:
                values = [device[cost.of_device] for device in devices]
                totals[cost.of_run] = max(values, default=0) if cost.peak else sum(values)
        return Totals(**totals)

    def late_seconds(self, run: str) -> float:
        """The compute seconds of all answers that came too late."""
        query = "SELECT SUM(seconds_compute) FROM links WHERE run=? AND outcome='late'"
        return float(next(self._read(query, run))[0] or 0.0)

    def servers(self, run: str) -> set[str]:
        """The nodes that asked a child: the root and, in a deeper topology, the inner nodes."""
        return {row["parent"] for row in self._read("SELECT DISTINCT parent FROM links WHERE run=?", run)}

    def answers_by_round(self, run: str) -> dict[int, Counter[str]]:
        """How many requests to devices had each outcome, in rounds with any; without requests to servers."""
        query = (
            "SELECT round, outcome, COUNT(*) AS requests FROM links WHERE run=? AND outcome!='own training'"
            " AND child NOT IN (SELECT parent FROM links WHERE run=?) GROUP BY round, outcome"
        )
        answers: dict[int, Counter[str]] = {}
        for row in self._read(query, run, run):
            answers.setdefault(row["round"], Counter())[row["outcome"]] += row["requests"]
        return answers

    def checkpoints(self, run: str) -> list[tuple[int, str, int]]:
        """Round, file and checksum of every checkpoint, the newest first."""
        query = "SELECT round, file, checksum FROM checkpoints WHERE run=? ORDER BY round DESC"
        return [tuple(row) for row in self._read(query, run)]


def _decode_round(row: sqlite3.Row) -> dict[str, Any]:
    # The accuracy of a task that has none is empty. `Store.device_scores` has the scores of devices.
    left_out = {"run", "more", DEVICE_SCORES, *(["accuracy"] if row["accuracy"] is None else [])}
    return {key: value for key, value in {**dict(row), **json.loads(row["more"])}.items() if key not in left_out}
