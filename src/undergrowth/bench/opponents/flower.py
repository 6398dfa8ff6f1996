"""Flower's simulation engine, as its examples use it: a NumPyClient, FedAvg, an actor of Ray for each core.

    python -m opponents.flower FOLDER

The strategy tells every node which device it is in this round, so the same clients train in the same rounds as
everybody else's. Nothing is evaluated. (Flower's newer message API, `flwr.serverapp`, was tried: it computes half as
much again for each client.)
"""

from __future__ import annotations

import os
import sys
from functools import cache
from importlib.metadata import version
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from flwr.client import Client, ClientApp, NumPyClient
from flwr.common import Context, FitIns, Parameters, ndarrays_to_parameters, parameters_to_ndarrays
from flwr.server import ClientManager, ServerApp, ServerAppComponents, ServerConfig
from flwr.server.strategy import FedAvg
from flwr.simulation import run_simulation
from torch import nn

from .given import Given, finish, load, say, say_after


@cache
def opened(folder: str) -> tuple[Given, nn.Module]:
    """Once in every process of Ray."""
    torch.set_num_threads(1)
    given = Given(folder)
    return given, given.network().train()


class Device(NumPyClient):
    def fit(self, parameters: list[np.ndarray], config: dict[str, Any]) -> tuple[list[np.ndarray], int, dict[str, Any]]:
        given, module = opened(config["folder"])
        load(module, parameters)
        x, y = given.samples(config["device"])
        optimiser = torch.optim.SGD(module.parameters(), lr=given.lr)
        for index in torch.randperm(len(x)).split(given.batch):
            optimiser.zero_grad()
            F.cross_entropy(module(x[index]), y[index]).backward()
            optimiser.step()
        return [value.numpy() for value in module.state_dict().values()], len(x), {}


class SameClients(FedAvg):
    """FedAvg that tells nodes which device they are, and the one who measures where we are."""

    def __init__(self, given: Given) -> None:
        cohort = len(given.cohorts[0])
        arrays = [value.numpy() for value in given.network().state_dict().values()]
        super().__init__(
            fraction_fit=cohort / given.devices,
            min_fit_clients=cohort,
            min_available_clients=given.devices,
            fraction_evaluate=0.0,
            initial_parameters=ndarrays_to_parameters(arrays),
        )
        self.given = given
        self.clients = self.samples = 0
        self.last: Parameters | None = None

    def configure_fit(
        self, server_round: int, parameters: Parameters, client_manager: ClientManager
    ) -> list[tuple[Any, FitIns]]:
        asked = super().configure_fit(server_round, parameters, client_manager)
        cohort = self.given.cohorts[server_round - 1]
        if server_round == 1:
            say("ready")
        return [
            (node, FitIns(ins.parameters, {"folder": str(self.given.folder), "device": device}))
            for (node, ins), device in zip(asked, cohort, strict=True)
        ]

    def aggregate_fit(self, server_round: int, results: Any, failures: Any) -> tuple[Parameters | None, dict[str, Any]]:
        self.clients += len(results)
        self.samples += sum(result.num_examples for _, result in results)
        self.last, metrics = super().aggregate_fit(server_round, results, failures)
        say_after(server_round, self.given)
        return self.last, metrics


def client(context: Context) -> Client:
    return Device().to_client()


def main(folder: str) -> None:
    given = Given(folder)
    strategy = SameClients(given)

    def server(context: Context) -> ServerAppComponents:
        return ServerAppComponents(strategy=strategy, config=ServerConfig(num_rounds=len(given.cohorts)))

    cores = len(os.sched_getaffinity(0))
    run_simulation(
        server_app=ServerApp(server_fn=server),
        client_app=ClientApp(client_fn=client),
        num_supernodes=given.devices,
        backend_config={"init_args": {"num_cpus": cores}, "client_resources": {"num_cpus": 1, "num_gpus": 0.0}},
    )
    assert strategy.last is not None
    title = f"Flower {version('flwr')}, {cores} actors"
    finish(given, title, strategy.clients, strategy.samples, parameters_to_ndarrays(strategy.last))


if __name__ == "__main__":
    from opponents import flower  # Ray sends what is in a module by name, and what is in the main program as a copy

    flower.main(*sys.argv[1:])
