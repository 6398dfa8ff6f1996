"""`undergrowth export`: figures of runs for other programs."""

from __future__ import annotations

import sys
from typing import Annotated

import typer

from undergrowth.cli.output import GroupPaths, OutFolder, RunNames


def export(
    runs: RunNames,
    csv: Annotated[bool, typer.Option("--csv", help="One row per round of every run, as text.")] = False,
    parquet: Annotated[bool, typer.Option("--parquet", help="The same rows as a Parquet file; needs pyarrow.")] = False,
    latex: Annotated[
        bool, typer.Option("--latex", help="A table for booktabs: mean and deviation of each group of runs.")
    ] = False,
    target: Annotated[
        str | None, typer.Option("-o", "--output", metavar="FILE", help="The file to write. Default: standard output.")
    ] = None,
    group: GroupPaths = None,
    out: OutFolder = "runs",
) -> None:
    """Write the figures of runs for other programs: --csv, --parquet or --latex.

    The rows of CSV and Parquet have run, method, seed, the settings in which the runs differ, and the history.

    Example: undergrowth export 'runs/*' --latex -o table.tex
    """
    from undergrowth.core import InputError
    from undergrowth.report import export as export_runs

    chosen = [name for name, is_set in (("csv", csv), ("parquet", parquet), ("latex", latex)) if is_set]
    if len(chosen) != 1:
        found = " and ".join(f"--{name}" for name in chosen) or "none"
        raise InputError(f"export needs one of --csv, --parquet and --latex, not {found}")
    if parquet and target is None:
        raise InputError("parquet is not text; name a file for it: -o FILE.parquet")
    data = export_runs(runs, chosen[0], out, target, group=group or ())
    if target is None:
        sys.stdout.write(data.decode("utf-8"))
    else:
        typer.echo(target)
