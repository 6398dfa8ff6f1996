"""Figures of runs for other programs: the histories as CSV or Parquet, the means of groups as a LaTeX table."""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from undergrowth.core import InputError
from undergrowth.report.groups import SEED, Group, Spread, group_records, groups_metric
from undergrowth.report.run_names import find_runs
from undergrowth.report.run_record import RunRecord, differences, load_records
from undergrowth.runs import Store
from undergrowth.runs.atomic_files import check_target, replace_file

FORMATS = ("csv", "parquet", "latex")

# Columns of the LaTeX table: total, title, unit, and the prefixes with their factors, of which each column uses one.
_DECIMAL = ((1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k"), (1.0, ""))
_LATEX_COLUMNS = (
    ("loss", "Loss", "", ((1.0, ""),)),
    ("simulated_seconds", "Time", "", ((3600.0, "h"), (60.0, "min"), (1.0, "s"), (1e-3, "ms"))),
    ("bytes", "Sent", "B", _DECIMAL),
    ("joules", "Energy", "J", (*_DECIMAL, (1e-3, "m"))),
)
_MAX_DECIMALS = 6
_ESCAPED = {
    "\\": r"\textbackslash{}", "&": r"\&", "%": r"\%", "$": r"\$", "#": r"\#", "_": r"\_", "{": r"\{", "}": r"\}",
    "~": r"\textasciitilde{}", "^": r"\textasciicircum{}",
}  # fmt: skip


def export(
    runs: str | Sequence[str],
    format: str = "csv",
    out_folder: str | Path = "runs",
    target: str | Path | None = None,
    *,
    group: Sequence[str] = (),
    variants: Mapping[str, str] | None = None,
) -> bytes:
    """The file in the `format` csv, parquet or latex; also written to `target`, if given.

    `runs` are ids, starts of ids, `last`, paths, or patterns such as `runs/*`. CSV and Parquet have one row per round:
    run, method, seed, the settings in which the runs differ, and the history. LaTeX has one row per group, with mean
    and standard deviation over its runs; `group` are the settings whose values make a group. `variants` has a name for
    the id of every run: a column of CSV and Parquet, and the groups of LaTeX.
    """
    if format not in FORMATS:
        raise InputError(f"format '{format}' is not known; choose one of: {', '.join(FORMATS)}")
    if group and format != "latex":
        raise InputError(f"group is for latex; {format} has every run, with all settings in which the runs differ")
    path = None if target is None else check_target(target)
    folder, names = find_runs(runs, out_folder)
    with Store(folder) as store:
        records = load_records(store, names, variants=variants)
    if format == "latex":
        data = latex_table(group_records(records, group)).encode("utf-8")
    else:
        rows = history_rows(records)
        data = _csv(rows) if format == "csv" else _parquet(rows)
    if path is not None:
        replace_file(path, data)
    return data


def history_rows(records: Sequence[RunRecord]) -> list[dict[str, Any]]:
    """One row per round of every run, all with the same columns; None where a run does not have a value."""
    changed = [path for path in differences(records) if path not in ("method.name", SEED)]
    rows = []
    for record in records:
        facts = {"run": record.run, "method": record.row["method"], "seed": record.row["seed"]}
        facts |= {"variant": record.variant} if record.variant else {}
        facts |= {path: record.named_settings.get(path) for path in changed}
        rows += [{**facts, **row} for row in record.rounds]
    columns = dict.fromkeys(name for row in rows for name in row)
    return [{name: row.get(name) for name in columns} for row in rows]


def latex_table(groups: Sequence[Group]) -> str:
    """A table for LaTeX's booktabs package: one row per group, mean ± standard deviation over its runs."""
    metric = groups_metric(groups)
    percent = (r"\%", ((0.01, ""),)) if metric.is_fraction else ("", ((1.0, ""),))
    main = (metric.name, _escape(metric.name.capitalize()), *percent)
    shown = [*([] if metric.name == "loss" else [main]), *_LATEX_COLUMNS]
    columns = [column for column in shown if any(group.spread(column[0]) for group in groups)]
    titles, cells = ["", "Runs"], [[_escape(group.label), str(len(group.records))] for group in groups]
    for key, title, unit, prefixes in columns:
        spreads = [group.spread(key) for group in groups]
        highest = max(abs(each.mean) for each in spreads if each)
        factor, prefix = next((each for each in prefixes if highest >= each[0]), prefixes[-1])
        titles.append(f"{title} ({prefix}{unit})" if prefix + unit else title)
        for row, spread in zip(cells, spreads, strict=True):
            row.append(_latex_number(spread, factor))
    lines = [r"\begin{tabular}{l" + "r" * (len(titles) - 1) + "}", r"\toprule", _latex_row(titles), r"\midrule"]
    return "\n".join([*lines, *map(_latex_row, cells), r"\bottomrule", r"\end{tabular}", ""])


def _latex_row(cells: Sequence[str]) -> str:
    return " & ".join(cells) + r" \\"


def _latex_number(spread: Spread | None, factor: float) -> str:
    """The mean with four digits, and the deviation with as many decimals."""
    if spread is None:
        return "--"
    mean, deviation = spread
    digits = 1 + math.floor(math.log10(abs(mean / factor))) if mean else 1  # before the point
    decimals = min(max(4 - digits, 0), _MAX_DECIMALS)
    more = "" if deviation is None else rf" \pm {deviation / factor:.{decimals}f}"
    return f"${mean / factor:.{decimals}f}{more}$"


def _escape(text: str) -> str:
    return "".join(_ESCAPED.get(letter, letter) for letter in text)


def _csv(rows: Sequence[dict[str, Any]]) -> bytes:
    text = io.StringIO(newline="")
    writer = csv.DictWriter(text, list(rows[0]) if rows else ["run", "method", "seed"], lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return text.getvalue().encode("utf-8")


def _parquet(rows: Sequence[dict[str, Any]]) -> bytes:
    try:
        import pyarrow
        from pyarrow import parquet
    except ImportError as error:
        raise InputError("parquet needs pyarrow: pip install 'undergrowth[parquet]'") from error
    # A column has one type: settings such as [32, 16] and "auto" become text.
    columns = {name: _one_type([row[name] for row in rows]) for name in (rows[0] if rows else ())}
    buffer = io.BytesIO()
    parquet.write_table(pyarrow.table(columns), buffer)
    return buffer.getvalue()


def _one_type(values: list[Any]) -> list[Any]:
    kinds = {type(value) for value in values if value is not None}
    if kinds == {int, float}:
        return [value if value is None else float(value) for value in values]
    if len(kinds) <= 1 and kinds <= {int, float, bool, str}:
        return values
    return [value if value is None else str(value) for value in values]
