"""SCAFFOLD with Flower on scikit-learn's digits, two classes a device. Flower has no SCAFFOLD.

python flower_scaffold.py [ROUNDS [DEVICES]]
"""

import sys
from collections.abc import Iterable
from functools import cache
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from flwr.app import ArrayRecord, ConfigRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedAvg
from flwr.simulation import run_simulation
from sklearn.datasets import load_digits
from torch import Tensor, nn

LR = 0.1
client = ClientApp()
Named = dict[str, Tensor]


@cache
def load(devices: int) -> tuple[list[tuple[Tensor, Tensor]], Tensor, Tensor]:
    """The samples of each device, and the test set."""
    x, y = load_digits(return_X_y=True)
    images, labels = torch.from_numpy(x / 16).float(), torch.from_numpy(y)
    order = np.argsort(y[:1437], kind="stable")  # neighbours have the same class
    places = [torch.from_numpy(part) for part in np.array_split(order, devices)]
    return [(images[place], labels[place]) for place in places], images[1437:], labels[1437:]


def build_model() -> nn.Module:
    return nn.Linear(64, 10)


@client.train()
def train(message: Message, context: Context) -> Message:
    config = message.content["config"]
    place = int(context.node_config["partition-id"])
    torch.set_num_threads(1)
    torch.manual_seed(1_000 * config["server-round"] + place)
    (x, y), received = load(config["devices"])[0][place], message.content["arrays"].to_torch_state_dict()
    control = message.content["control"].to_torch_state_dict()
    own = {name: torch.zeros_like(value) for name, value in control.items()}
    if "control" in context.state:
        own = context.state["control"].to_torch_state_dict()
    model = build_model()
    model.load_state_dict(received)
    optimiser, steps = torch.optim.SGD(model.parameters(), lr=LR), 0
    for batch in torch.randperm(len(x)).split(32):
        optimiser.zero_grad()
        F.cross_entropy(model(x[batch]), y[batch]).backward()
        for name, value in model.named_parameters():
            assert value.grad is not None
            value.grad += control[name] - own[name]
        optimiser.step()
        steps += 1
    trained = {name: value.detach() for name, value in model.state_dict().items()}
    after = {name: own[name] - control[name] + (received[name] - trained[name]) / (steps * LR) for name in own}
    context.state["control"] = ArrayRecord(after)
    change = {name: after[name] - own[name] for name in own}
    content = {"arrays": ArrayRecord(trained), "control": ArrayRecord(change)}
    return Message(RecordDict({**content, "metrics": MetricRecord({"num-examples": len(x)})}), reply_to=message)


class Scaffold(FedAvg):
    """Sends the control variate with the model, and averages the changes of both with equal weights."""

    def __init__(self, devices: int, control: Named, **options: Any) -> None:
        super().__init__(**options)
        self.devices, self.control = devices, control

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        for message in super().configure_train(server_round, arrays, config, grid):
            message.content["control"] = ArrayRecord(self.control)
            yield message

    def aggregate_train(
        self, server_round: int, replies: Iterable[Message]
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        contents = [reply.content for reply in replies if reply.has_content()]
        if not contents:
            return None, None
        change, fraction = _mean(contents, "control"), len(contents) / self.devices
        self.control = {name: value + fraction * change[name] for name, value in self.control.items()}
        return ArrayRecord(_mean(contents, "arrays")), None


def _mean(contents: list[RecordDict], key: str) -> Named:
    each = [content[key].to_torch_state_dict() for content in contents]
    return {name: torch.stack([tensors[name] for tensors in each]).mean(0) for name in each[0]}


def main(rounds: str = "10", devices: str = "10") -> None:
    number, server = int(devices), ServerApp()
    _, test_x, test_y = load(number)

    def evaluate(server_round: int, arrays: ArrayRecord) -> MetricRecord:
        model = build_model()
        model.load_state_dict(arrays.to_torch_state_dict())
        with torch.no_grad():
            return MetricRecord({"accuracy": float((model(test_x).argmax(1) == test_y).float().mean())})

    @server.main()
    def serve(grid: Grid, context: Context) -> None:
        torch.manual_seed(0)
        model = build_model()
        zeros = {name: torch.zeros_like(value) for name, value in model.state_dict().items()}
        strategy = Scaffold(number, zeros, fraction_evaluate=0.0, min_available_nodes=number)
        strategy.start(
            grid,
            ArrayRecord(model.state_dict()),
            num_rounds=int(rounds),
            train_config=ConfigRecord({"devices": number}),
            evaluate_fn=evaluate,
        )

    run_simulation(server_app=server, client_app=client, num_supernodes=number)


if __name__ == "__main__":
    import flower_scaffold  # Ray finds functions of a module by their names, and cannot copy cached ones of a script

    flower_scaffold.main(*sys.argv[1:])
