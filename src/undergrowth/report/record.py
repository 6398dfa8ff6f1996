"""What a report knows of a run: its row, rounds, devices and exchanges, read from the store in one go."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from undergrowth.report.traffic import Traffic, traffic
from undergrowth.runs import Store
from undergrowth.runs.config import Experiment

_UNINTERESTING = {"run.out", "run.threads", "run.checkpoint_every"}  # change nothing about what comes out


@dataclass(frozen=True)
class Record:
    """A run, finished or not."""

    run: str
    row: Mapping[str, Any]
    rounds: list[dict[str, Any]]
    devices: list[dict[str, Any]]  # empty until the run is finished
    resume_command: str
    compute_seconds: float | None = None  # of all devices; of an unfinished run, whose summary has none yet
    traffic: Traffic = field(default_factory=Traffic)  # empty where it was not asked for

    @property
    def done(self) -> bool:
        return bool(self.row["status"] == "done")

    @property
    def settings(self) -> dict[str, Any]:
        """Every setting by its path, such as train.lr."""
        return flat(self.row["experiment"]["settings"])

    @property
    def objects(self) -> dict[str, str]:
        """The parts that were given as Python objects, with the names of these."""
        return {part: name for part, name in self.row["experiment"]["objects"].items() if name}

    @property
    def totals(self) -> dict[str, Any]:
        """Accuracy, loss and costs: final ones, or where an unfinished run stands."""
        found = dict(self.row["summary"] or (self.rounds[-1] if self.rounds else {}))
        if found:
            spent = found.setdefault("compute_seconds", self.compute_seconds)
            found["learning_efficiency"] = learning_efficiency(self.rounds, spent)
        return found

    @property
    def best_accuracy(self) -> float | None:
        return best_accuracy(self.rounds)

    def reached(self, accuracy: float) -> dict[str, Any] | None:
        """The first round with that accuracy."""
        return next((row for row in self.rounds if (finite(row["accuracy"]) or -1.0) >= accuracy), None)


def read(store: Store, names: Sequence[str], exchanges: bool = False) -> list[Record]:
    """The runs that a user named, each once; with `exchanges`, also who worked when."""
    records = []
    for run in dict.fromkeys(store.find(name) for name in names):
        row = store.run(run)
        spent = None
        if not row["summary"]:
            spent = sum(costs["compute_seconds"] for costs in store.costs_by_device(run).values())
        found = traffic(store, run) if exchanges else Traffic()
        command = store.resume_command(run)
        records.append(Record(run, row, store.rounds(run), store.devices(run), command, spent, found))
    return records


def best_accuracy(rounds: Sequence[Mapping[str, Any]]) -> float | None:
    accuracies = [finite(row["accuracy"]) for row in rounds]
    return max((accuracy for accuracy in accuracies if accuracy is not None), default=None)


def learning_efficiency(rounds: Sequence[Mapping[str, Any]], compute_seconds: float | None) -> float | None:
    """The best accuracy for every second that devices computed, all of them together."""
    best = best_accuracy(rounds)
    return None if best is None or not compute_seconds else best / compute_seconds


def flat(tree: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """A nested dictionary as one of paths."""
    found: dict[str, Any] = {}
    for key, value in tree.items():
        found.update(flat(value, f"{prefix}{key}.") if isinstance(value, Mapping) else {prefix + key: value})
    return found


def differences(records: Sequence[Record]) -> dict[str, list[Any]]:
    """The settings in which runs differ, with the value of each run; None where it has no such setting."""
    settings = [record.settings for record in records]
    paths = dict.fromkeys(path for each in settings for path in each if path not in _UNINTERESTING)
    values = {path: [each.get(path) for each in settings] for path in paths}
    return {path: row for path, row in values.items() if any(value != row[0] for value in row)}


def common_accuracy(records: Sequence[Record]) -> float | None:
    """The best accuracy that every one of the runs reached at some time."""
    bests = [record.best_accuracy for record in records]
    known = [best for best in bests if best is not None]
    return min(known) if known and len(known) == len(bests) else None


def labels(records: Sequence[Record]) -> list[str]:
    """A short name for each run, by what sets it apart from the others."""
    if len(records) == 1:
        return [records[0].run]
    apart, defaults = differences(records), flat(Experiment().model_dump(mode="json"))
    names = []
    for place, record in enumerate(records):
        parts = [str(record.row["method"])]
        for path, values in apart.items():
            usual = values[place] is None or values[place] == defaults.get(path)
            if path != "method.name" and not usual and len(parts) < 4:
                parts.append(f"{path.rpartition('.')[2] if path != 'data.name' else 'data'} {values[place]}")
        names.append(", ".join(parts))
    # The last letters of an id are drawn at random.
    return [f"{name} ({record.run[-4:]})" if names.count(name) > 1 else name for name, record in zip(names, records)]


def finite(value: Any) -> float | None:
    """A number, or None for what cannot be drawn."""
    return float(value) if isinstance(value, int | float) and math.isfinite(value) else None
