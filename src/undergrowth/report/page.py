"""The report of one or several runs: what is on the page, in which order."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from undergrowth.core import InputError
from undergrowth.report import device_figures, figures
from undergrowth.report.analyses import Found, analyse, sections
from undergrowth.report.command import command
from undergrowth.report.html import Page, escape, table
from undergrowth.report.participation import taking_part
from undergrowth.report.partition import holdings, partition_of
from undergrowth.report.record import Record, differences, finite, labels, read
from undergrowth.report.tables import COSTS, count, duration, energy, operations, score, size
from undergrowth.runs import Store
from undergrowth.runs.atomic_files import replace_file

_MOST_ROWS = 200  # devices in the table of a run


def report(
    runs: Sequence[str],
    out_folder: str | Path = "runs",
    target: str | Path = "report.html",
    analyses: Sequence[str] | Found = (),
    **how: Any,
) -> Path:
    """Writes the page about these runs (ids, beginnings of ids, or `last`) and returns where it is.

    analyses: names of those to show, or `all`, which takes what else `analyse` takes (devices, method, data, model,
    progress); or what `analyse` has found.
    """
    if not runs:
        raise InputError("a report needs at least one run; `undergrowth list` shows what there is")
    path = Path(target).expanduser()
    if path.is_dir():
        raise InputError(f"'{target}' is a folder; name a file for the report, such as '{path / 'report.html'}'")
    store = Store(out_folder)
    try:
        records = read(store, runs, exchanges=True)
    finally:
        store.close()
    found = analyses if isinstance(analyses, Mapping) else analyse(runs, analyses, out_folder, **how)
    replace_file(path, page(records, found).render().encode("utf-8"))
    return path


def page(records: Sequence[Record], found: Found | None = None) -> Page:
    names = labels(records)
    built = Page(_title(records))
    built.add(f"<h1>{escape(built.title)}</h1>")
    built.add(f'<p class="quiet">{escape(_subtitle(records))}</p>')
    cards = "".join(_card(record, name, place) for place, (record, name) in enumerate(zip(records, names)))
    built.add(f'<div class="cards">{cards}</div>')
    if len(records) > 1:
        built.add(_legend(names))
    _learning(built, records, names)
    _devices(built, records, names)
    known: dict[str, Any] = {}
    partitions = [partition_of(record, known) for record in records]
    taking_part(built, records, names, [found and found[1] for found in partitions])
    _partitions(built, partitions, names)
    sections(built, found or {}, records, names)
    _settings(built, records, names)
    _device_tables(built, records, names)
    return built


def _title(records: Sequence[Record]) -> str:
    if len(records) == 1:
        row = records[0].row
        return f"{row['method']} on {row['data']}"
    methods = list(dict.fromkeys(str(record.row["method"]) for record in records))
    data = list(dict.fromkeys(str(record.row["data"]) for record in records))
    shown = ", ".join(methods) if len(methods) <= 6 else f"{len(methods)} methods"
    return f"{len(records)} runs: {shown} on {', '.join(data)}"


def _subtitle(records: Sequence[Record]) -> str:
    rows = [record.row for record in records]
    dates = sorted({str(row["created"])[:10] for row in rows})
    models = sorted({str(row["model"]) for row in rows})
    clients = sorted({int(row["clients"]) for row in rows})
    shown = " to ".join(dict.fromkeys((dates[0], dates[-1])))
    return f"{', '.join(models)} · {' or '.join(count(number) for number in clients)} devices · {shown}"


def _legend(names: Sequence[str]) -> str:
    """One for all figures, which stays in sight: a click hides a run."""
    chips = "".join(
        f'<button type="button" data-run="{figures.run_group(place)}">{_swatch(place)}{escape(name)}</button>'
        for place, name in enumerate(names)
    )
    return f'<nav class="legend" title="a click hides or shows a run">{chips}</nav>'


def _swatch(place: int) -> str:
    return f'<span class="swatch" style="background:{figures.COLOURS[place % len(figures.COLOURS)]}"></span>'


def _card(record: Record, label: str, place: int) -> str:
    totals = record.totals
    numbers = [("accuracy", score(totals.get("accuracy"))), ("loss", score(totals.get("loss")))]
    numbers += [(words, written(totals.get(key))) for key, words, written in COSTS if key in totals]
    cells = "".join(f"<div><b>{escape(value)}</b><span>{escape(words)}</span></div>" for words, value in numbers)
    status = "" if record.done else f'<span class="status">{escape(record.row["status"])}</span>'
    more = "" if label == record.run else f' <span class="quiet">{escape(record.run)}</span>'
    unfinished = ""
    if not record.done:
        stand = f"{len(record.rounds)} of {record.row['rounds']} rounds are done; "
        unfinished = f'<p class="quiet">{stand}<code>{escape(record.resume_command)}</code> goes on.</p>'
    return (
        f'<div class="card"><h3>{_swatch(place)}{escape(label)}{more}{status}'
        f'</h3><div class="numbers">{cells}</div>{unfinished}<pre>{escape(command(record))}</pre></div>'
    )


def _learning(built: Page, records: Sequence[Record], names: Sequence[str]) -> None:
    built.section("Learning", "On the central test set, which no device trains on.")
    drawn = built.figures(figures.per_round(records, names, key) for key in ("accuracy", "loss"))
    if not drawn:
        built.add("<p>No round is finished yet.</p>")
        return
    built.section("What it cost", "Accuracy against all that the devices had spent by then, together.")
    built.figures(figures.against_cost(records, names, cost) for cost in ("seconds", "bytes", "flops", "joules"))


def _devices(built: Page, records: Sequence[Record], names: Sequence[str]) -> None:
    if not any(record.devices for record in records):
        return
    built.section("Devices", "Each with the model that it would use, on its own held-out samples.")
    drawn = [device_figures.distribution(records, names, "accuracy"), device_figures.cloud(records, names)]
    drawn += [device_figures.distribution(records, names, key) for key in ("rounds", "samples")]
    built.figures(drawn)
    drawn = [device_figures.costs(records, names, cost) for cost in device_figures.COSTS]
    if any(drawn):
        text = "By class of device. A box holds the middle half of the devices, the whiskers reach to the last ones."
        built.section("Costs per device", text)
        built.figures(drawn)


def _partitions(built: Page, partitions: Sequence[tuple[str, Any] | None], names: Sequence[str]) -> None:
    found: dict[str, tuple[Any, list[str]]] = {}
    for partition, name in zip(partitions, names):
        if partition:
            found.setdefault(partition[0], (partition[1], []))[1].append(name)
    if not found:
        return
    built.section("Who holds what", "Training samples by device and class; the area of a bubble is their number.")
    for population, users in found.values():
        if len(found) > 1:
            built.add(f"<p>{escape(', '.join(users))}</p>")
        built.figures([holdings(population)])


def _settings(built: Page, records: Sequence[Record], names: Sequence[str]) -> None:
    built.section("Settings", "Those in which the runs differ are marked." if len(records) > 1 else "")
    settings = [record.settings for record in records]
    paths = list(dict.fromkeys(path for each in settings for path in each))
    apart = differences(records)
    rows = [(path, *(each.get(path) for each in settings)) for path in paths]
    marked = [place for place, path in enumerate(paths) if path in apart]
    columns = names if len(records) > 1 else ["value"]
    built.table(["setting", *columns], rows, numbers=False, marked=marked)
    noted = [(name, record.row["notes"]) for record, name in zip(records, names) if record.row["notes"]]
    if noted:
        built.section("Notes")
    for name, notes in noted:
        heading = f"<p>{escape(name)}</p>" if len(records) > 1 else ""
        built.add(f"{heading}<ul>{''.join(f'<li>{escape(note)}</li>' for note in notes)}</ul>")


def _device_tables(built: Page, records: Sequence[Record], names: Sequence[str]) -> None:
    columns = (
        "device", "class", "samples", "accuracy", "rounds", "down", "up", "FLOPs", "energy", "computing", "memory",
    )  # fmt: skip
    for record, name in zip(records, names):
        if not record.devices:
            continue
        shown = record.devices[:: -(-len(record.devices) // _MOST_ROWS)]
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
        which = f"all {count(total)}" if len(shown) == total else f"{count(len(shown))} of {count(total)}"
        summary = f"Devices of {name} ({which})"
        built.add(f"<details><summary>{escape(summary)}</summary>{table(columns, rows)}</details>")
