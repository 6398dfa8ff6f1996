"""`undergrowth bench memory`: the memory of a device that measures slopes (FedMeZO), against that of inference.

Each job runs in a new process: one pass over a batch, or all passes of a device with one batch, on a device that
holds the model already. What counts is the peak of the process's resident memory above that before the weights are
made; of several turns the least counts, because gaps between freed blocks only add to it. A job of FedAvg is shown for
comparison.
"""

from __future__ import annotations

import math
import subprocess
import sys
from collections.abc import Callable, Iterator

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from undergrowth.bench import Measurement
from undergrowth.bench.peak_memory import peak_memory
from undergrowth.core import Context, Model, Packet, RunError, Shard, State, Task, Train
from undergrowth.methods import FedAvg, FedMeZO
from undergrowth.methods.fedmezo.replica import RoundOf

# Words, width and layers; the second has 109 million parameters, as BERT has.
MODELS = {"text transformer, 1.8 M parameters": (8_000, 128, 4), "100 M parameters": (30_522, 768, 12)}
TOKENS, BATCH, CLASSES = 64, 32, 4
TURNS = {"100 M parameters": 1}  # otherwise 3: gaps between freed blocks matter for small models
MOST = 1.1


class Block(nn.Module):
    """A layer of a transformer encoder."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.first, self.second = nn.LayerNorm(width), nn.LayerNorm(width)
        self.attention, self.joined = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.wide, self.narrow = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: Tensor) -> Tensor:
        samples, tokens, width = x.shape
        heads = self.attention(self.first(x)).view(samples, tokens, 3, -1, 32).permute(2, 0, 3, 1, 4)
        found = F.scaled_dot_product_attention(*heads).transpose(1, 2).reshape(samples, tokens, width)
        x = x + self.joined(found)
        out: Tensor = x + self.narrow(F.gelu(self.wide(self.second(x))))
        return out


class TextTransformer(nn.Module):
    """A transformer encoder that classifies texts of at most `TOKENS` words."""

    def __init__(self, words: int, width: int, layers: int) -> None:
        super().__init__()
        self.words, self.places = nn.Embedding(words, width), nn.Embedding(TOKENS, width)
        self.blocks = nn.Sequential(*(Block(width) for _ in range(layers)))
        self.head = nn.Linear(width, CLASSES)

    def forward(self, tokens: Tensor) -> Tensor:
        places = torch.arange(tokens.shape[1], device=tokens.device)
        logits: Tensor = self.head(self.blocks(self.words(tokens) + self.places(places)).mean(1))
        return logits


def measure() -> Iterator[Measurement | str]:
    for name in MODELS:
        peaks = {job: min(_peak(name, job) for _ in range(TURNS.get(name, 3))) for job in JOBS}
        yield f"{name}: FedAvg {peaks['fedavg'] / 1e6:.1f} MB, {peaks['fedavg'] / peaks['inference']:.2f} × inference"
        yield Measurement(name, "MB", peaks["fedmezo"] / 1e6, peaks["inference"] / 1e6, MOST, lower_is_better=True)


def _peak(model: str, job: str) -> float:
    """The memory of a job in bytes, measured in a new process."""
    command = [sys.executable, "-c", "import sys; from undergrowth.bench.memory import main; main(*sys.argv[1:])"]
    done = subprocess.run([*command, model, job], capture_output=True, text=True)
    if done.returncode:
        raise RunError(f"the job '{job}' failed: {done.stderr.strip()[-500:]}")
    return float(done.stdout)


def main(model: str, job: str) -> None:
    """Prints the memory of a job of this process."""
    task, shard = (build_task(*MODELS[model]), Shard(torch.zeros(BATCH, TOKENS).long(), torch.zeros(BATCH).long()))
    JOBS[job](build_task(50, 32, 1), {}, shard)  # whatever torch loads with a first job
    before = peak_memory()
    weights = {name: torch.randn(shape).mul_(1 / math.sqrt(shape[-1])) for name, shape in task.model.shapes.items()}
    JOBS[job](task, weights, shard)
    print(peak_memory() - before)


def build_task(words: int, width: int, layers: int) -> Task:
    """A task whose module has no memory: the weights of a job are the only copy."""

    def build() -> nn.Module:
        with torch.device("meta"):
            return TextTransformer(words, width, layers)

    return Task(Model(build), CLASSES, Train(batch=BATCH))


def _small(task: Task) -> dict[str, Tensor]:
    return {name: torch.zeros(shape) for name, shape in task.model.shapes.items()}


@torch.no_grad()
def _infer(task: Task, weights: dict[str, Tensor], shard: Shard) -> None:
    for x in shard.x.split(BATCH):
        task.model(weights or _small(task), x)


def _measure_slopes(task: Task, weights: dict[str, Tensor], shard: Shard) -> None:
    own: State = {"model": weights or _small(task), "round": 0}
    slopes = torch.zeros(1, 2)
    down = Packet({"round": RoundOf(0, 1).write(slopes), "slopes": slopes.int()})
    FedMeZO().client.on_device().local(task, down, shard, own, Context(0, "device", 1))


def _train(task: Task, weights: dict[str, Tensor], shard: Shard) -> None:
    down = Packet(weights or _small(task))
    FedAvg().client.local(task, down, shard, {}, Context(0, "device", 1))


JOBS: dict[str, Callable[[Task, dict[str, Tensor], Shard], None]] = {
    "inference": _infer,
    "fedmezo": _measure_slopes,
    "fedavg": _train,
}
