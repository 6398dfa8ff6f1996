"""Terminal and JSON output, and the options that several commands share."""

from __future__ import annotations

import json
import math
import os
import sys
from collections.abc import Iterable, Sequence
from typing import Annotated, Any

import typer
from rich.console import Console

_WIDTH_WITHOUT_TERMINAL = 200  # so that lines written to a file or a pipe are not wrapped

OutFolder = Annotated[str, typer.Option("--out", metavar="DIR", help="Folder of the runs.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print one line of JSON instead of tables.")]
TargetAccuracy = Annotated[
    float | None, typer.Option(metavar="A", min=0.0, max=1.0, help="Show the rounds and costs to reach this accuracy.")
]
TargetMetric = Annotated[
    float | None,
    typer.Option(
        "--metric", metavar="V", help="The same for the main metric of another task, such as r2 or perplexity."
    ),
]
EntryName = Annotated[str | None, typer.Argument(metavar="NAME", help="Show the details of this entry.")]
RunNames = Annotated[
    list[str], typer.Argument(metavar="RUN...", help="Run ids, starts of ids, `last`, paths, or patterns ('runs/*').")
]
GroupPaths = Annotated[
    list[str] | None,
    typer.Option(
        "--group",
        metavar="SETTING",
        help="Runs with the same value are one group, such as train.lr. Repeatable. Default: every setting in which "
        "the runs differ but the seed.",
    ),
]
RunName = Annotated[str, typer.Argument(metavar="RUN", help="Id of the run, start of its id, or `last`.")]


def console(stderr: bool = False) -> Console:
    """Where commands print: as wide as the terminal, and without wrapping where there is none."""
    stream = sys.stderr if stderr else sys.stdout
    width = None if stream.isatty() or "COLUMNS" in os.environ else _WIDTH_WITHOUT_TERMINAL
    return Console(stderr=stderr, width=width, markup=False, highlight=False, emoji=False)


def print_rows(
    value: Sequence[Any], json: bool, columns: Sequence[str], rows: Sequence[Sequence[Any]], right: Iterable[int] = ()
) -> None:
    """Print `value` as one line of JSON, or else `rows` as a table."""
    from undergrowth.report.tables import table

    if json:
        print_json(value)
    else:
        console().print(table(columns, rows, right=right))


def print_json(value: Any) -> None:
    """Print `value` as one line of JSON on standard output. NaN and infinity become null."""
    from undergrowth.core.pytree import map_leaves

    finite = map_leaves(lambda leaf: None if isinstance(leaf, float) and not math.isfinite(leaf) else leaf, value)
    sys.stdout.write(json.dumps(finite, allow_nan=False, default=str) + "\n")
    sys.stdout.flush()
