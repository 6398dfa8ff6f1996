"""Everything that reports and tables show about a run, read from the store."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from undergrowth.core import InputError, Metric
from undergrowth.report.device_activity import DeviceActivity, load_activity
from undergrowth.runs import Store
from undergrowth.runs.relative_accuracy import PersonalAccuracy
from undergrowth.runs.result import main_metric, personal_accuracy
from undergrowth.runs.start_phase import StartCosts, start_costs
from undergrowth.runs.stream_scores import StreamScores, stream_scores

_WITHOUT_EFFECT = {"run.out", "run.threads", "run.checkpoint_every"}  # settings that do not change the result
_MAX_LABEL_PARTS = 4


@dataclass(frozen=True)
class RunRecord:
    """A run, finished or not."""

    run: str
    row: Mapping[str, Any]
    rounds: list[dict[str, Any]]
    devices: list[dict[str, Any]]  # empty until the run is finished
    resume_command: str
    compute_seconds: float | None = None  # of all devices; only set for an unfinished run, which has no summary
    late_seconds: float = 0.0  # compute seconds of devices whose answers came too late
    start: StartCosts | None = None  # costs of the phase before the first round, so far
    activity: DeviceActivity = field(default_factory=DeviceActivity)  # empty unless loaded with `activity=True`
    personal: PersonalAccuracy | None = None  # of local-only, federated and adapted models, if the run evaluated them
    stream: StreamScores | None = None  # scores of the devices over time, if their samples change
    variant: str = ""  # name of its variant, on a page or in a table about a sweep
    device_answers: Mapping[int, Mapping[str, int]] | None = None  # by round; None: all devices answer to the root

    @property
    def done(self) -> bool:
        return bool(self.row["status"] == "done")

    @property
    def settings(self) -> dict[str, Any]:
        """All settings by their paths, such as train.lr."""
        return flatten(self.row["experiment"]["settings"])

    @property
    def objects(self) -> dict[str, str]:
        """The parts that were given as Python objects, with the names of the objects."""
        return {part: name for part, name in self.row["experiment"]["objects"].items() if name}

    @property
    def named_settings(self) -> dict[str, Any]:
        """`settings`, with the name of an object in place of the name that it replaced, such as that of a model."""
        parts = {f"{part}.name": str(self.row[part]) for part in self.objects if part in self.row}
        functions = {f"task.{part}": name for part, name in self.objects.items() if part not in self.row}
        return {**self.settings, **parts, **functions}

    @property
    def totals(self) -> dict[str, Any]:
        """Metrics, loss and costs at the end of the run, or after its last round so far."""
        totals = dict(self.row["summary"] or (self.rounds[-1] if self.rounds else {}))
        totals |= totals.get("metrics", {})
        if totals:
            seconds = totals.setdefault("compute_seconds", self.compute_seconds)
            totals["learning_efficiency"] = learning_efficiency(self.rounds, seconds)
        if self.start is not None:
            totals["start"] = asdict(self.start)
        return totals

    @property
    def task(self) -> str:
        """The task of the run, such as classification."""
        return str(self.row["experiment"].get("task", {}).get("name", "classification"))

    @property
    def metric(self) -> Metric:
        """The main metric of the run's task."""
        return main_metric(self.row)

    def answers(self, row: Mapping[str, Any]) -> Mapping[str, int]:
        """How many requests to devices had each outcome in the round of `row`, also below other servers."""
        return row if self.device_answers is None else self.device_answers.get(row["round"], {})

    def best(self, metric: Metric) -> float | None:
        """The best value of `metric` in any round; None if no round has it."""
        return _best(self.rounds, metric)

    def first_round_with(self, target: float, metric: Metric) -> dict[str, Any] | None:
        """The first round in which `metric` was as good as `target`."""
        known = [(row, finite(row.get(metric.name))) for row in self.rounds]
        return next((row for row, value in known if value is not None and metric.reaches(value, target)), None)


def load_records(
    store: Store, names: Sequence[str], activity: bool = False, variants: Mapping[str, str] | None = None
) -> list[RunRecord]:
    """The runs with these names, without duplicates; with `activity`, also what each device did.

    `variants`: names of the variants of a sweep by the ids of their runs.
    """
    records = []
    for run in dict.fromkeys(store.find(name) for name in names):
        row = store.run(run)
        seconds = None
        if not row["summary"]:
            seconds = sum(costs["compute_seconds"] for costs in store.costs_by_device(run).values())
        record = RunRecord(
            run, row, store.rounds(run), store.devices(run), store.resume_command(run),
            compute_seconds=seconds,
            late_seconds=store.late_seconds(run),
            start=start_costs(store.folder / run),
            activity=load_activity(store, run) if activity else DeviceActivity(),
            personal=personal_accuracy(store, run),
            stream=stream_scores(store, run, row, main_metric(row)),
            variant=(variants or {}).get(run, ""),
            device_answers=store.answers_by_round(run) if len(store.servers(run)) > 1 else None,
        )  # fmt: skip
        records.append(record)
    return records


