"""The result of a run, read from the store."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, fields
from math import nan
from os import PathLike
from pathlib import Path
from typing import Any

import safetensors.torch
from torch import Tensor, nn

from undergrowth.core import InputError, Metric, NextToken, suggest
from undergrowth.engines import restore_torch_settings
from undergrowth.exchange import COLUMNS, Entry, Totals
from undergrowth.learning.adapters import Adapters, add_adapters
from undergrowth.models import builder
from undergrowth.runs.own_objects import OwnModelBuilder, is_reference
from undergrowth.runs.relative_accuracy import PersonalAccuracy, from_rows
from undergrowth.runs.start_phase import FOLDER, StartCosts, step_name
from undergrowth.runs.store import MODEL_FILE, Store
from undergrowth.runs.stored_experiment import stored_experiment
from undergrowth.runs.stream_scores import StreamScores, stream_scores

NOT_SUMMARISED = ("compute_seconds", "shape", "classes", "tree")
_TABLES = ("history", "clients", "ledger")


@dataclass(kw_only=True)
class LedgerView(Totals):
    """The total costs of a run; `rows()` reads its entries from the store.

    `start`: the costs of the phase before the first round, which the other figures do not contain; None without one.
    `personal`: those of the phase after the last round, by model; empty without one.
    """

    start: StartCosts | None
    personal: Mapping[str, Totals]
    _folder: str
    _run: str

    def rows(self) -> Iterator[Entry]:
        """The entries of the ledger, by round: one for every ask over a link."""
        with Store(self._folder) as store:
            yield from store.links(self._run)


@dataclass(frozen=True)
class Result:
    """What a finished run produced: scores, history, costs and the model.

    `accuracy`, `loss` and `metrics` are those of the final model on the central test set. `history` has a row for every
    round, `clients` one for every device. `ledger` has the total costs; its `rows()` are the single asks. `model` is a
    plain nn.Module. `start`, `personal` and `stream` belong to the sections of these names, `tree` to methods whose
    servers keep models.
    """

    run: str  # id
    method: str
    data: str
    accuracy: float  # NaN if the task has none; see `metrics`
    loss: float
    history: list[dict[str, Any]]
    clients: list[dict[str, Any]]
    ledger: LedgerView
    summary: dict[str, Any]  # what `undergrowth run --json` prints
    notes: list[str]
    folder: Path  # of this run
    tree: dict[str, Any] = field(default_factory=dict)  # accuracies of the nodes and by distance, see `score_tree`
    metrics: dict[str, float] = field(default_factory=dict)  # on the central test set, the main one first
    build: Callable[[], nn.Module] | None = None  # makes the module that the weights belong to, without adapters
    adapters: Adapters | None = None  # that the run added to the module

    @property
    def start(self) -> dict[str, Result]:
        """The results of the steps before the first round, by name: "pretraining", a method, "warm rounds"."""
        folder = self.folder / FOLDER
        if not folder.exists():
            return {}
        with Store(folder) as store:
            rows = store.runs()
            # A named model may have another head there.
            builds = [self.build if row["experiment"]["objects"].get("model") else None for row in rows]
            return {step_name(row): result_of(store, row["id"], build) for row, build in zip(rows, builds, strict=True)}

    @property
    def personal(self) -> PersonalAccuracy | None:
        """Accuracies of local-only, federated and adapted models on every device; None if they were not evaluated."""
        with Store(self.folder.parent) as store:
            return personal_accuracy(store, self.run)

    @property
    def stream(self) -> StreamScores | None:
        """The scores of the devices over time, and recoveries after shifts; None if their samples do not change."""
        with Store(self.folder.parent) as store:
            row = store.run(self.run)
            return stream_scores(store, self.run, row, main_metric(row))

    @property
    def model(self) -> nn.Module:
        """The final model, a plain module in evaluation mode."""
        if self.build is None:
            raise InputError(f"run '{self.run}' used a model object; pass it again: ug.load(run, model=...)")
        path = self.folder / MODEL_FILE
        if not path.exists():
            raise InputError(f"run '{self.run}' has no model any more: '{path}' is gone; resuming it writes it again")
        with restore_torch_settings():
            module = self.build() if self.adapters is None else add_adapters(self.build(), self.adapters)
            self._load(module, safetensors.torch.load_file(path))
        return module.eval()

    def _load(self, module: nn.Module, weights: Mapping[str, Tensor]) -> None:
        wanted = module.state_dict(keep_vars=True)
        # Of two names for one tied weight, the file has the first.
        tied = {id(wanted[name]) for name in weights if name in wanted}
        missing = [name for name, value in wanted.items() if name not in weights and id(value) not in tied]
        other = [*missing, *(name for name in weights if name not in wanted)]
        other += [name for name, value in weights.items() if name in wanted and wanted[name].shape != value.shape]
        if other:
            raise InputError(
                f"model: the stored weights of run '{self.run}' do not fit it, such as '{other[0]}'; pass the model "
                f"that the run was given"
            )
        module.load_state_dict(weights, strict=False)

    def to_pandas(self, of: str = "history") -> Any:
        """A pandas DataFrame `of` the history (one row per round), the clients (per device) or the ledger (per ask)."""
        if of not in _TABLES:
            raise InputError(f"of '{of}' is not a table of a result; {suggest(of, _TABLES)}")
        try:
            import pandas
        except ImportError as error:
            raise InputError("to_pandas needs pandas: pip install pandas") from error
        if of == "ledger":
            return pandas.DataFrame(list(self.ledger.rows()), columns=list(COLUMNS))
        return pandas.DataFrame(getattr(self, of))

    def __repr__(self) -> str:
        name, value = next(iter(self.metrics.items()))
        return f"Result({self.run}: {self.method} on {self.data}, {name} {value:.4f})"


def load(run: str = "last", out: str | PathLike[str] = "runs", model: Callable[[], nn.Module] | None = None) -> Result:
    """The result of a finished run, by its id, the beginning of its id, or `last`.

    `model`: the model object of the run, if it was given one.
    """
    with Store(out) as store:
        name = store.find(run)
        row = store.run(name)
        if row["status"] != "done":
            raise InputError(f"run '{name}' is {row['status']}; `{store.resume_command(name)}` finishes it")
        return result_of(store, name, model)


def result_of(store: Store, run: str, build: Callable[[], nn.Module] | None = None) -> Result:
    """The result of a finished run in an open store. `build`: the model object of the run, if it was given one."""
    row = store.run(run)
    summary = row["summary"]
    if build is None and row["experiment"]["objects"].get("model") is None:
        build = _named_model(row)
    totals = {each.name: summary.get(each.name, each.default) for each in fields(Totals)}
    phase = StartCosts(**summary["start"]) if "start" in summary else None
    after = {step: Totals(**costs) for step, costs in summary.get("personal", {}).items()}
    return Result(
        run=run,
        method=row["method"],
        data=row["data"],
        accuracy=nan if summary["accuracy"] is None else summary["accuracy"],
        loss=summary["loss"],
        history=store.rounds(run),
        clients=store.devices(run),
        ledger=LedgerView(**totals, start=phase, personal=after, _folder=str(store.folder), _run=run),
        summary={name: value for name, value in summary.items() if name not in NOT_SUMMARISED},
        tree=summary.get("tree", {}),
        notes=row["notes"],
        folder=store.folder / run,
        metrics=_main_first(summary.get("metrics", {"accuracy": summary["accuracy"]}), main_metric(row)),
        build=build,
        adapters=stored_experiment(row).model.adapters,
    )


def personal_accuracy(store: Store, run: str) -> PersonalAccuracy | None:
    """The accuracies of several models on every device of a run; None if it did not evaluate them."""
    rows = store.personal(run)
    return from_rows(rows, {each["device"]: each["tier"] for each in store.devices(run)}) if rows else None


def main_metric(row: Mapping[str, Any]) -> Metric:
    """The metric that decides about the run in a row of the store. Runs of older versions have the accuracy."""
    return Metric(*row["experiment"].get("task", {}).get("main", ("accuracy", True)))


def _main_first(metrics: Mapping[str, float], main: Metric) -> dict[str, float]:
    return {main.name: metrics[main.name], **metrics}


def _named_model(row: Mapping[str, Any]) -> Callable[[], nn.Module]:
    section = stored_experiment(row).model
    if is_reference(section.name):
        return OwnModelBuilder(section.name, section.options)  # imported when the model is asked for
    # The final weights replace those of a file that the run started from, which may not exist any more.
    options = {name: value for name, value in section.options.items() if name not in ("weights", "skip_head")}
    kept = row["experiment"]
    per_position = kept.get("task", {}).get("name") == NextToken.name
    return builder(section.name, tuple(kept["shape"]), kept["classes"], per_position=per_position, **options)
