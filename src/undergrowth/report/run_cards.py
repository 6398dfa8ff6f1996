"""The key, the cards and the table of the groups on a page about runs."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from undergrowth.report.figures import colour, legend_group
from undergrowth.report.groups import Group, format_spread, groups_metric
from undergrowth.report.html import Page, escape
from undergrowth.report.rerun import rerun_command
from undergrowth.report.run_record import RunRecord
from undergrowth.report.tables import NO_VALUE, SHOWN_COSTS, duration, energy, operations, score, size, start_line

Column = tuple[str, str, Callable[[float | None], str]]  # total, title, formatting function
_GROUP_COLUMNS: tuple[Column, ...] = (
    ("loss", "loss", score), ("simulated_seconds", "simulated time", duration),
    ("bytes", "sent", size),
    ("flops", "computed", operations), ("joules", "energy", energy),
)  # fmt: skip


def add_key(page: Page, groups: Sequence[Group]) -> None:
    """One key for all figures, which stays visible while scrolling. A click hides or shows a group."""
    buttons = "".join(
        f'<button type="button" data-group="{legend_group(place)}">{_swatch(place)}{escape(group.label)}</button>'
        for place, group in enumerate(groups)
    )
    page.add(f'<nav class="legend" title="click to hide or show">{buttons}</nav>')


def add_group_table(page: Page, groups: Sequence[Group]) -> None:
    """Mean and deviation of scores and costs, one row per group."""
    metric = groups_metric(groups).name
    columns: list[Column] = [*([] if metric == "loss" else [(metric, metric, score)]), *_GROUP_COLUMNS]
    rows = [
        (group.label, len(group.records), *(format_spread(group.spread(key), each) for key, _, each in columns))
        for group in groups
    ]
    text = "Mean and standard deviation over the runs of a row, at the end of each run."
    page.section("Results", text)
    page.table(["", "runs", *(title for _, title, _ in columns)], rows)


def add_cards(page: Page, records: Sequence[RunRecord], labels: Sequence[str], places: Sequence[int]) -> None:
    """One card per run with its numbers and the command that repeats it; folded if there are several.

    `places` are the places of the groups of the runs, which have the colours.
    """
    runs = zip(records, labels, places, strict=True)
    cards = "".join(_card(record, label, place, folded=len(records) > 1) for record, label, place in runs)
    page.add(f'<div class="cards">{cards}</div>')


def _swatch(place: int) -> str:
    return f'<span class="swatch" style="background:{colour(place)}"></span>'


def _card(record: RunRecord, label: str, place: int, folded: bool) -> str:
    totals = record.totals
    names = dict.fromkeys([record.metric.name, *totals.get("metrics", {}), "loss"])
    numbers = [(name, score(totals.get(name))) for name in names]
    numbers += [(title, formatted(totals.get(key))) for key, title, formatted in SHOWN_COSTS if key in totals]
    cells = "".join(f"<div><b>{escape(value)}</b><span>{escape(title)}</span></div>" for title, value in numbers)
    status = progress = ""
    if not record.done:
        status = f'<span class="status">{escape(record.row["status"])}</span>'
        finished = f"{len(record.rounds)} of {record.row['rounds']} rounds are finished"
        resume = f"; resume with <code>{escape(record.resume_command)}</code>"
        progress = f'<p class="quiet">{finished}{"" if record.row["status"] == "running" else resume}.</p>'
    if "start" in totals:
        progress += f'<p class="quiet">Before the first round: {escape(start_line(totals["start"]))}.</p>'
    body = f'<div class="numbers">{cells}</div>{progress}<pre>{escape(rerun_command(record))}</pre>'
    if not folded:
        return f'<div class="card"><h3>{_swatch(place)}{escape(label)}{status}</h3>{body}</div>'
    reached = "" if numbers[0][1] == NO_VALUE else f' <span class="quiet">{" ".join(numbers[0])}</span>'
    heading = f"{_swatch(place)}{escape(label)}{reached}{status}"
    run_id = f'<p class="quiet">{escape(record.run)}</p>'
    return f'<details class="card"><summary>{heading}</summary>{run_id}{body}</details>'
