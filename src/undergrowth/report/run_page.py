"""The HTML report about one or several runs: its sections from top to bottom."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from undergrowth.core import InputError
from undergrowth.report import curves, device_figures
from undergrowth.report.analyses import AnalysisNumbers, add_sections, analyse
from undergrowth.report.groups import Group, group_records, groups_metric
from undergrowth.report.html import Page, escape, html_table
from undergrowth.report.participation import participation_sections
from undergrowth.report.partition import add_partition_section, partition_figure, rebuild_partition
from undergrowth.report.personal_section import add_personal_sections
from undergrowth.report.run_cards import add_cards, add_group_table, add_key
from undergrowth.report.run_names import find_runs
from undergrowth.report.run_record import RunRecord, differences, load_records, short_labels
from undergrowth.report.stream_section import add_stream
from undergrowth.report.tables import count, device_cells, device_columns
from undergrowth.report.tree_section import add_tree
from undergrowth.runs import Store
from undergrowth.runs.atomic_files import check_target, replace_file

_MAX_DEVICE_ROWS = 200
_MIN_DEVICE_ROWS = 10  # of each run, if there are many
_MAX_METHODS_IN_TITLE = 6
_MAX_RUNS_IN_DETAIL = 8


def write_report(
    runs: str | Sequence[str],
    out_folder: str | Path = "runs",
    target: str | Path = "report.html",
    analyses: str | Sequence[str] | AnalysisNumbers = (),
    *,
    group: Sequence[str] = (),
    variants: Mapping[str, str] | None = None,
    **options: Any,
) -> Path:
    """Write the HTML page about `runs` to `target` and return its path.

    `runs` are ids, starts of ids, `last`, paths, or patterns such as `runs/*`. `analyses` are the names of analyses to
    add (or `all`), or the numbers that `analyse` returned. `group` are the settings whose values make a group of runs,
    such as train.lr; the default is every setting in which the runs differ but the seed. `variants` has a name for the
    id of every run; runs with the same name are then a group. `options` are passed to `analyse`: devices, method, data,
    model, progress.
    """
    if not runs:
        raise InputError("a report needs at least one run; `undergrowth list` shows them")
    path = check_target(target, "report.html")
    folder, names = find_runs(runs, out_folder)
    with Store(folder) as store:
        records = load_records(store, names, activity=True, variants=variants)
    numbers = analyses if isinstance(analyses, Mapping) else analyse(names, analyses, folder, **options)
    replace_file(path, build_page(records, numbers, group).render().encode("utf-8"))
    return path


def build_page(
    records: Sequence[RunRecord], analyses: AnalysisNumbers | None = None, group: Sequence[str] = ()
) -> Page:
    """The page: the summary of the runs, then devices, participation, analyses and settings."""
    groups, labels = group_records(records, group), short_labels(records)
    places = _places(records, groups)
    page = Page(_title(records))
    page.add('<div id="summary">')
    _add_summary(page, records, groups, labels)
    page.add("</div>")
    _add_devices(page, groups)
    add_personal_sections(page, records[:_MAX_RUNS_IN_DETAIL], labels[:_MAX_RUNS_IN_DETAIL])
    for record, label in zip(records[:_MAX_RUNS_IN_DETAIL], labels, strict=False):
        if record.stream is not None:
            add_stream(page, label, record.stream)
        if record.row["summary"] and "tree" in record.row["summary"]:
            add_tree(page, label, record.row["summary"]["tree"])
    _add_details(page, groups)
    add_sections(page, analyses or {}, records, labels, places)
    _add_settings(page, records, labels)
    _add_notes(page, records, labels)
    _add_device_tables(page, records, labels)
    return page


def build_summary(records: Sequence[RunRecord]) -> Page:
    """The first part of the page of `build_page` about the same runs: what changes with every round."""
    page = Page(_title(records))
    _add_summary(page, records, group_records(records), short_labels(records))
    return page


def _add_summary(page: Page, records: Sequence[RunRecord], groups: Sequence[Group], labels: Sequence[str]) -> None:
    """For one run its card first, for several runs the curves first."""
    places = _places(records, groups)
    page.section(page.title, _subtitle(records), level=1)
    if len(records) == 1:
        add_cards(page, records, labels, places)
        _add_curves(page, groups)
    else:
        add_key(page, groups)
        _add_curves(page, groups)
        add_group_table(page, groups)
        page.section("Runs")
        add_cards(page, records, labels, places)


def _places(records: Sequence[RunRecord], groups: Sequence[Group]) -> list[int]:
    """For every run, the place of its group, which has the colour."""
    place_of = {record.run: place for place, group in enumerate(groups) for record in group.records}
    return [place_of[record.run] for record in records]


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


def _add_curves(page: Page, groups: Sequence[Group]) -> None:
    text = "On the central test set, which no device trains on. Costs are those of all devices together."
    if any(len(group.records) > 1 for group in groups):
        text += " Line: mean of the runs of a group, up to the end of its shortest run. Band: standard deviation."
    page.section("Learning", text)
    metric = groups_metric(groups).name
    first = [curves.metric_per_round(groups, metric)]
    first += [curves.metric_against_cost(groups, metric, cost) for cost in ("seconds", "bytes", "joules")]
    if not page.figures(first):
        page.text("No round is finished yet.")
        return
    others = dict.fromkeys([*_all_metrics(groups), "loss"])
    more = [curves.metric_per_round(groups, name) for name in others if name != metric]
    page.figures([*more, curves.metric_against_cost(groups, metric, "flops")])


def _all_metrics(groups: Sequence[Group]) -> list[str]:
    """The names of the metrics that all runs have."""
    known = [
        record.row["experiment"].get("task", {}).get("metrics", []) for group in groups for record in group.records
    ]
    return [name for name in known[0] if all(name in each for each in known)]


def _add_devices(page: Page, groups: Sequence[Group]) -> None:
    if not any(group.devices for group in groups):
        return
    box = "A box spans the middle half of the devices, the whiskers span all of them."
    text = "Each device is evaluated with the model it would use, on its own held-out samples."
    page.section("Devices", text if len(groups) == 1 else f"{text} {box}")
    metric = groups_metric(groups).name
    page.figures([
        device_figures.distribution(groups, metric),
        device_figures.metric_against_samples(groups, metric),
        device_figures.distribution(groups, "rounds"),
        device_figures.distribution(groups, "samples"),
    ])  # fmt: skip
    boxes = [device_figures.cost_boxes(groups, cost) for cost in device_figures.COSTS]
    if any(boxes):
        page.section("Costs per device", f"By device class. {box}")
        page.figures(boxes)


def _add_details(page: Page, groups: Sequence[Group]) -> None:
    """Participation and partition, of the first run of each group."""
    shown = groups[:_MAX_RUNS_IN_DETAIL]
    records, labels = [group.records[0] for group in shown], [group.label for group in shown]
    if sum(len(group.records) for group in groups) > len(records):
        more = "" if len(shown) == len(groups) else f", for the first {len(shown)} of {len(groups)} groups"
        page.section("Participation", f"The following sections show the first run of a group{more}.")
    cache: dict[str, Any] = {}
    partitions = [rebuild_partition(record, cache) for record in records]
    participation_sections(page, records, labels, [each and each[1] for each in partitions])
    _add_partitions(page, partitions, labels)


def _add_partitions(page: Page, partitions: Sequence[tuple[str, Any] | None], labels: Sequence[str]) -> None:
    """One figure for each distinct partition."""
    distinct: dict[str, tuple[Any, list[str]]] = {}
    for partition, label in zip(partitions, labels, strict=True):
        if partition and partition[1].task == "classification":
            distinct.setdefault(partition[0], (partition[1], []))[1].append(label)
    if not distinct:
        return
    add_partition_section(page)
    for population, run_labels in distinct.values():
        if len(distinct) > 1:
            page.text(", ".join(run_labels))
        page.figures([partition_figure(population)])


def _add_settings(page: Page, records: Sequence[RunRecord], labels: Sequence[str]) -> None:
    page.section("Settings")
    changed = differences(records)
    if changed:
        rows = [(label, *(values[place] for values in changed.values())) for place, label in enumerate(labels)]
        page.table(["run", *changed], rows, numbers=False)
    settings = [record.settings for record in records]
    shared = [(path, value) for path, value in settings[0].items() if all(each.get(path) == value for each in settings)]
    table = html_table(["setting", "value"], shared, numbers=False)
    if len(records) == 1:
        page.add(table)
    else:
        page.fold("Settings that all runs share", table)


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
    max_rows = max(_MAX_DEVICE_ROWS // len(records), _MIN_DEVICE_ROWS)
    for record, label in zip(records, labels, strict=True):
        if not record.devices:
            continue
        metric = record.metric.name
        shown = record.devices[:: -(-len(record.devices) // max_rows)]
        total = len(record.devices)
        number = f"all {count(total)}" if len(shown) == total else f"{count(len(shown))} of {count(total)}"
        page.fold(
            f"Devices of {label} ({number})",
            html_table(device_columns(metric), [device_cells(device, metric) for device in shown]),
        )
