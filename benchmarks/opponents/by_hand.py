"""The loop by hand, in plain PyTorch: in one process, or in long-lived worker processes with one message a round.

    python -m opponents.by_hand FOLDER PROCESSES DEVICE        (0: no worker processes)

With worker processes, the devices of a round are assigned largest first, each to the worker with the fewest samples
(push placement). A worker returns the weighted sum of its clients' models.
"""

from __future__ import annotations

import sys
from multiprocessing import get_context
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from protocol import ContestFolder, report_mark, report_result, report_round

Weights = dict[str, Tensor]


def train(
    contest: ContestFolder, module: nn.Module, weights: Weights, cohort: list[int], number: int, torch_device: str
) -> Weights:
    """The sum of the cohort's weights after training, each times its samples."""
    total: Weights = {}
    for client in cohort:
        x, y = (part.to(torch_device) for part in contest.samples(client))
        module.load_state_dict(weights)
        optimiser = torch.optim.SGD(module.parameters(), lr=contest.lr)
        order = torch.randperm(len(x), generator=torch.Generator().manual_seed(1000 * client + number)).to(torch_device)
        for index in order.split(contest.batch):
            optimiser.zero_grad()
            F.cross_entropy(module(x[index]), y[index]).backward()
            optimiser.step()
        for name, value in module.state_dict().items():
            total[name] = total[name] + len(x) * value if name in total else len(x) * value
    return total


def worker(contest: ContestFolder, torch_device: str, line: Any) -> None:
    torch.set_num_threads(1)
    module = contest.network().to(torch_device).train()
    while True:
        arrays, cohort, number = line.recv()
        weights = {name: torch.as_tensor(array) for name, array in arrays.items()}
        total = train(contest, module, weights, cohort, number, torch_device)
        line.send({name: value.cpu().numpy() for name, value in total.items()})


class PushLoop:
    def __init__(self, contest: ContestFolder, processes: int, torch_device: str) -> None:
        self.contest = contest
        context = get_context("fork")
        self.lines = []
        for _ in range(processes):
            line, theirs = context.Pipe()
            context.Process(target=worker, args=(contest, torch_device, theirs), daemon=True).start()
            self.lines.append(line)

    def round(self, weights: Weights, cohort: list[int], number: int) -> Weights:
        shares: list[list[int]] = [[] for _ in self.lines]
        loads = [0] * len(shares)
        for client in sorted(cohort, key=self.contest.size, reverse=True):
            least = loads.index(min(loads))
            shares[least].append(client)
            loads[least] += self.contest.size(client)
        arrays = {name: value.numpy() for name, value in weights.items()}
        for line, share in zip(self.lines, shares, strict=True):
            line.send((arrays, share, number))
        total: dict[str, np.ndarray] = {}
        for line in self.lines:
            for name, value in line.recv().items():
                total[name] = total[name] + value if name in total else value
        return {name: torch.as_tensor(value) for name, value in total.items()}


def main(folder: str, processes: str, torch_device: str) -> None:
    torch.set_num_threads(1)
    contest = ContestFolder(folder)
    module = contest.network().to(torch_device).train()
    weights = {name: value.clone() for name, value in module.state_dict().items()}
    loop = PushLoop(contest, int(processes), torch_device)
    report_mark("ready")
    for number, cohort in enumerate(contest.cohorts):
        if loop.lines:
            total = loop.round(weights, cohort, number)
        else:
            total = train(contest, module, weights, cohort, number, torch_device)
        samples = sum(contest.size(client) for client in cohort)
        weights = {name: (value / samples).to(weights[name].dtype) for name, value in total.items()}
        report_round(number + 1, contest)
    title = f"push loop by hand, {processes} processes" if loop.lines else "plain PyTorch loop"
    report_result(contest, title, **contest.work, weights=(value.cpu().numpy() for value in weights.values()))


if __name__ == "__main__":
    main(*sys.argv[1:])
