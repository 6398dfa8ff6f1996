"""A contender of `undergrowth bench engines`: a whole run of undergrowth, with clock, ledger and store.

    python -m undergrowth.bench.ours FOLDER ENGINE [SETTING=VALUE …]

The settings belong to the section `run`. The word `nudged` changes the last digit of the initial weights, which shows
how far a rounding error spreads. Like the other contenders, it neither evaluates nor writes checkpoints in the rounds
that count.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import torch
from torch import Tensor

from undergrowth.bench.protocol import ContestFolder, report_mark, report_result, report_round
from undergrowth.bench.workload import SyntheticPopulation, save_weights
from undergrowth.core import Shard, Weights
from undergrowth.runs.execution import Execution, start
from undergrowth.runs.experiment_file import assign_text

FIRST = "first.npz"  # the weights after the first round
NUDGED = "nudged"


@dataclass(frozen=True)
class FolderPopulation:
    """The devices in a contest's folder."""

    folder: ContestFolder
    name: str = "synthetic"

    @cached_property
    def _synthetic(self) -> SyntheticPopulation:
        folder = self.folder
        return SyntheticPopulation(folder.devices, folder.classes, folder.shape, folder.vocabulary)

    @property
    def devices(self) -> tuple[str, ...]:
        return self._synthetic.devices

    @property
    def classes(self) -> int:
        return self.folder.classes

    @property
    def shape(self) -> tuple[int, ...]:
        return self.folder.shape

    def size(self, device: str) -> int:
        return self.folder.size(int(device[7:]))

    def train(self, device: str) -> Shard:
        return Shard(*self.folder.samples(int(device[7:])))

    def test(self, device: str) -> Shard:
        return self._synthetic.test(device)

    def central_test(self) -> Shard:
        return self._synthetic.central_test()


def nudge(weights: Weights) -> dict[str, Tensor]:
    """The weights with their last digits changed, up or down at random.

    With one direction for all, the largest value of every pooling window would stay the largest.
    """
    generator = torch.Generator().manual_seed(0)
    nudged = dict(weights)
    for name, value in weights.items():
        if value.is_floating_point():
            signs = torch.randint(0, 2, value.shape, generator=generator) * 2 - 1
            nudged[name] = value * (1 + signs.to(value.device) * 2**-22)
    return nudged


class RoundsDone(Exception):
    """The rounds that count are done."""


def main(folder: str, engine: str, *settings: str) -> None:
    contest = ContestFolder(folder)
    rounds = len(contest.cohorts)
    title = " ".join(["undergrowth", engine, *(word for word in settings if not word.startswith("device="))])
    done: dict[str, int] = {}
    weights: list[np.ndarray[Any, Any]] = []

    def on_start(execution: Execution) -> None:
        nonlocal title
        section, root = execution.experiment.run, execution.federation.driver.root
        if NUDGED in settings:
            root.adopt_state({**root.state, "model": nudge(root.state["model"])})
        if engine == "auto":
            title += f" → {section.engine}{' stack=true' if section.stack else ''}"
        report_mark("ready")

    def on_round(row: Mapping[str, Any], execution: Execution) -> None:
        model = execution.federation.driver.root.state["model"]
        if row["round"] == 1:
            save_weights(contest.path / FIRST, model)
        report_round(row["round"], contest)
        if row["round"] == rounds:
            costs = execution.store.costs_by_device(execution.run)
            size = execution.federation.population.size
            done["clients"] = sum(each["rounds"] for each in costs.values())
            done["samples"] = sum(size(device) * each["rounds"] for device, each in costs.items())
            weights.extend(value.detach().cpu().numpy() for value in model.values())
            raise RoundsDone

    # The run has one round more than is done: that round would be evaluated and written to a checkpoint.
    raw: dict[str, Any] = {
        "model": contest.model,
        "train": {
            "rounds": rounds + 1,
            "sample": len(contest.cohorts[0]) / contest.devices,
            "batch": contest.batch,
            "lr": contest.lr,
        },
        "run": {"engine": engine, "evaluate_every": rounds + 1, "checkpoint_every": rounds + 1},
    }
    for setting in settings:
        if setting != NUDGED:
            assign_text(raw, f"run.{setting}")
    with TemporaryDirectory() as out, suppress(RoundsDone):
        raw["run"]["out"] = out
        start(raw, data=FolderPopulation(contest), on_start=on_start, on_round=on_round)
    report_result(contest, title, **done, weights=weights)


if __name__ == "__main__":
    main(*sys.argv[1:])
