"""What a report knows of a run: its row, rounds and devices, read from the store in one go."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

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
        return dict(self.row["summary"] or (self.rounds[-1] if self.rounds else {}))

    @property
    def best_accuracy(self) -> float | None:
        accuracies = [finite(row["accuracy"]) for row in self.rounds]
        return max((accuracy for accuracy in accuracies if accuracy is not None), default=None)

    def reached(self, accuracy: float) -> dict[str, Any] | None:
        """The first round with that accuracy."""
        return next((row for row in self.rounds if (finite(row["accuracy"]) or -1.0) >= accuracy), None)


def read(store: Store, names: Sequence[str]) -> list[Record]:
    """The runs that a user named, each once."""
    runs = list(dict.fromkeys(store.find(name) for name in names))
    return [
        Record(run, store.run(run), store.rounds(run), store.devices(run), store.resume_command(run)) for run in runs
    ]


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
