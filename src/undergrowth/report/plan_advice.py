"""The advice of a plan in sentences: who can take part, energy, batteries, and what to change."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from undergrowth.report.tables import count, duration, energy, size
from undergrowth.runs.advice import Change, NextClass, best_method, fitting_classes, run_jobs, run_joules
from undergrowth.runs.config import Experiment
from undergrowth.runs.planning import Row, takes_part
from undergrowth.runs.rehearsal import MAX_ROUNDS

MAX_EQUALS_NAMED = 3  # of the methods that let as many devices take part


def advise(rows: Sequence[Row], planned: Experiment, method: str, next_class: NextClass | None) -> list[str]:
    """Sentences about a plan. Batteries and `next_class` are those of `method`."""
    who = [_participation(rows, planned), *_who_is_left_out(rows)]
    sentences = [*who, *_asynchronous_rounds(rows, planned)]
    sentences += [_energy(rows, planned), *_batteries(rows, method)]
    if next_class:
        sentences.append(_changes(next_class, planned))
    return [f"{sentence}." for sentence in sentences]


def _participation(rows: Sequence[Row], planned: Experiment) -> str:
    devices, best = takes_part(rows), best_method(rows)
    of_best = [row for row in rows if row["method"] == best]
    total, classes = count(sum(row["devices"] for row in of_best)), len(of_best)
    by = "" if planned.fleet.deadline is None else " by the deadline"
    figures = f"{count(devices[best])} of {total} devices"
    in_classes = f"{fitting_classes(rows, best)} of {classes} device classes"
    if len(devices) == 1:
        return f"{best}: {figures} can take part{by}, in {in_classes}"
    same = [name for name in devices if name != best and _reach(rows, name) == _reach(rows, best)]
    if len(same) == len(devices) - 1:
        return (
            f"With every method, {figures} can take part{by}, in {in_classes}; {best} needs the least energy a device"
        )
    sentence = f"Most devices can take part{by} with {best}: {figures}, in {in_classes}"
    if same:
        sentence += f"; as many with {_named(same)}"
    widest = max(devices, key=lambda name: fitting_classes(rows, name))
    if fitting_classes(rows, widest) > fitting_classes(rows, best):
        sentence += f"; most classes with {widest}: {fitting_classes(rows, widest)} of {classes}"
    return sentence


def _who_is_left_out(rows: Sequence[Row]) -> list[str]:
    """With which methods fewer devices can take part than with the best, how many, and why not the others."""
    devices = takes_part(rows)
    alike: dict[tuple[int, str], list[str]] = {}
    for name in sorted(devices, key=lambda name: -devices[name]):
        if devices[name] < max(devices.values()):
            alike.setdefault((devices[name], _obstacles(rows, name)), []).append(name)
    parts = [f"{_named(names)}: {count(able)}{why}" for (able, why), names in alike.items()]
    return [f"Fewer devices can take part with {'; '.join(parts)}"] if parts else []


def _obstacles(rows: Sequence[Row], method: str) -> str:
    """Why the typical devices of some classes cannot take part, in brackets."""
    classes: dict[str, list[str]] = {}
    for row in rows:
        if row["method"] == method and row["verdict"] != "fits":
            classes.setdefault(row["verdict"], []).append(row["device"])
    reasons = [f"{verdict} for {', '.join(devices)}" for verdict, devices in classes.items()]
    return f" ({'; '.join(reasons)})" if reasons else ""


def _named(methods: Sequence[str]) -> str:
    more = len(methods) - MAX_EQUALS_NAMED
    return ", ".join(methods[:MAX_EQUALS_NAMED]) + (f" and {more} more" if more > 0 else "")


def _reach(rows: Sequence[Row], method: str) -> tuple[int, int]:
    return takes_part(rows)[method], fitting_classes(rows, method)


def _asynchronous_rounds(rows: Sequence[Row], planned: Experiment) -> list[str]:
    """How long a round of a server takes that does not wait for all devices, which no time of a device tells."""
    times = {row["method"]: row["round_seconds"] for row in rows if row["round_seconds"] is not None}
    if not times:
        return []
    named = ", ".join(f"{duration(seconds)} with {name}" for name, seconds in times.items())
    rounds = count(min(planned.max_rounds, MAX_ROUNDS))
    return [f"A round of a server that does not wait for all devices takes {named} (mean of the first {rounds} rounds)"]


def _energy(rows: Sequence[Row], planned: Experiment) -> str:
    methods = dict.fromkeys(row["method"] for row in rows)
    rising = sorted(methods, key=lambda name: run_joules(rows, name))
    listed = ", ".join(f"{name} {energy(run_joules(rows, name))}" for name in rising)
    rounds = planned.max_rounds
    sentence = f"Energy of all devices in {count(rounds)} round{'s' if rounds > 1 else ''}: {listed}"
    jobs = {name: round(run_jobs(rows, name) / rounds) for name in rising}
    fewer = [f"{count(jobs[name])} with {name}" for name in rising if jobs[name] < max(jobs.values())]
    return sentence + (f"; a round has {count(max(jobs.values()))} jobs, but {', '.join(fewer)}" if fewer else "")


def _batteries(rows: Sequence[Row], method: str) -> list[str]:
    lasting = [row for row in rows if row["method"] == method and row["battery_rounds"] is not None]
    parts = []
    for row in lasting:
        rounds = row["battery_rounds"]
        part = f"{row['device']} {count(rounds)} rounds ({duration(rounds * row['seconds'])} of taking part)"
        parts.append(part + (", less than the run" if rounds < row["run_jobs"] / row["devices"] else ""))
    return [f"A full battery lasts with {method}: {', '.join(parts)}"] if parts else []


def _changes(next_class: NextClass, planned: Experiment) -> str:
    row = next_class.row
    needed, memory = row["runtime_bytes"] + row["memory_bytes"], row["device_bytes"]
    why = f"needs {size(needed)} and has {size(memory)}" if row["verdict"] == "too big" else "is too slow"
    start = f"The next class for {row['method']} is {row['device']}, which {why}"
    if not next_class.changes:
        return f"{start}; no single change of deadline, epochs, batch, links or method lets it in"
    ways = [f"{_describe(change, planned)} ({_fitting(change.row)})" for change in next_class.changes]
    return f"{start}; it fits with {', or with '.join(ways)}"


def _fitting(row: Row) -> str:
    return f"{count(row['fitting'])} of {count(row['devices'])}"


def _describe(change: Change, planned: Experiment) -> str:
    if "method" in change.settings:
        ratio = change.row["ratio"]
        return f"method {change.settings['method']}" + ("" if ratio is None else f", ratio {ratio:g}")
    return " and ".join(_setting(path, value, planned) for path, value in change.settings.items())


def _setting(path: str, value: Any, planned: Experiment) -> str:
    section, _, key = path.partition(".")
    before = planned.method.options.get(key) if section == "method" else getattr(getattr(planned, section), key)
    shown = f"{value:g}" if isinstance(value, float) else str(value).replace(" ", "")
    instead = f" instead of {before:g}" if isinstance(before, int | float) else ""
    return f"{path}={shown}{instead}"
