"""The memory estimate compared with the allocations of torch's CPU allocator in a real step."""

from __future__ import annotations

import pytest
import torch
from torch.profiler import ProfilerActivity, profile

from undergrowth.core import Context, Model, Packet, Shard, Task, Train, tensors_in
from undergrowth.devices import Tracer, meter
from undergrowth.learning import GradientClient
from undergrowth.learning.adapters import Adapters, WithAdapters
from undergrowth.methods.slora import SLoRA
from undergrowth.methods.slora.sparse_adapters import sparse_model
from undergrowth.models.catalogue import builder

BATCH = 16


def measured(task: Task, client: GradientClient, down: Packet, shape: tuple[int, ...]) -> int:
    """The peak of the third step: the bytes allocated before it, plus the highest point of the allocator during it."""
    shard = Shard(torch.zeros(BATCH, *shape), torch.zeros(BATCH, dtype=torch.int64))
    carry, _ = client.begin(task, down, shard, {}, Context(0, "device", 0))
    batch = {"x": shard.x, "y": shard.y}
    for _ in range(2):
        carry = client.step(task, carry, batch)
    there = {t.untyped_storage()._cdata: t.untyped_storage().nbytes() for t in tensors_in([carry, batch])}
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True, acc_events=True) as profiler:
        client.step(task, carry, batch)
    events = [event for event in profiler.profiler.kineto_results.events() if event.name() == "[memory]"]
    live = peak = 0
    for event in sorted(events, key=lambda event: event.start_ns()):
        live += event.nbytes()
        peak = max(peak, live)
    assert peak > 0
    return sum(there.values()) + peak


@pytest.mark.parametrize(
    ("name", "shape"), [("cnn", (1, 28, 28)), ("wrn-16-1", (3, 32, 32)), ("mlp", (64,)), ("resnet-8", (3, 32, 32))]
)
@pytest.mark.parametrize("split", [None, "head"])
@pytest.mark.parametrize("optimiser", ["sgd", "adam"])
def test_memory_is_within_a_fifth_of_the_measured_peak(name, shape, split, optimiser):
    task = Task(Model(builder(name, shape, 10)), 10, Train(batch=BATCH, momentum=0.9, optimiser=optimiser))
    client, down = GradientClient(split=split), Packet(task.model.initial(0))
    estimate = Tracer(task, client, shape).work(down, 10 * BATCH).memory
    assert estimate == pytest.approx(measured(task, client, down, shape), rel=0.2)


def test_larger_batches_and_stateful_optimisers_take_more():
    sizes = []
    for batch, optimiser in ((4, "sgd"), (32, "sgd"), (32, "adam")):
        task = Task(Model(builder("cnn", (1, 28, 28), 10)), 10, Train(batch=batch, optimiser=optimiser))
        sizes.append(Tracer(task, GradientClient(), (1, 28, 28)).work(Packet(task.model.initial(0)), 100).memory)
    assert sizes == sorted(sizes)
    assert len(set(sizes)) == 3


@pytest.mark.parametrize(("name", "options"), [("cnn", {"hidden": 4}), ("wrn-10-1", {"norm": "group"})])
def test_a_batch_of_one_sample_takes_no_more_than_is_estimated(name, options):
    shape = (1, 12, 12)
    task = Task(Model(builder(name, shape, 10, **options)), 10, Train(batch=BATCH, momentum=0.9, epochs=2))
    client, down, gauge = GradientClient(), Packet(task.model.initial(0)), meter.Meter()
    estimate = Tracer(task, client, shape).work(down, 1).memory
    shard = Shard(torch.zeros(1, *shape), torch.zeros(1, dtype=torch.int64))
    gauge.ignore(shard.x, shard.y)
    gauge.hold(down)
    with gauge:
        carry, _ = client.begin(task, down, shard, {}, Context(0, "device", 0))
        for _ in range(2):
            carry = client.step(task, carry, {"x": shard.x, "y": shard.y})
    assert gauge.peak <= estimate <= 1.05 * gauge.peak


@pytest.mark.parametrize("samples", [2, 9, 40])
def test_positions_of_sparse_adapters_are_counted_in_batches_of_any_size(samples):
    """A device keeps them beside the model; they are made when a job builds its view of the model."""
    adapted = WithAdapters(builder("mlp", (64,), 10, hidden=[100]), Adapters(rank=3))
    task = Task(Model(adapted), 10, Train(batch=BATCH, momentum=0.9))
    model, client, gauge = sparse_model(task.model, 0.9, 5), SLoRA(density=0.9).client, meter.Meter()
    down = Packet(model.initial(0), {"mask": 5.0})
    estimate = Tracer(task, client, (64,)).work(down, samples).memory
    shard = Shard(torch.zeros(samples, 64), torch.zeros(samples, dtype=torch.int64))
    gauge.ignore(shard.x, shard.y)
    gauge.hold((down, task.model.constants))
    with gauge:
        carry, steps = client.begin(task, down, shard, {}, Context(0, "device", 0))
        for order in steps.epochs[0].split(BATCH):
            carry = client.step(task, carry, {"x": shard.x[order], "y": shard.y[order]})
    assert estimate == pytest.approx(gauge.peak, rel=0.02)


def test_the_shard_is_not_counted():
    task = Task(Model(builder("mlp", (64,), 10)), 10, Train(batch=8))
    tracer, down = Tracer(task, GradientClient(), (64,)), Packet(task.model.initial(0))
    grown = tracer.work(down, 10_000).memory - tracer.work(down, 100).memory
    assert grown <= 9900 * 3 * 8  # the order of the samples, and what it is made from


@pytest.mark.parametrize(("name", "shape", "dtype"), [("lstm", (6,), torch.int64), ("cnn", (3, 8, 8), torch.float32)])
def test_cached_operations_count_the_same(name, shape, dtype, monkeypatch):
    """An operation that returns an undeclared view must not count as new memory the second time."""
    monkeypatch.setattr(meter, "_CACHE", {})
    task = Task(Model(builder(name, shape, 10)), 10, Train(batch=8))
    first, second = (Tracer(task, GradientClient(), shape, dtype).work(Packet(task.model.initial(0)), 20) for _ in "ab")
    monkeypatch.setattr(meter, "_is_pure", lambda _: False)
    assert first == second == Tracer(task, GradientClient(), shape, dtype).work(Packet(task.model.initial(0)), 20)
