"""Evaluates a model on test samples, on all cores of a CPU or on a GPU."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from functools import partial
from typing import NamedTuple, TypeVar

import torch
from torch import Tensor

from undergrowth.core import Model, Shard, TaskKind, Weights
from undergrowth.engines.processes.engine import cores
from undergrowth.runs.own_task import measure

Batch = TypeVar("Batch")
Found = TypeVar("Found")

BATCHES_PER_THREAD = 4  # starting a thread takes as long as a batch of a small model
CPU_BATCH = 128  # activations of larger batches leave the cache of a core
GPU_BATCH = 512


class Measured(NamedTuple):
    """What the metrics of some samples are computed from, with a row for each sample."""

    rows: Tensor  # loss, what the sample counts in the mean loss, and the statistics of the task
    outputs: Tensor | None  # only if the user's metrics need them

    def split(self, sizes: Sequence[int]) -> list[Measured]:
        """The parts that belong to several shards."""
        outputs = [None] * len(sizes) if self.outputs is None else self.outputs.split(sizes)
        return [Measured(*part) for part in zip(self.rows.split(sizes), outputs, strict=True)]


def measure_samples(kind: TaskKind, model: Model, weights: Weights, shard: Shard) -> Measured:
    """Runs the model on all samples."""

    def work(model: Model, batch: tuple[Tensor, Tensor]) -> Measured:
        outputs, labels = model(weights, batch[0]), batch[1]
        values, counts = kind.losses(outputs, labels)
        losses = torch.stack([values, torch.ones_like(values) if counts is None else counts], 1)
        rows = torch.cat([losses.double(), kind.statistics(outputs, labels)], 1)
        return Measured(rows, outputs if kind.own_metrics else None)

    batches = list(zip(_batches(shard.x), _batches(shard.y), strict=True))
    found = _for_each_batch(model, batches, work)
    outputs = torch.cat([each.outputs for each in found if each.outputs is not None]) if kind.own_metrics else None
    return Measured(torch.cat([each.rows for each in found]), outputs)


def score(kind: TaskKind, measured: Measured, labels: Tensor) -> dict[str, float]:
    """The metrics of samples, those of the user, and the mean loss."""
    sums = measured.rows.sum(0).cpu()  # the only wait for a GPU, unless the labels or the user's metrics need another
    loss, count = sums[:2].tolist()
    scores = kind.scores(sums[2:], labels)
    if measured.outputs is not None:
        pair = kind.aligned(measured.outputs, labels)
        scores |= {name: measure(name, function, *pair) for name, function in kind.own_metrics.items()}
    return {**scores, "loss": loss / max(count, 1)}


def evaluate(kind: TaskKind, model: Model, weights: Weights, shard: Shard) -> dict[str, float]:
    """The metrics of a model on `shard`, those of the user, and the mean loss."""
    return score(kind, measure_samples(kind, model, weights, shard), shard.y)


def _batches(values: Tensor) -> Sequence[Tensor]:
    return torch.split(values, GPU_BATCH if values.is_cuda else CPU_BATCH)


def _for_each_batch(model: Model, batches: Sequence[Batch], work: Callable[[Model, Batch], Found]) -> list[Found]:
    """The results of `work(model, batch)`, in the order of the batches; on a CPU, all cores share the batches.

    The batches and the arithmetic of each, on one thread, do not depend on the number of cores; so neither do the bits.
    """
    if model.torch_device != "cpu":
        return _in_turn(model, batches, work)
    threads = max(1, min(cores(), len(batches) // BATCHES_PER_THREAD))
    before = torch.get_num_threads()
    try:
        if threads == 1:
            torch.set_num_threads(1)
            return _in_turn(model, batches, work)
        with ThreadPoolExecutor(threads, initializer=partial(torch.set_num_threads, 1)) as pool:
            # A model writes the weights into its module while it runs, so every thread needs a module of its own.
            futures = [
                pool.submit(_in_turn, model.for_another_thread(), batches[first::threads], work)
                for first in range(threads)
            ]
            by_thread = [future.result() for future in futures]
    finally:
        torch.set_num_threads(before)  # the threads have changed the setting of MKL, which is one for all
    return [by_thread[place % threads][place // threads] for place in range(len(batches))]


@torch.no_grad()
def _in_turn(model: Model, batches: Sequence[Batch], work: Callable[[Model, Batch], Found]) -> list[Found]:
    # On a GPU in the precision of the training; a CPU is not faster in bfloat16.
    reduced = model.mixed and model.torch_device != "cpu"
    with torch.autocast(torch.device(model.torch_device).type, torch.bfloat16) if reduced else nullcontext():
        return [work(model, batch) for batch in batches]
