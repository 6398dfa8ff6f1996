"""Flower's simulation engine, as its examples use it: messages, FedAvg of `flwr.serverapp`, one actor of Ray a core.

    python -m opponents.flower FOLDER

The strategy tells every node which device it is in this round, so the same clients train in the same rounds as
everybody else's. Nothing is evaluated.
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

from .given import Given, finish, say, say_after

CORES = len(os.sched_getaffinity(0))
BACKEND = {"init_args": {"num_cpus": CORES}, "client_resources": {"num_cpus": 1, "num_gpus": 0.0}}

client = ClientApp()


@cache
def opened(folder: str) -> tuple[Given, nn.Module]:
    """Once in every process of Ray."""
    torch.set_num_threads(1)
    given = Given(folder)
    return given, given.network().train()


def trained(given: Given, module: nn.Module, device: int) -> int:
    """Trains the module; returns on how many samples."""
    x, y = given.samples(device)
    optimiser = torch.optim.SGD(module.parameters(), lr=given.lr)
    for index in torch.randperm(len(x)).split(given.batch):
        optimiser.zero_grad()
        F.cross_entropy(module(x[index]), y[index]).backward()
        optimiser.step()
    return len(x)


@client.train()
def train(message: Message, context: Context) -> Message:
    config = message.content["config"]
    given, module = opened(config["folder"])
    module.load_state_dict(message.content["arrays"].to_torch_state_dict())
    samples = trained(given, module, config["device"])
    metrics = MetricRecord({"num-examples": samples})
    return Message(RecordDict({"arrays": ArrayRecord(module.state_dict()), "metrics": metrics}), reply_to=message)


class SameClients(FedAvg):
    """FedAvg that tells nodes which device they are, and the one who measures where we are."""

    def __init__(self, given: Given) -> None:
        cohort = len(given.cohorts[0])
        super().__init__(
            fraction_train=cohort / given.devices,
            min_train_nodes=cohort,
            min_available_nodes=given.devices,
            fraction_evaluate=0.0,
        )
        self.given = given
        self.clients = self.samples = 0
        self.last: ArrayRecord | None = None

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        asked = super().configure_train(server_round, arrays, config, grid)
        cohort = self.given.cohorts[server_round - 1]
        if server_round == 1:
            say("ready")
        for message, device in zip(asked, cohort, strict=True):
            told = ConfigRecord({"folder": str(self.given.folder), "device": device})
            message.content = RecordDict({"arrays": arrays, "config": told})
        return asked

    def aggregate_train(
        self, server_round: int, replies: Iterable[Message]
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        replies = list(replies)
        done = [reply.content["metrics"]["num-examples"] for reply in replies if reply.has_content()]
        self.clients += len(done)
        self.samples += sum(done)
        self.last, metrics = super().aggregate_train(server_round, replies)
        say_after(server_round, self.given)
        return self.last, metrics


def main(folder: str) -> None:
    given = Given(folder)
    strategy = SameClients(given)
    server = ServerApp()

    @server.main()
    def serve(grid: Grid, context: Context) -> None:
        strategy.start(grid, ArrayRecord(given.network().state_dict()), num_rounds=len(given.cohorts))

    run_simulation(server_app=server, client_app=client, num_supernodes=given.devices, backend_config=BACKEND)
    assert strategy.last is not None
    title = f"Flower {version('flwr')}, {CORES} actors"
    weights = (value.numpy() for value in strategy.last.to_torch_state_dict().values())
    finish(given, title, strategy.clients, strategy.samples, weights)


if __name__ == "__main__":
    from opponents import flower  # Ray sends what is in a module by name, and what is in the main program as a copy

    flower.main(*sys.argv[1:])
