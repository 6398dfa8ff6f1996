"""What a contender of `undergrowth bench engines` reads and prints.

It reads a folder with samples, cohorts and initial weights. On standard output it prints the mark `ready` before the
first round, `warm` before the first round that counts, and `done` after the last. After each mark it waits for a line
on standard input, while the benchmark reads its CPU time. At the end it prints how much work it did and writes its
weights to a file.

This file imports nothing of undergrowth: contenders in other Python environments import it as the module `protocol`.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable
from functools import cached_property
from pathlib import Path
from time import monotonic
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

FACTS, WEIGHTS, LAST = "facts.json", "weights.npz", "last.npz"


class ContestFolder:
    """The workload in a folder. Samples are memory-mapped, so processes share them."""

    def __init__(self, folder: str | Path) -> None:
        self.path = Path(folder)
        facts = json.loads((self.path / FACTS).read_text())
        self.model: str = facts["model"]
        self.classes: int = facts["classes"]
        self.shape: tuple[int, ...] = tuple(facts["shape"])
        self.vocabulary: int = facts["vocabulary"]
        self.batch: int = facts["batch"]
        self.lr: float = facts["lr"]
        self.starts: list[int] = facts["starts"]  # device d has the samples starts[d] to starts[d + 1]
        self.cohorts: list[list[int]] = facts["cohorts"]  # the devices of every round
        self.warm: int = facts["warm"]  # number of warm-up rounds

    @cached_property
    def arrays(self) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
        x, y = (np.load(self.path / file, mmap_mode="c") for file in ("x.npy", "y.npy"))
        return x, y

    @property
    def devices(self) -> int:
        return len(self.starts) - 1

    def size(self, device: int) -> int:
        return self.starts[device + 1] - self.starts[device]

    def samples(self, device: int) -> tuple[Tensor, Tensor]:
        x, y = (torch.from_numpy(array[self.starts[device] : self.starts[device + 1]]) for array in self.arrays)
        return x, y

    @property
    def work(self) -> dict[str, int]:
        """Clients and samples of all rounds."""
        asked = [device for cohort in self.cohorts for device in cohort]
        return {"clients": len(asked), "samples": sum(self.size(device) for device in asked)}

    def weights(self) -> list[np.ndarray[Any, Any]]:
        with np.load(self.path / WEIGHTS) as arrays:
            return [arrays[name] for name in arrays.files]

    def network(self) -> nn.Module:
        """The model with its initial weights, as one would write it in plain PyTorch."""
        if self.model == "logistic":
            module: nn.Module = nn.Sequential(nn.Flatten(), nn.Linear(784, self.classes))
        elif self.model == "cnn":
            module = nn.Sequential(
                nn.Conv2d(1, 32, 5, padding=2), nn.ReLU(), nn.MaxPool2d(2),
                nn.Conv2d(32, 64, 5, padding=2), nn.ReLU(), nn.MaxPool2d(2),
                nn.Flatten(), nn.Linear(64 * 7 * 7, 512), nn.ReLU(), nn.Linear(512, self.classes),
            )  # fmt: skip
        else:  # only contenders whose Python has undergrowth get other models
            from undergrowth.models import builder

            module = builder(self.model, self.shape, self.classes)()
        load_weights(module, self.weights())
        return module


def load_weights(module: nn.Module, arrays: Iterable[np.ndarray[Any, Any]]) -> None:
    names = module.state_dict().keys()
    module.load_state_dict({name: torch.from_numpy(array) for name, array in zip(names, arrays, strict=True)})


_continued_at = 0.0  # when the last mark was answered


def report_mark(mark: str) -> None:
    """Prints a mark and waits until the benchmark has read the CPU time."""
    global _continued_at
    if torch.cuda.is_initialized():
        torch.cuda.synchronize()
    print(json.dumps({"mark": mark, "since": _continued_at, "now": monotonic()}), flush=True)
    sys.stdin.readline()
    _continued_at = monotonic()


def report_round(number: int, contest: ContestFolder) -> None:
    """Prints the mark that belongs to the end of this round, if there is one. Rounds are counted from 1."""
    if number == contest.warm:
        report_mark("warm")
    if number == len(contest.cohorts):
        report_mark("done")


def report_result(
    contest: ContestFolder, framework: str, clients: int, samples: int, weights: Iterable[np.ndarray[Any, Any]]
) -> None:
    np.savez(contest.path / LAST, *weights)
    print(json.dumps({"framework": framework, "clients": clients, "samples": samples}), flush=True)
