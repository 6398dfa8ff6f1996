"""What every contender is given, a folder with samples, cohorts and first weights, and how it tells where it is.

The one who measures reads standard output: `ready` before the first round, `warm` before the first round that counts,
`done` after the last. At each of these the contender waits for a line, while its CPU time is looked up. At the end it
says what it has done, and its weights are in a file.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable
from functools import cached_property
from pathlib import Path
from time import monotonic

import numpy as np
import torch
from torch import Tensor, nn

FACTS, WEIGHTS, LAST = "facts.json", "weights.npz", "last.npz"


class Given:
    """The workload in a folder. Samples are read from the disk when they are asked for; processes share them."""

    def __init__(self, folder: str | Path) -> None:
        self.folder = Path(folder)
        facts = json.loads((self.folder / FACTS).read_text())
        self.model: str = facts["model"]
        self.classes: int = facts["classes"]
        self.shape: tuple[int, ...] = tuple(facts["shape"])
        self.batch: int = facts["batch"]
        self.lr: float = facts["lr"]
        self.starts: list[int] = facts["starts"]  # device d has samples starts[d] to starts[d + 1]
        self.cohorts: list[list[int]] = facts["cohorts"]  # the devices of every round
        self.warm: int = facts["warm"]  # how many of these rounds warm up

    @cached_property
    def arrays(self) -> tuple[np.ndarray, np.ndarray]:
        x, y = (np.load(self.folder / file, mmap_mode="c") for file in ("x.npy", "y.npy"))
        return x, y

    @property
    def devices(self) -> int:
        return len(self.starts) - 1

    def size(self, device: int) -> int:
        return self.starts[device + 1] - self.starts[device]

    def samples(self, device: int) -> tuple[Tensor, Tensor]:
        x, y = (torch.from_numpy(all_of[self.starts[device] : self.starts[device + 1]]) for all_of in self.arrays)
        return x, y

    @property
    def work(self) -> dict[str, int]:
        """Clients and samples of all rounds."""
        asked = [device for cohort in self.cohorts for device in cohort]
        return {"clients": len(asked), "samples": sum(self.size(device) for device in asked)}

    def weights(self) -> list[np.ndarray]:
        with np.load(self.folder / WEIGHTS) as arrays:
            return [arrays[name] for name in arrays.files]

    def network(self) -> nn.Module:
        """The model with its first weights, as one would write it in plain PyTorch."""
        if self.model == "logistic":
            module: nn.Module = nn.Sequential(nn.Flatten(), nn.Linear(784, self.classes))
        elif self.model == "cnn":
            module = nn.Sequential(
                nn.Conv2d(1, 32, 5, padding=2), nn.ReLU(), nn.MaxPool2d(2),
                nn.Conv2d(32, 64, 5, padding=2), nn.ReLU(), nn.MaxPool2d(2),
                nn.Flatten(), nn.Linear(64 * 7 * 7, 512), nn.ReLU(), nn.Linear(512, self.classes),
            )  # fmt: skip
        else:  # only who has undergrowth beside it is asked for others
            from undergrowth.models import builder

            module = builder(self.model, self.shape, self.classes)()
        load(module, self.weights())
        return module


def load(module: nn.Module, arrays: Iterable[np.ndarray]) -> None:
    names = module.state_dict().keys()
    module.load_state_dict({name: torch.from_numpy(array) for name, array in zip(names, arrays, strict=True)})


_went_on = 0.0  # when the last mark was answered


def say(mark: str) -> None:
    global _went_on
    if torch.cuda.is_initialized():
        torch.cuda.synchronize()
    print(json.dumps({"mark": mark, "since": _went_on, "now": monotonic()}), flush=True)
    sys.stdin.readline()
    _went_on = monotonic()


def say_after(number: int, given: Given) -> None:
    """The marks that go with the end of a round, counted from 1."""
    if number == given.warm:
        say("warm")
    if number == len(given.cohorts):
        say("done")


def finish(given: Given, framework: str, clients: int, samples: int, weights: Iterable[np.ndarray]) -> None:
    np.savez(given.folder / LAST, *weights)
    print(json.dumps({"framework": framework, "clients": clients, "samples": samples}), flush=True)
