"""The HTML report about one or several runs: its sections from top to bottom."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

from undergrowth.core import InputError
from undergrowth.report import device_figures, figures
from undergrowth.report.analyses import AnalysisNumbers, add_sections, analyse
from undergrowth.report.html import Page, escape, html_table
from undergrowth.report.participation import participation_sections
from undergrowth.report.partition import add_partition_section, partition_figure, rebuild_partition
from undergrowth.report.rerun import rerun_command
from undergrowth.report.run_record import RunRecord, differences, finite, load_records, short_labels
from undergrowth.report.tables import COSTS, count, duration, energy, operations, score, size, start_line
from undergrowth.runs import Store
from undergrowth.runs.atomic_files import replace_file

_MAX_DEVICE_ROWS = 200
_MAX_METHODS_IN_TITLE = 6


def write_report(
    runs: Sequence[str],
    out_folder: str | Path = "runs",
    target: str | Path = "report.html",
    analyses: Sequence[str] | AnalysisNumbers = (),
    **options: Any,
) -> Path:
    """Write the HTML page about `runs` (ids, starts of ids, or `last`) to `target` and return its path.

    `analyses` are the names of analyses to add (or `all`), or the numbers that `analyse` returned. `options` are passed
    to `analyse`: devices, method, data, model, progress.
    """
    if not runs:
        raise InputError("a report needs at least one run; `undergrowth list` shows them")
    path = Path(target).expanduser()
    if path.is_dir():
        raise InputError(f"'{target}' is a folder; name a file for the report, such as '{path / 'report.html'}'")
    with closing(Store(out_folder)) as store:
        records = load_records(store, runs, activity=True)
    numbers = analyses if isinstance(analyses, Mapping) else analyse(runs, analyses, out_folder, **options)
    replace_file(path, build_page(records, numbers).render().encode("utf-8"))
    return path


def build_page(records: Sequence[RunRecord], analyses: AnalysisNumbers | None = None) -> Page:
    labels = short_labels(records)
    page = Page(_title(records))
    page.section(page.title, _subtitle(records), level=1)
    runs = enumerate(zip(records, labels, strict=True))
    cards = "".join(_card(record, label, place) for place, (record, label) in runs)
    page.add(f'<div class="cards">{cards}</div>')
    if len(records) > 1:
        page.add(_legend(labels))
    _add_learning(page, records, labels)
    _add_devices(page, records, labels)
    cache: dict[str, Any] = {}
    partitions = [rebuild_partition(record, cache) for record in records]
    participation_sections(page, records, labels, [each and each[1] for each in partitions])
    _add_partitions(page, partitions, labels)
    add_sections(page, analyses or {}, records, labels)
    _add_settings(page, records, labels)
    _add_notes(page, records, labels)
    _add_device_tables(page, records, labels)
    return page


def _title(records: Sequence[RunRecord]) -> str:
    if len(records) == 1:
        row = records[0].row
        return f"{row['method']} on {row['data']}"
    methods = list(dict.fromkeys(str(record.row["method"]) for record in records))
    data = list(dict.fromkeys(str(record.row["data"]) for record in records))
    shown = ", ".join(methods) if len(methods) <= _MAX_METHODS_IN_TITLE else f"{len(methods)} methods"
    return f"{len(records)} runs: {shown} on {', '.join(data)}"


def _subtitle(records: Sequence[RunRecord]) -> str:
    rows = [record.row for record in records]
    dates = sorted({str(row["created"])[:10] for row in rows})
    models = sorted({str(row["model"]) for row in rows})
    clients = sorted({int(row["clients"]) for row in rows})
    period = " to ".join(dict.fromkeys((dates[0], dates[-1])))
    return f"{', '.join(models)} · {' or '.join(count(number) for number in clients)} devices · {period}"


def _legend(labels: Sequence[str]) -> str:
    """One legend for all figures, which stays visible while scrolling. A click hides or shows a run."""
    buttons = "".join(
        f'<button type="button" data-run="{figures.legend_group(place)}">{_swatch(place)}{escape(label)}</button>'
        for place, label in enumerate(labels)
    )
    return f'<nav class="legend" title="click to hide or show a run">{buttons}</nav>'


def _swatch(place: int) -> str:
    return f'<span class="swatch" style="background:{figures.colour(place)}"></span>'


def _card(record: RunRecord, label: str, place: int) -> str:
    totals = record.totals
    numbers = [("accuracy", score(totals.get("accuracy"))), ("loss", score(totals.get("loss")))]
    numbers += [(title, formatted(totals.get(key))) for key, title, formatted in COSTS if key in totals]
    cells = "".join(f"<div><b>{escape(value)}</b><span>{escape(title)}</span></div>" for title, value in numbers)
    run_id = "" if label == record.run else f' <span class="quiet">{escape(record.run)}</span>'
    status = progress = ""
    if not record.done:
        status = f'<span class="status">{escape(record.row["status"])}</span>'
        finished = f"{len(record.rounds)} of {record.row['rounds']} rounds are finished"
        progress = f'<p class="quiet">{finished}; resume with <code>{escape(record.resume_command)}</code>.</p>'
    if "start" in totals:
        progress += f'<p class="quiet">Before the first round: {escape(start_line(totals["start"]))}.</p>'
    return (
        f'<div class="card"><h3>{_swatch(place)}{escape(label)}{run_id}{status}'
        f'</h3><div class="numbers">{cells}</div>{progress}<pre>{escape(rerun_command(record))}</pre></div>'
    )


def _add_learning(page: Page, records: Sequence[RunRecord], labels: Sequence[str]) -> None:
    page.section("Learning", "On the central test set, which no device trains on.")
    if not page.figures(figures.metric_per_round(records, labels, metric) for metric in ("accuracy", "loss")):
        page.text("No round is finished yet.")
        return
    page.section("Accuracy against cost", "Costs of all devices together, up to each round.")
    costs = ("seconds", "bytes", "flops", "joules")
    page.figures(figures.accuracy_against_cost(records, labels, cost) for cost in costs)


def _add_devices(page: Page, records: Sequence[RunRecord], labels: Sequence[str]) -> None:
    if not any(record.devices for record in records):
        return
    page.section("Devices", "Each device is evaluated with the model it would use, on its own held-out samples.")
    page.figures([
        device_figures.histogram(records, labels, "accuracy"),
        device_figures.accuracy_against_samples(records, labels),
        device_figures.histogram(records, labels, "rounds"),
        device_figures.histogram(records, labels, "samples"),
    ])  # fmt: skip
    boxes = [device_figures.cost_boxes(records, labels, cost) for cost in device_figures.COSTS]
    if any(boxes):
        text = "By device class. A box spans the middle half of the devices, the whiskers span all of them."
        page.section("Costs per device", text)
        page.figures(boxes)


def _add_partitions(page: Page, partitions: Sequence[tuple[str, Any] | None], labels: Sequence[str]) -> None:
    """One figure for each distinct partition."""
    distinct: dict[str, tuple[Any, list[str]]] = {}
    for partition, label in zip(partitions, labels, strict=True):
        if partition:
            distinct.setdefault(partition[0], (partition[1], []))[1].append(label)
    if not distinct:
        return
    add_partition_section(page)
    for population, run_labels in distinct.values():
        if len(distinct) > 1:
            page.text(", ".join(run_labels))
        page.figures([partition_figure(population)])


def _add_settings(page: Page, records: Sequence[RunRecord], labels: Sequence[str]) -> None:
    page.section("Settings", "Settings in which the runs differ are highlighted." if len(records) > 1 else "")
    settings = [record.settings for record in records]
    paths = list(dict.fromkeys(path for each in settings for path in each))
    changed = differences(records)
    rows = [(path, *(each.get(path) for each in settings)) for path in paths]
    columns = labels if len(records) > 1 else ["value"]
    marked = [place for place, path in enumerate(paths) if path in changed]
    page.table(["setting", *columns], rows, numbers=False, marked=marked)


def _add_notes(page: Page, records: Sequence[RunRecord], labels: Sequence[str]) -> None:
    if any(record.row["notes"] for record in records):
        page.section("Notes")
    for record, label in zip(records, labels, strict=True):
        notes = record.row["notes"]
        if notes and len(records) > 1:
            page.text(label)
        if notes:
            page.add(f"<ul>{''.join(f'<li>{escape(note)}</li>' for note in notes)}</ul>")


def _add_device_tables(page: Page, records: Sequence[RunRecord], labels: Sequence[str]) -> None:
    columns = (
        "device", "class", "samples", "accuracy", "rounds", "down", "up", "FLOPs", "energy", "computing", "memory",
    )  # fmt: skip
    for record, label in zip(records, labels, strict=True):
        if not record.devices:
            continue
        shown = record.devices[:: -(-len(record.devices) // _MAX_DEVICE_ROWS)]
        rows = [
            (
                device["device"], device["tier"], count(device["samples"]), score(finite(device["accuracy"])),
                device["rounds"], size(device.get("bytes_down")), size(device.get("bytes_up")),
                operations(device.get("flops")), energy(device.get("joules")), duration(device.get("compute_seconds")),
                size(device.get("memory")),
            )
            for device in shown
        ]  # fmt: skip
        total = len(record.devices)
        number = f"all {count(total)}" if len(shown) == total else f"{count(len(shown))} of {count(total)}"
        summary = escape(f"Devices of {label} ({number})")
        page.add(f"<details><summary>{summary}</summary>{html_table(columns, rows)}</details>")
