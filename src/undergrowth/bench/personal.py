"""`undergrowth bench personal`: local-only models, adapted models and the evaluation of all devices.

The devices have about as many samples as the writers of MNIST. The reference is the loop that one writes by hand: for
every device, train a model alone, adapt the federated one, and score all three on its test samples. Both sides do the
same work, without early stopping. The loop does it for fewer devices, because its speed does not depend on their
number. On a GPU: ``undergrowth bench personal --workload cnn --device cuda``.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from time import perf_counter
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from undergrowth.bench import Measurement
from undergrowth.bench.peak_memory import peak_memory
from undergrowth.core import InputError, suggest
from undergrowth.data import Dataset
from undergrowth.models import builder
from undergrowth.runs.engine_builder import check_torch_device
from undergrowth.runs.execution import start

DEVICES, LOOP_DEVICES = 10_000, 50
EPOCHS, BATCH, LR = 3, 20, 0.05
CLASSES, TEST_SAMPLES = 10, 200
WORKLOADS = ("logistic", "cnn")
MIN_SPEED = {"cpu": 1.0, "cuda": 10.0}  # against the loop, on the same torch device
MAX_BYTES = 6e9  # of host memory, with 10 000 devices: their samples take one of these


def measure(workload: str | None = None, device: str = "cpu", devices: int = DEVICES) -> Iterator[Measurement | str]:
    """The lines of the benchmark, for one workload or for all."""
    if workload is not None and workload not in WORKLOADS:
        raise InputError(f"--workload '{workload}' is not known; {suggest(workload, WORKLOADS)}")
    check_torch_device(device)
    kind = torch.device(device).type
    for name in WORKLOADS if workload is None else (workload,):
        data = synthetic_writers(devices)
        yield f"{name}: {devices} devices with {len(data)} samples on {device}"
        ours = run_personal(name, data, device)
        reference = by_hand(name, data, device, min(devices, LOOP_DEVICES))
        what = f"{name}, {devices} devices"
        yield Measurement(what, "clients/s, against a loop by hand", ours, reference, MIN_SPEED[kind])
    memory = peak_memory()
    yield Measurement("its peak memory", "bytes, against the bar", memory, MAX_BYTES, 1.0, lower_is_better=True)


def synthetic_writers(devices: int) -> Dataset:
    """Noisy patterns of ten classes, by writers with 60 to 160 samples."""
    generator = np.random.default_rng(0)
    sizes = generator.integers(60, 161, devices)
    patterns = generator.integers(0, 128, (CLASSES, 1, 28, 28), dtype=np.uint8)
    y = generator.integers(0, CLASSES, int(sizes.sum()))
    x = patterns[y]
    for rows in np.array_split(np.arange(len(y)), -(-len(y) // 10_000)):
        x[rows] += generator.integers(0, 128, (len(rows), 1, 28, 28), dtype=np.uint8)
    test = generator.integers(0, len(y), TEST_SAMPLES)
    return Dataset("writers", x, y, x[test], y[test], CLASSES, fields={"writer": np.repeat(np.arange(devices), sizes)})


def run_personal(model: str, data: Dataset, device: str) -> float:
    """Devices a second of the phase after the last round: training, adaptation and evaluation."""
    began = [0.0]

    def note_time(*_: Any) -> None:
        began[0] = perf_counter()

    with tempfile.TemporaryDirectory() as folder:
        result = start(
            {
                "data": {"partition": "natural:writer", "holdout": 0.1},
                "model": model,
                "train": {"rounds": 1, "sample": 0.01, "batch": BATCH, "lr": LR},
                "personal": {"adapt": ["fine-tune"], "epochs": EPOCHS, "validation": 0.0},
                "run": {"out": folder, "device": device},
            },
            data=data,
            on_round=note_time,
        )
        seconds = perf_counter() - began[0]
        return len(result.clients) / seconds


def by_hand(name: str, data: Dataset, device: str, devices: int) -> float:
    """Devices a second of a plain loop that does the same."""
    build = builder(name, data.shape, data.classes)
    initial, federated = build().to(device).state_dict(), build().to(device).state_dict()
    module = build().to(device)
    ends = np.cumsum(np.bincount(np.asarray(data.fields["writer"]))[:devices]).tolist()
    shards = [data.shard(range(first, last)).to(device) for first, last in zip([0, *ends], ends, strict=False)]
    train_alone(module, shards[0].x, shards[0].y, initial)  # warms up
    began = perf_counter()
    correct = 0  # reading these numbers waits for a GPU
    for shard in shards:
        held_out = len(shard) // 10
        x, y, test_x, test_y = shard.x[held_out:], shard.y[held_out:], shard.x[:held_out], shard.y[:held_out]
        for weights in (initial, federated):
            train_alone(module, x, y, weights)
            correct += count_correct(module, test_x, test_y)
        module.load_state_dict(federated)
        correct += count_correct(module, test_x, test_y)
    return len(shards) / (perf_counter() - began)


def train_alone(module: nn.Module, x: Tensor, y: Tensor, weights: dict[str, Tensor]) -> None:
    module.load_state_dict(weights)
    module.train()
    optimiser = torch.optim.SGD(module.parameters(), lr=LR)
    for _ in range(EPOCHS):
        for rows in batches(len(y), y.device):
            optimiser.zero_grad()
            F.cross_entropy(module(x[rows]), y[rows]).backward()
            optimiser.step()


def batches(count: int, torch_device: torch.device) -> tuple[Tensor, ...]:
    order: Tensor = torch.randperm(count).to(torch_device)
    return tuple(order.split(BATCH))


@torch.no_grad()
def count_correct(module: nn.Module, x: Tensor, y: Tensor) -> int:
    return int((module.eval()(x).argmax(1) == y).sum())
