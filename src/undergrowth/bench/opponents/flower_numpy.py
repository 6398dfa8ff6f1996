"""Flower's simulation engine with the interface that it had before 1.21: a NumPyClient and a strategy of `flwr.server`.

    python -m opponents.flower_numpy FOLDER

Flower keeps it for programs that are there already. It computes less for each client than the one that took its place
(`flower.py`), so it is measured beside that. All else is the same.
"""

from __future__ import annotations

import sys
from importlib.metadata import version
from typing import Any

import numpy as np
from flwr.client import Client, ClientApp, NumPyClient
from flwr.common import Context, FitIns, Parameters, ndarrays_to_parameters, parameters_to_ndarrays
from flwr.server import ClientManager, ServerApp, ServerAppComponents, ServerConfig
from flwr.server.strategy import FedAvg
from flwr.simulation import run_simulation

from .flower import BACKEND, CORES, opened, trained
from .given import Given, finish, load, say, say_after


class Device(NumPyClient):
    def fit(self, parameters: list[np.ndarray], config: dict[str, Any]) -> tuple[list[np.ndarray], int, dict[str, Any]]:
        given, module = opened(config["folder"])
        load(module, parameters)
        samples = trained(given, module, config["device"])
        return [value.numpy() for value in module.state_dict().values()], samples, {}


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

    run_simulation(
        server_app=ServerApp(server_fn=server),
        client_app=ClientApp(client_fn=client),
        num_supernodes=given.devices,
        backend_config=BACKEND,
    )
    assert strategy.last is not None
    title = f"Flower {version('flwr')}, {CORES} actors, NumPyClient"
    finish(given, title, strategy.clients, strategy.samples, parameters_to_ndarrays(strategy.last))


if __name__ == "__main__":
    from opponents import flower_numpy  # not the main program, of which Ray would send a copy

    flower_numpy.main(*sys.argv[1:])
