"""`undergrowth bench lora`: adapters of many clients on one frozen model, against a loop over the clients.

The model has the size of MiniLM: 6 layers of 384 channels, with adapters of rank 8 on queries, keys and values. Each of
32 clients trains 4 batches of 16 texts of 64 tokens. The reference is the loop that one writes by hand: for every
client, put the adapters into the one module, make an optimiser, train, add the result to a sum. Rounds of both
alternate. What counts of the memory is the peak of what torch allocates on the GPU during a round.

Bars are for a GPU. Without one, the benchmark runs with a small model, to show that both sides compute the same.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from time import perf_counter
from typing import Any, TypeVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from undergrowth.bench import Measurement
from undergrowth.bench.loop import MAX_DIFFERENCE, distance
from undergrowth.core import Context, Model, Packet, RunError, Shard, Task, Train, Weights
from undergrowth.engines import World
from undergrowth.engines.vector.engine import VectorEngine
from undergrowth.engines.world import EngineSettings, Job
from undergrowth.learning.adapters import Adapters, WithAdapters, add_adapters
from undergrowth.methods import LoRA
from undergrowth.models import builder

LEAST_SPEED, MOST_MEMORY = 4.0, 1.5
WARM, ROUNDS = 4, 5  # a GPU records steps in the first rounds
CLASSES, LR = 2, 0.05
Result = TypeVar("Result")


@dataclass(frozen=True)
class Size:
    """Of the model and of the work."""

    words: int
    width: int
    layers: int
    heads: int
    tokens: int = 64
    rank: int = 8
    clients: int = 32
    batch: int = 16
    batches: int = 4


MINILM = Size(words=30_522, width=384, layers=6, heads=12)
SMALL = Size(words=500, width=32, layers=2, heads=4, tokens=16, clients=8, batch=4, batches=2)


@dataclass
class Round:
    """Seconds and peak bytes of a round."""

    seconds: float
    bytes: int


class Texts:
    """Random texts of each client."""

    def __init__(self, size: Size) -> None:
        generator = torch.Generator().manual_seed(0)
        count = size.batch * size.batches
        self.shards = {
            f"client-{number}": Shard(
                torch.randint(1, size.words, (count, size.tokens), generator=generator),
                torch.randint(0, CLASSES, (count,), generator=generator),
            )
            for number in range(size.clients)
        }

    def train(self, device: str) -> Shard:
        return self.shards[device]

    def size(self, device: str) -> int:
        return len(self.shards[device])


def measure() -> Iterator[Measurement | str]:
    cuda = torch.cuda.is_available()
    size, device = (MINILM, "cuda") if cuda else (SMALL, "cpu")
    ours, loop = compare(size, device)
    fast, slow = (size.clients / statistics.median(each.seconds for each in rounds) for rounds in (ours, loop))
    if not cuda:
        yield f"no GPU: a small model, without bars; {fast:.4g} clients a second, the loop {slow:.4g}"
        return
    yield Measurement(f"rank {size.rank}, {size.clients} clients at once", "clients a second", fast, slow, LEAST_SPEED)
    held, needed = (max(each.bytes for each in rounds) / 1e6 for rounds in (ours, loop))
    yield Measurement("peak memory", "MB", held, needed, MOST_MEMORY, lower_is_better=True)


def compare(size: Size, device: str, warm: int = WARM, rounds: int = ROUNDS) -> tuple[list[Round], list[Round]]:
    """Rounds of the engine and of the loop that follow `warm` rounds of each."""
    options: dict[str, Any] = {"vocabulary": size.words, "width": size.width, "depth": size.layers, "heads": size.heads}
    build = builder("transformer", (size.tokens,), CLASSES, **options)
    adapters, method, texts = Adapters(size.rank), LoRA(size.rank), Texts(size)
    task = Task(Model(WithAdapters(build, adapters)), CLASSES, Train(batch=size.batch, lr=LR)).to(device)
    engine = VectorEngine(EngineSettings(chunk=size.clients, torch_devices=(device,)))
    world = World(task, method.client, {"server": method.server}, texts, torch_device=device)
    engine.open(world)
    module = add_adapters(build(), adapters).to(device)
    # Both have the same frozen weights, which a model makes from a seed of its own.
    module.load_state_dict(task.model.complete(task.model.initial(0)))
    weights: Weights = task.model.initial(0)
    found: list[tuple[Round, Round]] = []
    for number in range(warm + rounds):
        ours, first = _timed(device, _stacked, engine, texts, weights, number)
        loop, second = _timed(device, _one_by_one, module, texts, weights, number, size)
        difference = distance(ours, loop)
        if not difference <= MAX_DIFFERENCE:
            raise RunError(
                f"after round {number + 1} the adapters differ from the loop's by {difference:.2g} of their length"
            )
        weights = loop
        found.append((first, second))
    return [first for first, _ in found[warm:]], [second for _, second in found[warm:]]


def _timed(device: str, work: Callable[..., Result], *arguments: Any) -> tuple[Result, Round]:
    cuda = device != "cpu"
    if cuda:
        torch.cuda.synchronize()
        torch.cuda.reset_peak_memory_stats()
    began = perf_counter()
    result = work(*arguments)
    if cuda:
        torch.cuda.synchronize()
    return result, Round(perf_counter() - began, torch.cuda.max_memory_allocated() if cuda else 0)


def _order(client: str, number: int, samples: int) -> Tensor:
    return torch.randperm(samples, generator=Context(0, client, number).generator("order"))


def _stacked(engine: VectorEngine, texts: Texts, weights: Weights, number: int) -> Weights:
    """A round on the engine: the mean of what all clients send."""
    down = Packet(weights)
    jobs = [Job("server", client, down, Context(0, client, number), combine=True) for client in texts.shards]
    parts = [outcome.up for outcome in engine.run(jobs) if outcome.up is not None]
    if not engine.facts().get("stacked"):
        raise RunError("the clients were not computed in a stack")
    total, *others = parts
    for other in others:
        total = engine.world.servers["server"].reducer.merge(total, other)
    return total.tensors


def _one_by_one(module: nn.Module, texts: Texts, weights: Weights, number: int, size: Size) -> dict[str, Tensor]:
    """A round by hand, one client after the other."""
    trained = {name: value for name, value in module.named_parameters() if value.requires_grad}
    total = {name: torch.zeros_like(value) for name, value in weights.items()}
    for client, shard in texts.shards.items():
        module.load_state_dict(dict(weights), strict=False)
        shard = shard.to(str(next(iter(trained.values())).device))
        optimiser = torch.optim.SGD(trained.values(), LR)
        for rows in _order(client, number, len(shard)).to(shard.x.device).split(size.batch):
            optimiser.zero_grad()
            F.cross_entropy(module(shard.x[rows]), shard.y[rows]).backward()
            optimiser.step()
        for name, value in trained.items():
            total[name] += value.detach() / len(texts.shards)
    return total
