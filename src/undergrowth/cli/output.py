"""What commands print: tables for people, one line of JSON for programs."""

from __future__ import annotations

import json
import math
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console

if TYPE_CHECKING:
    from undergrowth.runs import Store

_WIDE = 200  # columns where there is no terminal: a file or a pipe should not get cut lines

OutFolder = Annotated[str, typer.Option("--out", metavar="DIR", help="The folder that the runs are in.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print one line of JSON instead of tables.")]


def console(stderr: bool = False) -> Console:
    stream = sys.stderr if stderr else sys.stdout
    width = None if stream.isatty() or "COLUMNS" in os.environ else _WIDE
    return Console(stderr=stderr, width=width, markup=False, highlight=False, emoji=False)


def print_json(value: Any) -> None:
    """On one line of standard output. What JSON has no word for (NaN, infinity) becomes null."""
    sys.stdout.write(json.dumps(_plain(value), allow_nan=False, default=str) + "\n")
    sys.stdout.flush()


@contextmanager
def opened(out: str | Path) -> Iterator[Store]:
    """The store of a folder that must be there."""
    import sqlite3

    from undergrowth.core import InputError
    from undergrowth.runs import Store

    store = Store(out)
    try:
        yield store
    except sqlite3.Error as error:
        raise InputError(f"out '{out}' has a run store that cannot be read: {error}") from error
    finally:
        store.close()


def _plain(value: Any) -> Any:
    if isinstance(value, dict):
        return {str(key): _plain(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(inner) for inner in value]
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value
