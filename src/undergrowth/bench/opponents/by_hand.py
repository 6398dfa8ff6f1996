"""The loop by hand, in plain PyTorch: one process, or long-lived forked ones with one message each a round.

    python -m opponents.by_hand FOLDER PROCESSES DEVICE        (0 processes: all in this one)

With processes, every round's devices are dealt out largest first, each to whoever has least to do (push placement);
workers add up what they have trained, and one sum for each comes back.
"""

from __future__ import annotations

import sys
from multiprocessing import get_context
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from .given import Given, finish, say, say_after

Weights = dict[str, Tensor]


def train(given: Given, module: nn.Module, weights: Weights, cohort: list[int], number: int, device: str) -> Weights:
    """The sum of the cohort's weights after training, each times its samples."""
    total: Weights = {}
    for client in cohort:
        x, y = (part.to(device) for part in given.samples(client))
        module.load_state_dict(weights)
        optimiser = torch.optim.SGD(module.parameters(), lr=given.lr)
        order = torch.randperm(len(x), generator=torch.Generator().manual_seed(1000 * client + number)).to(device)
        for index in order.split(given.batch):
            optimiser.zero_grad()
            F.cross_entropy(module(x[index]), y[index]).backward()
            optimiser.step()
        for name, value in module.state_dict().items():
            total[name] = total[name] + len(x) * value if name in total else len(x) * value
    return total


def worker(given: Given, device: str, line: Any) -> None:
    torch.set_num_threads(1)
    module = given.network().to(device).train()
    while True:
        arrays, cohort, number = line.recv()
        weights = {name: torch.from_numpy(array) for name, array in arrays.items()}
        total = train(given, module, weights, cohort, number, device)
        line.send({name: value.cpu().numpy() for name, value in total.items()})


class PushLoop:
    def __init__(self, given: Given, processes: int, device: str) -> None:
        self.given = given
        context = get_context("fork")
        self.lines = []
        for _ in range(processes):
            line, theirs = context.Pipe()
            context.Process(target=worker, args=(given, device, theirs), daemon=True).start()
            self.lines.append(line)

    def round(self, weights: Weights, cohort: list[int], number: int) -> Weights:
        shares: list[list[int]] = [[] for _ in self.lines]
        loads = [0] * len(shares)
        for client in sorted(cohort, key=self.given.size, reverse=True):
            least = loads.index(min(loads))
            shares[least].append(client)
            loads[least] += self.given.size(client)
        arrays = {name: value.numpy() for name, value in weights.items()}
        for line, share in zip(self.lines, shares):
            line.send((arrays, share, number))
        total: dict[str, np.ndarray] = {}
        for line in self.lines:
            for name, value in line.recv().items():
                total[name] = total[name] + value if name in total else value
        return {name: torch.from_numpy(value) for name, value in total.items()}


def main(folder: str, processes: str, device: str) -> None:
    torch.set_num_threads(1)
    given = Given(folder)
    module = given.network().to(device).train()
    weights = {name: value.clone() for name, value in module.state_dict().items()}
    loop = PushLoop(given, int(processes), device)
    say("ready")
    for number, cohort in enumerate(given.cohorts):
        if loop.lines:
            total = loop.round(weights, cohort, number)
        else:
            total = train(given, module, weights, cohort, number, device)
        samples = sum(given.size(client) for client in cohort)
        weights = {name: (value / samples).to(weights[name].dtype) for name, value in total.items()}
        say_after(number + 1, given)
    title = f"push loop by hand, {processes} processes" if loop.lines else "plain PyTorch loop"
    finish(given, title, **given.work, weights=(value.cpu().numpy() for value in weights.values()))


if __name__ == "__main__":
    main(*sys.argv[1:])
