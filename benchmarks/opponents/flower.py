"""Flower's simulation engine, as its examples use it: messages, FedAvg of `flwr.serverapp`, one Ray actor per core.

    python -m opponents.flower FOLDER

The strategy assigns a device to every node in every round, so the same clients train in the same rounds as with the
other contenders. Nothing is evaluated.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable
from functools import cache
from importlib.metadata import version

import torch
import torch.nn.functional as F
from flwr.app import ArrayRecord, ConfigRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedAvg
from flwr.simulation import run_simulation
from torch import nn

from protocol import ContestFolder, report_mark, report_result, report_round

CORES = len(os.sched_getaffinity(0))
BACKEND = {"init_args": {"num_cpus": CORES}, "client_resources": {"num_cpus": 1, "num_gpus": 0.0}}

client = ClientApp()


@cache
def open_contest(folder: str) -> tuple[ContestFolder, nn.Module]:
    """The workload and the model, once in every process of Ray."""
    torch.set_num_threads(1)
    contest = ContestFolder(folder)
    return contest, contest.network().train()


def train_on(contest: ContestFolder, module: nn.Module, device: int) -> int:
    """Trains the module and returns the number of samples."""
    x, y = contest.samples(device)
    optimiser = torch.optim.SGD(module.parameters(), lr=contest.lr)
    for index in torch.randperm(len(x)).split(contest.batch):
        optimiser.zero_grad()
        F.cross_entropy(module(x[index]), y[index]).backward()
        optimiser.step()
    return len(x)


@client.train()
def train(message: Message, context: Context) -> Message:
    config = message.content["config"]
    contest, module = open_contest(config["folder"])
    module.load_state_dict(message.content["arrays"].to_torch_state_dict())
    samples = train_on(contest, module, config["device"])
    metrics = MetricRecord({"num-examples": samples})
    return Message(RecordDict({"arrays": ArrayRecord(module.state_dict()), "metrics": metrics}), reply_to=message)


class SameClients(FedAvg):
    """FedAvg that assigns devices to nodes and prints the marks of the protocol."""

    def __init__(self, contest: ContestFolder) -> None:
        cohort = len(contest.cohorts[0])
        super().__init__(
            fraction_train=cohort / contest.devices,
            min_train_nodes=cohort,
            min_available_nodes=contest.devices,
            fraction_evaluate=0.0,
        )
        self.contest = contest
        self.clients = self.samples = 0
        self.last: ArrayRecord | None = None

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        asked = super().configure_train(server_round, arrays, config, grid)
        cohort = self.contest.cohorts[server_round - 1]
        if server_round == 1:
            report_mark("ready")
        for message, device in zip(asked, cohort, strict=True):
            assigned = ConfigRecord({"folder": str(self.contest.path), "device": device})
            message.content = RecordDict({"arrays": arrays, "config": assigned})
        return asked

    def aggregate_train(
        self, server_round: int, replies: Iterable[Message]
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        replies = list(replies)
        done = [reply.content["metrics"]["num-examples"] for reply in replies if reply.has_content()]
        self.clients += len(done)
        self.samples += sum(done)
        self.last, metrics = super().aggregate_train(server_round, replies)
        report_round(server_round, self.contest)
        return self.last, metrics


def main(folder: str) -> None:
    contest = ContestFolder(folder)
    strategy = SameClients(contest)
    server = ServerApp()

    @server.main()
    def serve(grid: Grid, context: Context) -> None:
        strategy.start(grid, ArrayRecord(contest.network().state_dict()), num_rounds=len(contest.cohorts))

    run_simulation(server_app=server, client_app=client, num_supernodes=contest.devices, backend_config=BACKEND)
    assert strategy.last is not None
    title = f"Flower {version('flwr')}, {CORES} actors"
    weights = (value.numpy() for value in strategy.last.to_torch_state_dict().values())
    report_result(contest, title, strategy.clients, strategy.samples, weights)


if __name__ == "__main__":
    from opponents import flower  # Ray sends functions of a module by name, and those of the main program as copies

    flower.main(*sys.argv[1:])
