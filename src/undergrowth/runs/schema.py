"""The tables of the run store, and the migrations that bring an older store up to date.

The version of a store is its `PRAGMA user_version`. To change a table, change `_TABLES` and append a function to
`MIGRATIONS` that makes the same change to a store of the version before.

The table `links` has the columns of the ledger. A column that a store does not have yet is added to it without a new
version: it is 0 for older entries, and older versions of the package ignore it.
"""

from __future__ import annotations

import os
import sqlite3
import time
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

from undergrowth.exchange import COLUMNS
from undergrowth.runs.formats import check_format

SECONDS_TO_WAIT_FOR_WRITERS = 60.0
_TABLES = f"""
CREATE TABLE runs (
  id TEXT PRIMARY KEY, created TEXT, status TEXT, method TEXT, data TEXT, model TEXT, seed INTEGER, rounds INTEGER,
  clients INTEGER, engine TEXT, experiment TEXT, notes TEXT, summary TEXT, version TEXT, format INTEGER);
CREATE TABLE rounds (
  run TEXT, round INTEGER, accuracy REAL, loss REAL, simulated_seconds REAL, wall_seconds REAL, arrived INTEGER,
  lost INTEGER, refused INTEGER, late INTEGER, bytes_down INTEGER, bytes_up INTEGER, flops REAL, joules REAL,
  more TEXT, PRIMARY KEY (run, round));
CREATE TABLE devices (
  run TEXT, device TEXT, facts TEXT, PRIMARY KEY (run, device));
CREATE TABLE links (
  run TEXT, {", ".join(COLUMNS)});
CREATE INDEX links_of_run ON links (run, round);
CREATE TABLE checkpoints (
  run TEXT, round INTEGER, file TEXT, checksum INTEGER, PRIMARY KEY (run, round));
CREATE TABLE personal (
  run TEXT, model TEXT, device TEXT, accuracy REAL, PRIMARY KEY (run, model, device));
CREATE TABLE sweeps (
  sweep TEXT, run TEXT, variant TEXT, PRIMARY KEY (sweep, run))
"""


def _add_version_and_format(connection: sqlite3.Connection) -> None:
    """Which version of the package created a run, and the format of its `experiment`."""
    connection.execute("ALTER TABLE runs ADD COLUMN version TEXT")
    connection.execute("ALTER TABLE runs ADD COLUMN format INTEGER")


def _add_personal(connection: sqlite3.Connection) -> None:
    """The accuracy of local-only, federated and adapted models on every device."""
    columns = "run TEXT, model TEXT, device TEXT, accuracy REAL, PRIMARY KEY (run, model, device)"
    connection.execute(f"CREATE TABLE personal ({columns})")


def _add_sweeps(connection: sqlite3.Connection) -> None:
    """The runs of every sweep, with the name of their variant. A run may belong to several sweeps."""
    connection.execute("CREATE TABLE sweeps (sweep TEXT, run TEXT, variant TEXT, PRIMARY KEY (sweep, run))")


# The function at index n changes a store of version n to version n + 1.
MIGRATIONS: tuple[Callable[[sqlite3.Connection], None], ...] = (_add_version_and_format, _add_personal, _add_sweeps)
SCHEMA_VERSION = len(MIGRATIONS)


def schema_version(connection: sqlite3.Connection) -> int:
    """The version of a store; 0 also for an empty file."""
    return int(connection.execute("PRAGMA user_version").fetchone()[0])


def is_current(connection: sqlite3.Connection) -> bool:
    """Whether a store needs no migration."""
    return schema_version(connection) == SCHEMA_VERSION and not _missing_columns(connection)


def _missing_columns(connection: sqlite3.Connection) -> list[str]:
    known = {row[1] for row in connection.execute("PRAGMA table_info(links)")}
    return [name for name in COLUMNS if name not in known]


def migrate(connection: sqlite3.Connection) -> None:
    """Creates the tables of a new store or changes those of an older one to `SCHEMA_VERSION`, in one transaction."""
    connection.execute("BEGIN IMMEDIATE")
    try:
        version = schema_version(connection)  # read again: another process may have migrated the store in the meantime
        if not connection.execute("SELECT 1 FROM sqlite_master").fetchone():
            for statement in _TABLES.split(";"):
                connection.execute(statement)
        else:
            for migration in MIGRATIONS[version:]:
                migration(connection)
        for name in _missing_columns(connection):
            connection.execute(f"ALTER TABLE links ADD COLUMN {name} DEFAULT 0")
        connection.execute(f"PRAGMA user_version={max(version, SCHEMA_VERSION)}")
        connection.execute("COMMIT")
    except BaseException:
        if connection.in_transaction:  # SQLite itself rolls back if the disk is full
            connection.execute("ROLLBACK")
        raise


def migrate_when_free(connection: sqlite3.Connection, seconds: float) -> None:
    """Migrates a store that others may use, with write-ahead logging. `seconds`: how long to wait for them."""
    deadline = time.monotonic() + seconds
    while True:
        try:
            connection.execute("PRAGMA journal_mode=WAL")
            migrate(connection)
            return
        except sqlite3.OperationalError as error:
            # SQLite's own timeout does not apply while another process changes the journal mode.
            if "locked" not in str(error) or time.monotonic() > deadline:
                raise
            time.sleep(0.01)


def migrated_copy(connection: sqlite3.Connection) -> sqlite3.Connection:
    """A temporary copy of an older store at `SCHEMA_VERSION`, for readers, who must not change the file."""
    copy = sqlite3.connect("", isolation_level=None)  # in memory; SQLite moves a large one to a temporary file
    connection.backup(copy)
    migrate(copy)
    return copy


def connect(path: Path, write: bool, what: str) -> sqlite3.Connection:
    """Opens a store at `SCHEMA_VERSION`: to `write`, it is migrated; a reader of an older one gets a migrated copy.

    `what`: begins the `InputError` about a store of a newer version.
    """
    connection = sqlite3.connect(_address(path), SECONDS_TO_WAIT_FOR_WRITERS, isolation_level=None, uri=True)
    try:
        check_format(what, schema_version(connection), SCHEMA_VERSION)
        current = is_current(connection)
        if not current and write:
            migrate_when_free(connection, SECONDS_TO_WAIT_FOR_WRITERS)
        elif not current:
            found, connection = connection, migrated_copy(connection)
            found.close()
        if not write:
            connection.execute("PRAGMA query_only=ON")
    except BaseException:
        connection.close()
        raise
    return connection


def _address(path: Path) -> str:
    """In a folder without write permission, SQLite must not try to create its auxiliary files beside the store.

    If they exist, another process may be writing, and SQLite must read them too.
    """
    if os.access(path.parent, os.W_OK):
        return path.as_uri()
    logged = path.with_name(f"{path.name}-wal").exists()
    return f"{path.as_uri()}?{'mode=ro' if logged else 'immutable=1'}"


def insert(connection: sqlite3.Connection, table: str, row: Mapping[str, Any]) -> None:
    """Inserts one row, by the names of its columns."""
    connection.execute(insertion(table, row), tuple(row.values()))


def insertion(table: str, columns: Iterable[str]) -> str:
    """The statement that inserts values of these columns."""
    names = tuple(columns)
    return f"INSERT INTO {table} ({', '.join(names)}) VALUES ({', '.join('?' * len(names))})"
