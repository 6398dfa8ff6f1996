"""Flower's simulation engine with the interface that it had before 1.21: a NumPyClient and a strategy of `flwr.server`.

    python -m opponents.flower_numpy FOLDER

Flower keeps it for existing programs. It needs less CPU time per client than the interface that replaced it
(`flower.py`), so both are measured. Everything else is the same.
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

from protocol import ContestFolder, load_weights, report_mark, report_result, report_round

from .flower import BACKEND, CORES, open_contest, train_on


class Device(NumPyClient):
    def fit(self, parameters: list[np.ndarray], config: dict[str, Any]) -> tuple[list[np.ndarray], int, dict[str, Any]]:
        contest, module = open_contest(config["folder"])
        load_weights(module, parameters)
        samples = train_on(contest, module, config["device"])
        return [value.numpy() for value in module.state_dict().values()], samples, {}


class SameClients(FedAvg):
    """FedAvg that assigns devices to nodes and prints the marks of the protocol."""

    def __init__(self, contest: ContestFolder) -> None:
        cohort = len(contest.cohorts[0])
        arrays = [value.numpy() for value in contest.network().state_dict().values()]
        super().__init__(
            fraction_fit=cohort / contest.devices,
            min_fit_clients=cohort,
            min_available_clients=contest.devices,
            fraction_evaluate=0.0,
            initial_parameters=ndarrays_to_parameters(arrays),
        )
        self.contest = contest
        self.clients = self.samples = 0
        self.last: Parameters | None = None

    def configure_fit(
        self, server_round: int, parameters: Parameters, client_manager: ClientManager
    ) -> list[tuple[Any, FitIns]]:
        asked = super().configure_fit(server_round, parameters, client_manager)
        cohort = self.contest.cohorts[server_round - 1]
        if server_round == 1:
            report_mark("ready")
        return [
            (node, FitIns(ins.parameters, {"folder": str(self.contest.path), "device": device}))
            for (node, ins), device in zip(asked, cohort, strict=True)
        ]

    def aggregate_fit(self, server_round: int, results: Any, failures: Any) -> tuple[Parameters | None, dict[str, Any]]:
        self.clients += len(results)
        self.samples += sum(result.num_examples for _, result in results)
        self.last, metrics = super().aggregate_fit(server_round, results, failures)
        report_round(server_round, self.contest)
        return self.last, metrics


def client(context: Context) -> Client:
    return Device().to_client()


def main(folder: str) -> None:
    contest = ContestFolder(folder)
    strategy = SameClients(contest)

    def server(context: Context) -> ServerAppComponents:
        return ServerAppComponents(strategy=strategy, config=ServerConfig(num_rounds=len(contest.cohorts)))

    run_simulation(
        server_app=ServerApp(server_fn=server),
        client_app=ClientApp(client_fn=client),
        num_supernodes=contest.devices,
        backend_config=BACKEND,
    )
    assert strategy.last is not None
    title = f"Flower {version('flwr')}, {CORES} actors, NumPyClient"
    report_result(contest, title, strategy.clients, strategy.samples, parameters_to_ndarrays(strategy.last))


if __name__ == "__main__":
    from opponents import flower_numpy  # not the main program, whose functions Ray would copy

    flower_numpy.main(*sys.argv[1:])