def _best(rounds: Sequence[Mapping[str, Any]], metric: Metric) -> float | None:
    values = [finite(row.get(metric.name)) for row in rounds]
    return max((value for value in values if value is not None), key=metric.improvement, default=None)


def learning_efficiency(rounds: Sequence[Mapping[str, Any]], compute_seconds: float | None) -> float | None:
    """The best accuracy divided by the computing time of all devices together."""
    best = _best(rounds, Metric("accuracy"))
    return None if best is None or not compute_seconds else best / compute_seconds


def flatten(raw: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """A nested dictionary as a flat one with dotted paths as keys."""
    flat: dict[str, Any] = {}
    for key, value in raw.items():
        flat.update(flatten(value, f"{prefix}{key}.") if isinstance(value, Mapping) else {f"{prefix}{key}": value})
    return flat


def differences(records: Sequence[RunRecord]) -> dict[str, list[Any]]:
    """The settings in which runs differ, with one value per run; None if a run does not have the setting."""
    settings = [record.named_settings for record in records]
    paths = dict.fromkeys(path for each in settings for path in each if path not in _WITHOUT_EFFECT)
    sections = list(dict.fromkeys(path.partition(".")[0] for path in paths))  # options of later runs come with theirs
    ordered = sorted(paths, key=lambda path: sections.index(path.partition(".")[0]))
    values = {path: [each.get(path) for each in settings] for path in ordered}
    return {path: row for path, row in values.items() if any(value != row[0] for value in row)}


def shared_metric(records: Sequence[RunRecord]) -> Metric:
    """The main metric of the runs, or the loss if their tasks have different ones."""
    metrics = {record.metric for record in records}
    return metrics.pop() if len(metrics) == 1 else Metric("loss", higher=False)


def common_value(records: Sequence[RunRecord], metric: Metric) -> float | None:
    """The best value of `metric` that every run reached."""
    best = [record.best(metric) for record in records]
    known = [value for value in best if value is not None]
    return min(known, key=metric.improvement) if known and len(known) == len(best) else None


def check_accuracy_target(accuracy: float | None, metric: Metric) -> None:
    """Refuses an accuracy as the value to reach if the runs are compared by another metric."""
    if accuracy is not None and metric.name != "accuracy":
        raise InputError(f"accuracy {accuracy:g}: these runs are compared by {metric.name}; write metric instead")


def check_metric_target(metric: float | None) -> None:
    """Refuses a value to reach that no run can reach."""
    if metric is not None and not (isinstance(metric, int | float) and math.isfinite(metric)):
        raise InputError(f"metric {metric!r} must be a finite number")


def short_labels(records: Sequence[RunRecord]) -> list[str]:
    """A short label per run: its method and the settings in which the runs differ, or its variant and seed."""
    if len(records) == 1:
        return [records[0].run]
    if all(record.variant for record in records):
        variants = [record.variant for record in records]
        return [
            f"{record.variant}, seed {record.row['seed']}" if variants.count(record.variant) > 1 else record.variant
            for record in records
        ]
    return distinct_labels(records, list(differences(records)))


def distinct_labels(records: Sequence[RunRecord], paths: Sequence[str], with_method: bool = True) -> list[str]:
    """One label per run, of its method and its values of the settings `paths`.

    If the first few parts do not tell all runs apart, a label has the settings that do, and leaves out the others.
    """
    methods, settings = [str(record.row["method"]) for record in records], [each.named_settings for each in records]

    def write(chosen: Sequence[str], max_parts: int | None = None) -> list[str]:
        named = with_method or "method.name" in chosen
        return [_label(*each, chosen, named, max_parts) for each in zip(methods, settings, strict=True)]

    labels = write(paths, _MAX_LABEL_PARTS)
    if len(set(labels)) < len(labels):
        telling: list[str] = []
        for path in paths:
            if len(set(write([*telling, path]))) > len(set(write(telling))):
                telling.append(path)
        labels = write(telling)
    # Equal labels get the last letters of the run id, which are random.
    return [
        f"{label} ({record.run[-4:]})" if labels.count(label) > 1 else label
        for label, record in zip(labels, records, strict=True)
    ]


def _label(
    method: str, settings: Mapping[str, Any], paths: Sequence[str], with_method: bool, max_parts: int | None
) -> str:
    parts = [method] if with_method else []
    for path in paths:
        value = settings.get(path)
        if path != "method.name" and value is not None:
            section, _, key = path.rpartition(".")
            parts.append(f"{section if key == 'name' else key} {value}")
    return ", ".join(parts[:max_parts]) or method


def finite(value: Any) -> float | None:
    """`value` as a float, or None if it is not a finite number."""
    return float(value) if isinstance(value, int | float) and math.isfinite(value) else None
