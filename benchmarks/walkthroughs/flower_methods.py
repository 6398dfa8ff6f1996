"""Five methods on MNIST by writer over three seeds with Flower: curves in one figure, and one LaTeX table.

python flower_methods.py FOLDER [ROUNDS [SEEDS]]
"""

import gzip
import json
import random
import statistics
import sys
from functools import cache
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np
import torch
import torch.nn.functional as F
from flwr.app import ArrayRecord, ConfigRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedAdam, FedAvg, FedAvgM, FedProx, FedYogi, Strategy
from flwr.simulation import run_simulation
from torch import Tensor, nn

client = ClientApp()


def read(file: Path, header: int) -> Tensor:
    return torch.from_numpy(np.frombuffer(gzip.decompress(file.read_bytes()), np.uint8, offset=header).copy())


@cache
def load(folder: str, part: str) -> tuple[Tensor, Tensor]:
    images = read(Path(folder, f"{part}-images-idx3-ubyte.gz"), 16).reshape(-1, 784) / 255
    return (images - 0.1307) / 0.3081, read(Path(folder, f"{part}-labels-idx1-ubyte.gz"), 8).long()


@cache
def load_writers(folder: str) -> list[Tensor]:
    writers = np.load(Path(folder, "train-writers.npy"))
    return [torch.from_numpy(np.flatnonzero(writers == writer)) for writer in np.unique(writers)]


def build_model() -> nn.Module:
    return nn.Sequential(nn.Linear(784, 200), nn.ReLU(), nn.Linear(200, 10))


@client.train()
def train(message: Message, context: Context) -> Message:
    config = message.content["config"]
    torch.set_num_threads(1)
    partition = int(context.node_config["partition-id"])
    torch.manual_seed(1_000_000 * config["seed"] + 1_000 * config["server-round"] + partition)
    x, y = load(config["folder"], "train")
    samples = load_writers(config["folder"])[partition]
    model = build_model()
    model.load_state_dict(message.content["arrays"].to_torch_state_dict())
    received = [value.detach().clone() for value in model.parameters()]
    optimiser = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(2):
        for batch in samples[torch.randperm(len(samples))].split(32):
            optimiser.zero_grad()
            loss = F.cross_entropy(model(x[batch]), y[batch])
            distances = ((a - b).square().sum() for a, b in zip(model.parameters(), received, strict=True))
            loss = loss + config.get("proximal-mu", 0.0) / 2 * sum(distances)
            loss.backward()
            optimiser.step()
    metrics = MetricRecord({"num-examples": len(samples)})
    return Message(RecordDict({"arrays": ArrayRecord(model.state_dict()), "metrics": metrics}), reply_to=message)


def build_strategies(devices: int) -> dict[str, Strategy]:
    asked = {"fraction_train": 0.02, "fraction_evaluate": 0.0, "min_available_nodes": devices}
    return {
        "FedAvg": FedAvg(**asked),
        "FedProx": FedProx(**asked, proximal_mu=0.1),
        "FedAvgM": FedAvgM(**asked, server_learning_rate=1.0, server_momentum=0.9),
        "FedAdam": FedAdam(**asked, eta=0.01),
        "FedYogi": FedYogi(**asked, eta=0.01),
    }


def run(folder: str, name: str, seed: int, rounds: int) -> list[float]:
    """The accuracy on the test set after every round."""
    devices = len(load_writers(folder))
    accuracies = []

    def evaluate(server_round: int, arrays: ArrayRecord) -> MetricRecord:
        model, (x, y) = build_model(), load(folder, "t10k")
        model.load_state_dict(arrays.to_torch_state_dict())
        with torch.no_grad():
            accuracies.append(float((model(x).argmax(1) == y).float().mean()))
        return MetricRecord({"accuracy": accuracies[-1]})

    server = ServerApp()

    @server.main()
    def serve(grid: Grid, context: Context) -> None:
        random.seed(seed)
        torch.manual_seed(seed)
        build_strategies(devices)[name].start(
            grid,
            ArrayRecord(build_model().state_dict()),
            num_rounds=rounds,
            train_config=ConfigRecord({"folder": folder, "seed": seed}),
            evaluate_fn=evaluate,
        )

    run_simulation(server_app=server, client_app=client, num_supernodes=devices)
    return accuracies[1:]


def draw(curves: dict[str, list[list[float]]], file: str) -> None:
    figure, axes = plt.subplots()
    for name, runs in curves.items():
        mean, deviation = np.mean(runs, 0), np.std(runs, 0, ddof=1) if len(runs) > 1 else 0.0
        rounds = np.arange(1, len(mean) + 1)
        axes.plot(rounds, mean, label=name)
        axes.fill_between(rounds, mean - deviation, mean + deviation, alpha=0.2)
    axes.set(xlabel="round", ylabel="accuracy")
    axes.legend()
    figure.savefig(file)


def write_table(curves: dict[str, list[list[float]]], file: str) -> None:
    lines = [r"\begin{tabular}{lrr}", r"\toprule", r" & Runs & Accuracy (\%) \\", r"\midrule"]
    for name, runs in curves.items():
        last = [100 * each[-1] for each in runs]
        deviation = rf" \pm {statistics.stdev(last):.2f}" if len(last) > 1 else ""
        lines.append(rf"{name} & {len(last)} & ${statistics.fmean(last):.2f}{deviation}$ \\")
    Path(file).write_text("\n".join([*lines, r"\bottomrule", r"\end{tabular}", ""]))


def main(folder: str, rounds: str = "30", seeds: str = "3") -> None:
    curves: dict[str, list[list[float]]] = {}
    for name in build_strategies(2):
        for seed in range(int(seeds)):
            file = Path(f"{name}-{seed}.json")  # a finished run is not repeated
            if not file.exists():
                file.write_text(json.dumps(run(str(Path(folder).resolve()), name, seed, int(rounds))))
            curves.setdefault(name, []).append(json.loads(file.read_text()))
    draw(curves, "curves.png")
    write_table(curves, "table.tex")


if __name__ == "__main__":
    import flower_methods  # Ray finds functions of a module by their names, and cannot copy cached ones of a script

    flower_methods.main(*sys.argv[1:])
