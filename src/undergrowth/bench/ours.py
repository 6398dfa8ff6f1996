"""Our side of `undergrowth bench engines`, as a process of its own: a whole run, with clock, ledger and store.

    python -m undergrowth.bench.ours FOLDER ENGINE [SETTING=VALUE …]

The settings are those of the section `run`; with the word `nudged` the first weights are changed in their last digits,
which tells how far those carry. Like the others it neither evaluates nor writes checkpoints in the rounds that count.
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

from undergrowth.bench.opponents.given import Given, finish, say, say_after
from undergrowth.bench.workload import Writers, save_weights
from undergrowth.core import Model, Shard
from undergrowth.runs.config import assign_text
from undergrowth.runs.run import Execution, start

FIRST = "first.npz"  # the weights after the first round
NUDGED = "nudged"


@dataclass(frozen=True)
class Population:
    """The devices in a folder."""

    given: Given
    name: str = "writers"

    @cached_property
    def _writers(self) -> Writers:
        return Writers(self.given.devices, self.given.classes, self.given.shape)

    @property
    def devices(self) -> tuple[str, ...]:
        return self._writers.devices

    @property
    def classes(self) -> int:
        return self.given.classes

    @property
    def shape(self) -> tuple[int, ...]:
        return self.given.shape

    def size(self, device: str) -> int:
        return self.given.size(int(device[7:]))

    def train(self, device: str) -> Shard:
        return Shard(*self.given.samples(int(device[7:])))

    def test(self, device: str) -> Shard:
        return self._writers.test(device)

    def central_test(self) -> Shard:
        return self._writers.central_test()


def _nudge(model: Model) -> None:
    """Moves the last digit of every first weight, up or down at random: moved alike, all maxima would stay in place."""
    initial = model.initial

    def nudged(seed: int) -> dict[str, Tensor]:
        generator = torch.Generator().manual_seed(0)
        weights = initial(seed)
        for name, value in weights.items():
            if value.is_floating_point():
                signs = torch.randint(0, 2, value.shape, generator=generator) * 2 - 1
                weights[name] = value * (1 + signs.to(value.device) * 2**-22)
        return weights

    model.initial = nudged  # type: ignore[method-assign]


class Enough(Exception):
    """The rounds that count are done."""


def main(folder: str, engine: str, *settings: str) -> None:
    given = Given(folder)
    rounds = len(given.cohorts)
    title = " ".join(["undergrowth", engine, *(word for word in settings if not word.startswith("device="))])
    done: dict[str, int] = {}
    weights: list[np.ndarray] = []

    def on_start(execution: Execution) -> None:
        nonlocal title
        section = execution.experiment.run
        if NUDGED in settings:
            _nudge(execution.federation.task.model)
        if engine == "auto":
            title += f" → {section.engine}{' stack=true' if section.stack else ''}"
        say("ready")

    def on_round(row: Mapping[str, Any], execution: Execution) -> None:
        model = execution.federation.driver.root.state["model"]
        if row["round"] == 1:
            save_weights(given.folder / FIRST, model)
        say_after(row["round"], given)
        if row["round"] == rounds:
            arrived = {name: costs["rounds"] for name, costs in execution.store.costs_by_device(execution.run).items()}
            done["clients"] = sum(arrived.values())
            done["samples"] = sum(execution.federation.population.size(name) * n for name, n in arrived.items())
            weights.extend(value.detach().cpu().numpy() for value in model.values())
            raise Enough

    # One round more than are done, and it is the one that would be evaluated and written down.
    tree: dict[str, Any] = {
        "model": given.model,
        "train": {
            "rounds": rounds + 1,
            "sample": len(given.cohorts[0]) / given.devices,
            "batch": given.batch,
            "lr": given.lr,
        },
        "run": {"engine": engine, "evaluate_every": rounds + 1, "checkpoint_every": rounds + 1},
    }
    for setting in settings:
        if setting == NUDGED:
            continue
        assign_text(tree, f"run.{setting}")
    with TemporaryDirectory() as out, suppress(Enough):
        tree["run"]["out"] = out
        start(tree, data=Population(given), on_start=on_start, on_round=on_round)
    finish(given, title, **done, weights=weights)


if __name__ == "__main__":
    main(*sys.argv[1:])
