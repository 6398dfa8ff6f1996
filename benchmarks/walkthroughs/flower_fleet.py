"""A CSV file of 40 devices and an own model with Flower: one device per group of rows, FedAvg, accuracy of each device.

python flower_fleet.py FILE.csv LABEL GROUP [ROUNDS]
"""

import sys
from functools import cache

import numpy as np
import pandas as pd
import torch
import torch.nn.functional as F
from flwr.app import ArrayRecord, ConfigRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedAvg
from flwr.simulation import run_simulation
from sklearn.model_selection import train_test_split
from torch import Tensor, nn

Samples = tuple[Tensor, Tensor]
client = ClientApp()


class Net(nn.Module):
    def __init__(self, hidden: int = 256) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Linear(8, hidden), nn.ReLU(), nn.Linear(hidden, hidden), nn.ReLU())
        self.head = nn.Linear(hidden, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.body(x))


@cache
def load(file: str, label: str, group: str) -> tuple[list[Samples], list[Samples], Samples]:
    """The training and test samples of each device, and the central test set."""
    table = pd.read_csv(file)
    table[label] = table[label].astype("category").cat.codes
    train, test = train_test_split(table, test_size=0.2, stratify=table[label], random_state=0)
    features = [column for column in table if column not in (label, group)]
    mean, deviation = train[features].mean(), train[features].std()

    def convert(rows: pd.DataFrame) -> Samples:
        x = ((rows[features] - mean) / deviation).to_numpy("float32")
        return torch.from_numpy(x), torch.from_numpy(rows[label].to_numpy("int64"))

    parts = [train_test_split(rows, test_size=0.1, random_state=0) for _, rows in train.groupby(group)]
    return [convert(kept) for kept, _ in parts], [convert(held) for _, held in parts], convert(test)


def open_message(message: Message, context: Context) -> tuple[nn.Module, Samples, Samples]:
    """The received model, and the training and test samples of this device."""
    config = message.content["config"]
    torch.set_num_threads(1)
    model = Net()
    model.load_state_dict(message.content["arrays"].to_torch_state_dict())
    train, test, _ = load(config["file"], config["label"], config["group"])
    place = int(context.node_config["partition-id"])
    torch.manual_seed(1_000 * config["server-round"] + place)
    return model, train[place], test[place]


def score(model: nn.Module, x: Tensor, y: Tensor) -> float:
    with torch.no_grad():
        return float((model(x).argmax(1) == y).float().mean())


@client.train()
def train(message: Message, context: Context) -> Message:
    model, (x, y), _ = open_message(message, context)
    optimiser = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(2):
        for batch in torch.randperm(len(x)).split(32):
            optimiser.zero_grad()
            F.cross_entropy(model(x[batch]), y[batch]).backward()
            optimiser.step()
    metrics = MetricRecord({"num-examples": len(x)})
    return Message(RecordDict({"arrays": ArrayRecord(model.state_dict()), "metrics": metrics}), reply_to=message)


@client.evaluate()
def evaluate(message: Message, context: Context) -> Message:
    model, _, (x, y) = open_message(message, context)
    place = int(context.node_config["partition-id"])
    metrics = MetricRecord({"num-examples": len(x), "accuracy": score(model, x, y), "place": place})
    return Message(RecordDict({"metrics": metrics}), reply_to=message)


def print_devices(records: list[RecordDict], weighted_by: str) -> MetricRecord:
    """Prints a line per device; returns the mean accuracy."""
    rows = sorted((record["metrics"] for record in records), key=lambda row: row["place"])
    for row in rows:
        print(f"device {row['place']:.0f}: {row[weighted_by]:.0f} test samples, accuracy {row['accuracy']:.4f}")
    return MetricRecord({"accuracy": float(np.mean([row["accuracy"] for row in rows]))})


def main(file: str, label: str, group: str, rounds: str = "20") -> None:
    devices, _, (x, y) = load(file, label, group)
    server = ServerApp()

    def evaluate_centrally(server_round: int, arrays: ArrayRecord) -> MetricRecord:
        model = Net()
        model.load_state_dict(arrays.to_torch_state_dict())
        return MetricRecord({"accuracy": score(model, x, y)})

    @server.main()
    def serve(grid: Grid, context: Context) -> None:
        torch.manual_seed(0)
        strategy = FedAvg(min_available_nodes=len(devices), evaluate_metrics_aggr_fn=print_devices)
        config = {"file": file, "label": label, "group": group}
        result = strategy.start(
            grid,
            ArrayRecord(Net().state_dict()),
            num_rounds=int(rounds),
            train_config=ConfigRecord(config),
            evaluate_config=ConfigRecord(config),
            evaluate_fn=evaluate_centrally,
        )
        torch.save(result.arrays.to_torch_state_dict(), "model.pt")

    run_simulation(server_app=server, client_app=client, num_supernodes=len(devices))


if __name__ == "__main__":
    import flower_fleet  # Ray finds functions of a module by their names, and cannot copy cached ones of a script

    flower_fleet.main(*sys.argv[1:])
