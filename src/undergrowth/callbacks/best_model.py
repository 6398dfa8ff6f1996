"""Keeps the weights of the best round of a run."""

from __future__ import annotations

from dataclasses import dataclass
from math import inf
from pathlib import Path

import safetensors
import safetensors.torch

from undergrowth.callbacks.metric import chosen_metric, improvement_of
from undergrowth.runs.atomic_files import replace_file
from undergrowth.runs.callback import Callback, OngoingRun, Row

BEST_FILE = "best.safetensors"


@dataclass
class BestModel(Callback):
    """Writes the weights of the round with the best `metric` to `best.safetensors` in the run's folder.

    Of equal rounds the first counts. The file is replaced atomically; its metadata has the round and the figure. A
    resumed run goes on from the file. Rounds in which the run did not have this callback are not considered.
    """

    metric: str | None = None  # a figure of the history; None: the main metric of the run's task

    def __post_init__(self) -> None:
        self._best = -inf

    def on_start(self, run: OngoingRun) -> None:
        self._best = -inf
        kept = _metadata(run.folder / BEST_FILE)
        rows = {str(row["round"]): row for row in run.history}
        # A file of a later round than the checkpoint is written again when that round is repeated.
        metric = chosen_metric(self.metric, run)
        if kept.get("metric") == metric.name and kept.get("round") in rows:
            self._best = improvement_of(self, metric, rows[kept["round"]])

    def on_round(self, row: Row, run: OngoingRun) -> None:
        if not run.is_evaluated(row):
            return
        metric = chosen_metric(self.metric, run)
        figure = improvement_of(self, metric, row)
        if figure > self._best:
            weights = {name: value.detach().cpu().contiguous() for name, value in run.weights.items()}
            facts = {"round": str(row["round"]), "metric": metric.name, "value": repr(row[metric.name])}
            replace_file(run.folder / BEST_FILE, safetensors.torch.save(weights, facts))
            self._best = figure


def _metadata(path: Path) -> dict[str, str]:
    """What the file says about itself; nothing if there is no file that can be read."""
    try:
        with safetensors.safe_open(path, framework="pt") as file:
            return dict(file.metadata() or {})
    except (OSError, safetensors.SafetensorError):
        return {}
