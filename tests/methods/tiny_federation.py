"""A tiny federation in float64, and the parts of plain PyTorch that the reference loops of all methods need.

A reference loop computes a method by its paper's formulas, with modules and optimisers of PyTorch. It shares with the
package only the weights to start from, the order of the samples and the draws, all of which come from contexts.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from undergrowth.core import Context, Method, Model, Node, Packet, Shard, State, Task, Train
from undergrowth.engines import SerialEngine, World
from undergrowth.exchange import Links
from undergrowth.models.staged import Staged
from undergrowth.simulation import Clock, Simulation, Timing

SEED = 9
EPOCHS, BATCH, LR, MOMENTUM = 2, 4, 0.1, 0.5
TRAIN = Train(rounds=3, epochs=EPOCHS, batch=BATCH, lr=LR, momentum=MOMENTUM)
Weights = Mapping[str, Tensor]
Loss = Callable[[nn.Module, Tensor], Tensor]  # of a module on the samples at some positions


def build(hidden: int = 6) -> Staged:
    """A lower part, an upper part and a classifier. `hidden` changes the size of the model, but not of its maps."""
    lower = nn.Sequential(nn.Linear(4, hidden), nn.BatchNorm1d(hidden), nn.ReLU(), nn.Linear(hidden, 5))
    upper = nn.Sequential(nn.BatchNorm1d(5), nn.ReLU(), nn.Linear(5, 6), nn.Tanh())
    levels = {"low": "upper", "mid": "upper", "up": "upper", "head": "head"}
    return Staged({"lower": lower, "upper": upper, "head": nn.Linear(6, 3)}, levels).double()


def samples(seed: int, count: int) -> Shard:
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(count, 4, generator=generator, dtype=torch.float64)
    return Shard(x, torch.randint(0, 3, (count,), generator=generator))


# No batch of four has a single sample, which BatchNorm cannot take. Device c does not have class 2.
SHARDS = {"a": samples(1, 8), "b": samples(2, 15), "c": replace(samples(3, 6), y=torch.tensor([0, 1, 1, 0, 1, 0]))}
SIZES = [len(shard) for shard in SHARDS.values()]
TASK = Task(Model(build), classes=3, train=TRAIN, public=samples(4, 14))


class Devices:
    """The shards, as an engine reads them."""

    def train(self, device: str) -> Shard:
        return SHARDS[device]


@dataclass(frozen=True)
class GivenClock(Clock):
    """A device takes the seconds in `paces`, or one, and stops after the number of steps in `limits`, if it has one."""

    limits: Mapping[str, int]
    paces: Mapping[str, float]

    def timing(self, device: str, *_: object) -> Timing:
        return Timing(0.0, self.paces.get(device, 1.0), 0.0, limit=self.limits.get(device))


def simulate(
    method: Method,
    rounds: int,
    task: Task = TASK,
    limits: Mapping[str, int] = MappingProxyType({}),
    paces: Mapping[str, float] = MappingProxyType({}),
    links: Links | None = None,
) -> tuple[State, dict[str, Any]]:
    """The root's state and the devices' own states after some rounds of a star on the serial engine."""
    root = Node("root", method.server, task, tuple(SHARDS), rounds, seed=SEED, samples=sum(SIZES))
    world = World(task, method.client, {"root": method.server}, Devices(), links=links or Links())
    simulation = Simulation({"root": root}, {}, SerialEngine(), world, GivenClock(limits, paces))
    simulation.start()
    for _ in simulation.rounds():
        pass
    return simulation.root.state, {device: world.states.get(device) for device in SHARDS}


# Contexts ----------------------------------------------------------------------------------------------------


def server_context(number: int) -> Context:
    return Context(SEED, "root", number)


def device_context(device: str, number: int, turn: int | None = None) -> Context:
    """The context of a device in round `number`; it was asked `turn` times before, by default in every round."""
    return Context(SEED, device, number, number if turn is None else turn)


def seed_from(context: Context, purpose: str) -> int:
    """A seed that is sent to devices: as many bits as a float holds."""
    return context.key(purpose) >> 15


def initial(model: Model = TASK.model) -> dict[str, Tensor]:
    """The global model before the first round."""
    return model.initial(server_context(0).key("model"))


def shuffles(context: Context, count: int, epochs: int = EPOCHS, purpose: str = "order") -> list[Tensor]:
    """The order of `count` samples in every epoch."""
    generator = context.generator(purpose)
    return [torch.randperm(count, generator=generator) for _ in range(epochs)]


# Plain PyTorch -----------------------------------------------------------------------------------------------


def module_with(weights: Weights, model: Model = TASK.model) -> Any:
    """A fresh module with a copy of these weights, in training mode."""
    module = model.build()
    module.load_state_dict(dict(weights))
    return module.train()


def weights_of(module: nn.Module) -> dict[str, Tensor]:
    return {name: value.detach().clone() for name, value in module.state_dict().items()}


def cross_entropy(shard: Shard) -> Loss:
    return lambda module, rows: functional.cross_entropy(module(shard.x[rows]), shard.y[rows])


def proximal(shard: Shard, centre: Weights, mu: float) -> Loss:
    """Cross-entropy + (μ/2)·‖w − centre‖²."""

    def loss(module: nn.Module, rows: Tensor) -> Tensor:
        distance = sum((value - centre[name]).square().sum() for name, value in module.named_parameters())
        return cross_entropy(shard)(module, rows) + mu / 2 * distance

    return loss


def fisher(weights: Weights, shard: Shard, model: Model = TASK.model) -> dict[str, Tensor]:
    """The mean of the squared gradients of log p(y | x), sample by sample."""
    module = module_with(weights, model).eval()
    total = {name: torch.zeros_like(value) for name, value in module.named_parameters()}
    for x, y in zip(shard.x, shard.y, strict=True):
        module.zero_grad()
        torch.log_softmax(module(x[None])[0], 0)[y].backward()
        for name, value in module.named_parameters():
            total[name] += value.grad**2 / len(shard)
    return total


def loss_on(weights: Weights, shard: Shard) -> float:
    """The loss over all samples, in evaluation mode."""
    with torch.no_grad():
        return float(functional.cross_entropy(module_with(weights).eval()(shard.x), shard.y))


def parts(device: str, fraction: float) -> tuple[Shard, Shard]:
    """The training samples of a device, and the `fraction` of all for validation."""
    shard = SHARDS[device]
    order = torch.randperm(len(shard), generator=device_context(device, 0, 0).generator("validation"))
    held_out = round(fraction * len(shard))
    return shard.take(order[held_out:].sort().values), shard.take(order[:held_out].sort().values)


def descend(
    module: nn.Module,
    orders: Iterable[Tensor],
    loss: Loss,
    optimiser: torch.optim.Optimizer | None = None,
    batch: int = BATCH,
    steps: int | None = None,
) -> None:
    """Plain training: a step for every batch of every epoch, or the first `steps` of them."""
    optimiser = optimiser or torch.optim.SGD(module.parameters(), LR, MOMENTUM)
    for rows in [rows for order in orders for rows in order.split(batch)][:steps]:
        optimiser.zero_grad()
        loss(module, rows).backward()
        optimiser.step()


def train(
    weights: Weights, device: str, context: Context, loss: Loss | None = None, **limits: Any
) -> dict[str, Tensor]:
    """The device's weights after local training from `weights` with the run's settings."""
    module, shard = module_with(weights), SHARDS[device]
    orders = shuffles(context, len(shard), limits.pop("epochs", EPOCHS))
    descend(module, orders, loss or cross_entropy(shard), **limits)
    return weights_of(module)


def mean(models: Sequence[Weights], sizes: Sequence[float] | None = None) -> dict[str, Tensor]:
    """Σ n_k·w_k / Σ n, with equal n_k by default. Counters are the largest, because a mean of them is no count."""
    numbers = [1.0] * len(models) if sizes is None else sizes
    return {
        name: sum(n * model[name] for n, model in zip(numbers, models, strict=True)) / sum(numbers)
        if value.is_floating_point()
        else torch.stack([model[name] for model in models]).amax(0)
        for name, value in models[0].items()
    }


def keep_layers(layers: tuple[str, ...], rounds: int) -> tuple[Weights, dict[str, Weights]]:
    """The averaged model, and the entries whose names begin with one of `layers` of every device, which keeps them.

    A device continues with its own layers, first with the initial ones.
    """
    model: Weights = initial()
    trained: dict[str, Weights] = dict.fromkeys(SHARDS, model)

    def own() -> dict[str, Weights]:
        return {
            device: {name: value for name, value in weights.items() if name.startswith(layers)}
            for device, weights in trained.items()
        }

    for number in range(rounds):
        kept = own()
        trained = {d: train({**model, **kept[d]}, d, device_context(d, number)) for d in SHARDS}
        model = mean(list(trained.values()), SIZES)
    return model, own()


def assert_same(found: Weights | Packet, expected: Weights) -> None:
    """Equal up to rounding in float64, and not a trivial case: the expected values are finite."""
    tensors = found.tensors if isinstance(found, Packet) else found
    assert tensors.keys() == expected.keys()
    assert all(value.isfinite().all() for value in expected.values())
    torch.testing.assert_close(dict(tensors), dict(expected), rtol=1e-9, atol=1e-11)
