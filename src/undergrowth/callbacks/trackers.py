"""Trackers of experiments as callbacks: TensorBoard, MLflow, Weights & Biases.

Each needs its library, which is an extra of the package: `pip install 'undergrowth[tensorboard]'`. Every number of the
history becomes a curve over the rounds, and every setting of the experiment a parameter. A resumed run continues the
curves of the rounds before it was resumed.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from math import isfinite
from os import PathLike
from typing import Any

from undergrowth.core import InputError, suggest
from undergrowth.runs.callback import Callback, OngoingRun, Row
from undergrowth.runs.result import Result


@dataclass
class TensorBoard(Callback):
    """Writes event files, by default into `tensorboard` in the run's folder."""

    folder: str | PathLike[str] | None = None

    def __post_init__(self) -> None:
        _library("tensorboard", "tensorboard")
        self._library = _library("torch.utils.tensorboard", "tensorboard")

    def on_start(self, run: OngoingRun) -> None:
        folder = run.folder / "tensorboard" if self.folder is None else self.folder
        # Events of rounds that are repeated after a resume are hidden by the viewer.
        self._writer = self._library.SummaryWriter(str(folder), purge_step=len(run.history) + 1)
        if not run.history:
            lines = (f"    {name}: {value}" for name, value in settings_of(run).items())
            self._writer.add_text("settings", "\n".join(lines), 0)

    def on_round(self, row: Row, run: OngoingRun) -> None:
        for name, value in numbers(row).items():
            self._writer.add_scalar(name, value, row["round"])
        self._writer.flush()

    def on_end(self, result: Result) -> None:
        self._writer.close()


@dataclass
class MLflow(Callback):
    """Logs to the MLflow server or folder at `uri`, by default the one that MLflow is configured for."""

    experiment: str = "undergrowth"
    uri: str | None = None

    def __post_init__(self) -> None:
        self._library = _library("mlflow", "mlflow")

    def on_start(self, run: OngoingRun) -> None:
        self._client = self._library.MlflowClient(tracking_uri=self.uri)
        known = self._client.get_experiment_by_name(self.experiment)
        number = known.experiment_id if known else self._client.create_experiment(self.experiment)
        tag = "undergrowth.run"
        found = self._client.search_runs([number], f"tags.`{tag}` = '{run.run}'")
        if found:
            self._id = found[0].info.run_id
            self._client.update_run(self._id, status="RUNNING")
            return
        self._id = self._client.create_run(number, tags={tag: run.run}, run_name=run.run).info.run_id
        for name, value in settings_of(run).items():
            self._client.log_param(self._id, name, value)

    def on_round(self, row: Row, run: OngoingRun) -> None:
        for name, value in numbers(row).items():
            self._client.log_metric(self._id, name, value, step=row["round"])

    def on_end(self, result: Result) -> None:
        self._client.set_terminated(self._id)


@dataclass
class WeightsAndBiases(Callback):
    """Logs to Weights & Biases; `mode` is that of `wandb.init`: online, offline or disabled, by default $WANDB_MODE."""

    project: str = "undergrowth"
    mode: str | None = None

    def __post_init__(self) -> None:
        self._library = _library("wandb", "wandb")

    def on_start(self, run: OngoingRun) -> None:
        self._run = self._library.init(
            project=self.project, mode=self.mode, id=run.run, name=run.run, resume="allow", reinit="create_new",
            dir=str(run.folder), config=settings_of(run),
        )  # fmt: skip

    def on_round(self, row: Row, run: OngoingRun) -> None:
        self._run.log(numbers(row), step=row["round"])

    def on_end(self, result: Result) -> None:
        self._run.finish()


TRACKERS: Mapping[str, Callable[[], Callback]] = {
    "tensorboard": TensorBoard, "mlflow": MLflow, "wandb": WeightsAndBiases,
}  # fmt: skip


def build_trackers(names: Sequence[str]) -> list[Callback]:
    """The trackers that `undergrowth run --track NAME` names."""
    for name in names:
        if name not in TRACKERS:
            raise InputError(f"track '{name}' is not a tracker; {suggest(name, TRACKERS)}")
    return [TRACKERS[name]() for name in dict.fromkeys(names)]


def numbers(row: Row) -> dict[str, float]:
    """The finite numbers of a row of the history, without the number of the round."""
    kept = {name: value for name, value in row.items() if isinstance(value, int | float) and name != "round"}
    return {name: float(value) for name, value in kept.items() if isfinite(value)}


def settings_of(run: OngoingRun) -> dict[str, Any]:
    """The settings of the run by their paths, such as train.lr. Settings without a value are left out."""
    flat: dict[str, Any] = {}
    for section, value in run.experiment.model_dump(mode="json").items():
        inner = value if isinstance(value, dict) else {None: value}
        flat |= {f"{section}.{key}" if key else section: each for key, each in inner.items() if each is not None}
    return flat


def _library(name: str, extra: str) -> Any:
    try:
        return importlib.import_module(name)
    except ImportError as error:
        raise InputError(f"the tracker '{extra}' needs a library: pip install 'undergrowth[{extra}]'") from error
