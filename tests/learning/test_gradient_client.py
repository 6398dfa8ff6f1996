"""A device's training, against a hand-written loop."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional

from undergrowth.core import Context, InputError, Packet, Shard, Task
from undergrowth.learning import Adam, CrossEntropy, FewShotSelector, GradientClient, Proximal, RandomSelector, Sgd

CONTEXT = Context(5, "device-1", 3)
Training = Callable[..., dict[str, Tensor]]


def copied(tree: Any) -> Any:
    if isinstance(tree, Tensor):
        return tree.clone()
    if isinstance(tree, dict):
        return {key: copied(value) for key, value in tree.items()}
    return type(tree)(copied(value) for value in tree) if isinstance(tree, list | tuple) else tree


def equal(a: Any, b: Any) -> bool:
    if isinstance(a, Tensor):
        return torch.equal(a, b)
    if isinstance(a, dict):
        return a.keys() == b.keys() and all(equal(a[key], b[key]) for key in a)
    if isinstance(a, list | tuple):
        return len(a) == len(b) and all(map(equal, a, b))
    return bool(a == b)


SETTINGS: dict[str, tuple[dict[str, Any], Callable[..., torch.optim.Optimizer]]] = {
    "sgd": ({}, lambda p: torch.optim.SGD(p, 0.05)),
    "momentum": (
        {"momentum": 0.9, "weight_decay": 0.01},
        lambda p: torch.optim.SGD(p, 0.05, momentum=0.9, weight_decay=0.01),
    ),
    "adam": ({"optimiser": "adam"}, lambda p: torch.optim.Adam(p, 0.05)),
    "adamw": ({"optimiser": "adamw", "weight_decay": 0.1}, lambda p: torch.optim.AdamW(p, 0.05, weight_decay=0.1)),
}


@pytest.mark.parametrize("setting", SETTINGS)
def test_a_devices_training_is_a_plain_loop_bit_for_bit(
    task: Task, weights: dict[str, Tensor], shard: Shard, plain_training: Training, setting: str
) -> None:
    options, make = SETTINGS[setting]
    task = replace(task, train=replace(task.train, epochs=3, **options))
    down = Packet(weights)
    _, steps = GradientClient().begin(task, down, shard, {}, CONTEXT)
    assert len(steps) == 15 and all(sorted(order.tolist()) == list(range(23)) for order in steps.epochs)
    up, own = GradientClient().local(task, down, shard, {"kept": 1}, CONTEXT)
    expected = plain_training(weights, steps, make)
    assert equal(dict(up.tensors), {name: expected[name] for name in up.tensors})
    assert up.tensors.keys() == expected.keys() and up.scalars == {"samples": 23.0} and own == {"kept": 1}


def test_the_order_hangs_on_the_context(task: Task, weights: dict[str, Tensor], shard: Shard) -> None:
    def orders(context: Context) -> list[list[int]]:
        return [o.tolist() for o in GradientClient().begin(task, Packet(weights), shard, {}, context)[1].epochs]

    assert orders(CONTEXT) == orders(CONTEXT)
    others = [CONTEXT._replace(node="device-2"), CONTEXT._replace(round=4), CONTEXT._replace(turn=1)]
    assert all(orders(other) != orders(CONTEXT) for other in others)
    assert orders(CONTEXT)[0] != orders(CONTEXT)[1]


@pytest.mark.parametrize("split", [None, "low"])
@pytest.mark.parametrize("optimiser", [Sgd(0.9, 0.01), Adam(weight_decay=0.1)], ids=["sgd", "adam"])
def test_a_step_is_pure(
    task: Task, weights: dict[str, Tensor], shard: Shard, split: str | None, optimiser: Sgd | Adam
) -> None:
    client = GradientClient(CrossEntropy() + Proximal(0.1), split=split, optimiser=optimiser)
    carry, steps = client.begin(task, Packet(weights), shard, {}, CONTEXT)
    first, second, *_ = steps
    before, batch = copied(carry), copied(first)
    after = client.step(task, carry, first)
    assert equal(carry, before) and equal(first, batch)
    assert equal(client.step(task, carry, first), after) and not equal(after["parameters"], carry["parameters"])
    assert not any(value.requires_grad for value in after["parameters"].values())
    # A step may overwrite a carry that came from a step. Its result depends only on the values in that carry.
    again = copied(after)
    later, batch = client.step(task, after, second), copied(second)
    assert equal(client.step(task, again, second), later) and equal(second, batch)
    assert equal(carry, before)


@pytest.mark.parametrize("split", ["low", "head"])
def test_with_a_split_only_the_upper_part_is_trained_and_sent(
    task: Task, weights: dict[str, Tensor], shard: Shard, split: str
) -> None:
    before = copied(weights)
    up, _ = GradientClient(split=split).local(task, Packet(weights), shard, {}, CONTEXT)
    assert up.tensors.keys() == {*task.model.trainable(split), *task.model.upper_buffers(split)}
    assert all(not torch.equal(value, before[name]) for name, value in up.tensors.items())
    assert equal(weights, before)


def test_with_a_split_the_lower_part_runs_in_evaluation_mode_and_keeps_its_statistics(
    task: Task, weights: dict[str, Tensor], shard: Shard
) -> None:
    client = GradientClient(split="low")
    carry, steps = client.begin(task, Packet(weights), shard, {}, CONTEXT)
    net = task.model.build()
    net.load_state_dict(weights)
    net.first.eval()
    optimiser = torch.optim.SGD([net.get_parameter(name) for name in task.model.trainable("low")], 0.05)
    for batch in steps:
        carry = client.step(task, carry, batch)
        optimiser.zero_grad()
        functional.cross_entropy(net(batch["x"]), batch["y"]).backward()
        optimiser.step()
    lower = [name for name in task.model.buffers if name.startswith("first.")]
    assert len(lower) == 3 and all(torch.equal(carry["buffers"][name], weights[name]) for name in lower)
    expected = net.state_dict()
    assert all(
        torch.equal(value, expected[name]) for name, value in {**carry["parameters"], **carry["buffers"]}.items()
    )


def test_own_settings_go_before_the_runs(task: Task, weights: dict[str, Tensor], shard: Shard) -> None:
    task = replace(task, train=replace(task.train, schedule="linear"))
    carry, steps = GradientClient().begin(task, Packet(weights), shard, {}, CONTEXT)
    assert carry["lr"] == pytest.approx(0.05 * 0.7) and len(steps.epochs) == 2 and steps.batch == 5
    carry, steps = GradientClient(lr=0.3, epochs=4, batch=9).begin(task, Packet(weights), shard, {}, CONTEXT)
    assert carry["lr"] == 0.3 and len(steps.epochs) == 4 and steps.batch == 9


def test_the_weight_is_the_number_of_samples_trained_on(task: Task, weights: dict[str, Tensor], shard: Shard) -> None:
    for selector in (RandomSelector(0.3), FewShotSelector(3)):
        client = GradientClient(selector=selector)
        _, steps = client.begin(task, Packet(weights), shard, {}, CONTEXT)
        up, _ = client.local(task, Packet(weights), shard, {}, CONTEXT)
        assert up.scalars["samples"] == len(steps.epochs[0]) < 23


def test_a_device_without_samples_sends_the_model_back_with_no_weight(task: Task, weights: dict[str, Tensor]) -> None:
    empty = Shard(torch.zeros(0, 4), torch.zeros(0, dtype=torch.int64))
    for client in (
        GradientClient(),
        GradientClient(selector=RandomSelector(0.5)),
        GradientClient(selector=FewShotSelector()),
    ):
        up, _ = client.local(task, Packet(weights), empty, {}, CONTEXT)
        assert up.scalars["samples"] == 0 and equal(dict(up.tensors), {n: weights[n] for n in up.tensors})


def test_no_epoch_changes_nothing(task: Task, weights: dict[str, Tensor], shard: Shard) -> None:
    up, _ = GradientClient(epochs=0).local(task, Packet(weights), shard, {}, CONTEXT)
    assert equal(dict(up.tensors), {n: weights[n] for n in up.tensors}) and up.scalars["samples"] == 23


@pytest.mark.parametrize(("own", "said"), [(None, "train.batch 1"), (1, "the method's own batch size 1")])
def test_batches_that_a_model_cannot_train_on_are_refused(
    task: Task, weights: dict[str, Tensor], shard: Shard, own: int | None, said: str
) -> None:
    task = replace(
        task,
        model=task.model.with_not_alone(frozenset({None})),
        train=replace(task.train, batch=1 if own is None else 8),
    )
    with pytest.raises(InputError, match=f"^{said}: the batch normalisation of this model needs at least 2 samples$"):
        GradientClient(batch=own).begin(task, Packet(weights), shard, {}, Context(0, "a", 0))
