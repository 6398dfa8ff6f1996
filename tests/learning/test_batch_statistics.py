"""Statistics of BatchNorm layers: the same as of one plain pass over the samples of all devices."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from undergrowth.core import Context, Model, Packet, Shard, Task, Train
from undergrowth.core.reducers import add_upload
from undergrowth.devices import Tracer
from undergrowth.engines.vector.carries import stack_carries, unstack
from undergrowth.engines.vector.layers import Stacked
from undergrowth.learning.batch_statistics import MomentsReducer, StatisticsClient, statistics_names
from undergrowth.models import builder


def flat() -> nn.Module:
    return nn.Sequential(
        nn.Flatten(), nn.Linear(64, 6), nn.BatchNorm1d(6), nn.ReLU(), nn.Dropout(0.5), nn.Linear(6, 4),
        nn.BatchNorm1d(4, affine=False), nn.Linear(4, 3),
    ).double()  # fmt: skip


def convolutional() -> nn.Module:
    return builder("resnet-8", (1, 8, 8), 3)().double()


MODELS = {"flat": flat, "convolutional": convolutional}


def task_with(name: str, batch: int = 8) -> Task:
    model = Model(MODELS[name]).with_not_alone(frozenset({None}))
    return Task(model, classes=3, train=Train(batch=batch))


def shard(seed: int, count: int) -> Shard:
    """Samples whose mean differs from device to device."""
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(count, 1, 8, 8, generator=generator, dtype=torch.float64) * (1 + seed) + 20 * seed
    return Shard(x, torch.randint(0, 3, (count,), generator=generator))


def weights_of(model: Model) -> dict[str, Tensor]:
    """Weights after some training, with running statistics that are of no use."""
    torch.manual_seed(1)
    start = model.initial(0)
    return {name: v + 0.2 * torch.rand_like(v) if v.is_floating_point() else v for name, v in start.items()}


def reference(
    task: Task, weights: dict[str, Tensor], shards: dict[str, Shard], seed: int = 5, round: int = 2, turn: int = 1
) -> dict[str, Tensor]:
    """A plain loop: all inputs of all BatchNorm layers in one list, then their mean and variance."""
    net = task.model.build()
    net.load_state_dict(weights)
    net.eval()
    seen: dict[str, list[Tensor]] = {}
    for name, layer in net.named_modules():
        if isinstance(layer, nn.BatchNorm1d | nn.BatchNorm2d):
            layer.train()
            layer.register_forward_pre_hook(lambda _, x, name=name: seen.setdefault(name, []).append(x[0]))
    for device, own in shards.items():
        order = torch.randperm(len(own), generator=Context(seed, device, round, turn).generator("order"))
        for rows in order.split(task.train.batch):
            if len(rows) > 1:
                net(own.x[rows])
    found = {}
    for name, inputs in seen.items():
        values = torch.cat([x.movedim(1, 0).flatten(1) for x in inputs], 1)  # channels × samples and pixels
        found[f"{name}.running_mean"] = values.mean(1).detach()
        found[f"{name}.running_var"] = values.var(1, correction=0).detach()
    return found


@pytest.mark.parametrize("name", MODELS)
def test_devices_and_server_find_what_one_pass_over_all_samples_finds(name) -> None:
    """Upstream layers normalise by the batch; batches of one sample are left out."""
    task = task_with(name)
    weights = weights_of(task.model)
    shards = {"a": shard(0, 20), "b": shard(1, 33), "c": shard(2, 1), "d": shard(3, 8)}
    partial = None
    for device, own in shards.items():
        up, kept = StatisticsClient().local(task, Packet(weights), own, {"x": 1}, Context(5, device, 2, 1))
        assert up.tensors.keys() == set(statistics_names(task.model)) and kept == {"x": 1}
        assert up.scalars == {"samples": {"a": 20.0, "b": 32.0, "c": 0.0, "d": 8.0}[device]}
        partial = add_upload(MomentsReducer(), partial, device, up)
    assert partial is not None and partial.scalars == {"samples": 60.0}
    expected = reference(task, weights, shards)
    assert len(expected) >= 4
    torch.testing.assert_close(dict(partial.tensors), expected, rtol=1e-9, atol=1e-9)


def test_merging_is_independent_of_order_and_grouping_and_of_devices_without_samples() -> None:
    reducer, generator = MomentsReducer(), torch.Generator().manual_seed(0)
    values = [torch.randn(n, 4, generator=generator, dtype=torch.float64) + 100 * n for n in (3, 1, 7)]
    ups = [
        Packet({"l.running_mean": v.mean(0), "l.running_var": v.var(0, correction=0)}, {"samples": float(len(v))})
        for v in values
    ]
    ups.append(
        Packet({"l.running_mean": torch.zeros(4).double(), "l.running_var": torch.zeros(4).double()}, {"samples": 0.0})
    )
    a, b, c, none = (reducer.lift("", up, 0) for up in ups)
    pooled = torch.cat(values)
    expected = {"l.running_mean": pooled.mean(0), "l.running_var": pooled.var(0, correction=0)}
    for merged in (
        reducer.merge(reducer.merge(none, a), reducer.merge(b, c)),
        reducer.merge(c, reducer.merge(reducer.merge(b, none), a)),
    ):
        torch.testing.assert_close(dict(merged.tensors), expected, rtol=1e-9, atol=1e-9)
        assert merged.scalars == {"samples": 11.0}
    assert reducer.merge(none, none).scalars == {"samples": 0.0}


@pytest.mark.parametrize("name", MODELS)
def test_a_stack_of_clients_measures_what_each_measures_alone(name) -> None:
    task, client = task_with(name), StatisticsClient()
    down = Packet(weights_of(task.model))
    batches = [shard(seed, 8).x for seed in (0, 1)]
    contexts = [Context(0, device, 0) for device in "ab"]
    begun = [client.begin(task, down, shard(0, 8), {}, context)[0] for context in contexts]
    alone = [client.step(task, carry, {"x": x[:n]}) for carry, x, n in zip(begun, batches, (8, 5), strict=True)]
    weight = torch.tensor([[1 / 8] * 8, [1 / 5] * 5 + [0.0] * 3], dtype=torch.float64)
    batch = {"x": torch.cat(batches), "weight": weight.flatten()}
    with Stacked(2, (weight > 0).double()):
        stack = client.step(task, stack_carries(begun), batch)
    for one, each in zip(alone, unstack({key: stack[key] for key in ("measured", "seen")}, 2), strict=True):
        torch.testing.assert_close(each["measured"], one["measured"], rtol=1e-9, atol=1e-9)
        assert each["seen"] == one["seen"]


def test_the_price_is_that_of_a_forward_pass_and_memory_needs_no_gradients() -> None:
    from torch.utils.flop_counter import FlopCounterMode

    from undergrowth.learning import GradientClient

    model = Model(builder("wrn-10-1", (1, 8, 8), 3))
    task, down = Task(model, classes=3, train=Train(batch=16)), Packet(model.initial(0))
    measuring, training = (
        Tracer(task, each, (1, 8, 8)).work(down, 50) for each in (StatisticsClient(), GradientClient())
    )
    counter = FlopCounterMode(display=False)
    with counter:
        model(model.initial(0), torch.zeros(50, 1, 8, 8))
    assert measuring.flops == counter.get_total_flops()
    assert measuring.flops < 0.4 * training.flops and measuring.memory < 0.6 * training.memory
    floats = sum(model.shapes[name].numel() for name in statistics_names(model))
    assert measuring.bytes_up == 4 * floats + 8
