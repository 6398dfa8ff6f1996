"""HierFAVG against a plain loop, and what it must equal."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from undergrowth.core import InputError, NodePlace
from undergrowth.learning import learning_rate
from undergrowth.methods import FedAvg, HierFAVG

from .tiny_federation import (
    SHARDS,
    TASK,
    Weights,
    assert_same,
    cross_entropy,
    descend,
    device_context,
    initial,
    mean,
    module_with,
    shuffles,
    simulate,
    train,
    weights_of,
)
from .tiny_trees import STAR, THREE_LEVELS, TWO_LEVELS, run_tree


def size(devices: tuple[str, ...]) -> float:
    return float(sum(len(SHARDS[device]) for device in devices))


def test_hierfavg() -> None:
    """Liu et al., algorithm 1, with κ₂ = 2: edges average their devices twice, then the cloud averages the edges."""
    edges, model, rounds = [("a", "b"), ("c",)], initial(), 3
    for number in range(rounds):
        at_edges: list[Weights] = []
        for devices in edges:
            edge: Weights = model
            for local in range(2):
                turn = 2 * number + local
                trained = [train(edge, device, device_context(device, turn)) for device in devices]
                edge = mean(trained, [float(len(SHARDS[device])) for device in devices])
            at_edges.append(edge)
        model = mean(at_edges, [size(devices) for devices in edges])
    assert_same(run_tree(HierFAVG((2,)), rounds).root.state["model"], model)


@pytest.mark.parametrize("tree", [STAR, TWO_LEVELS, THREE_LEVELS])
def test_with_one_round_per_level_it_is_fedavg_in_any_tree(tree) -> None:
    expected, _ = simulate(FedAvg(), 2)
    assert_same(run_tree(HierFAVG((1,)), 2, tree).root.state["model"], expected["model"])
    assert_same(run_tree(FedAvg(), 2, tree).root.state["model"], expected["model"])


def test_the_last_number_holds_for_further_levels_and_a_place_may_have_its_own() -> None:
    tree = run_tree(HierFAVG((2, 3)), 2, THREE_LEVELS, places={"right": NodePlace(rounds=1)})
    assert {name: node.round for name, node in tree.nodes.items()} == {"root": 2, "top": 4, "left": 12, "right": 4}


def test_a_schedule_follows_the_rounds_of_the_run() -> None:
    """Device a is alone below its edge server, which does two rounds at the learning rate of one round of the run."""
    task = replace(TASK, train=replace(TASK.train, schedule="linear", rounds=2, momentum=0.0))
    weights: Weights = initial()
    for number in range(4):
        module, shard = module_with(weights), SHARDS["a"]
        optimiser = torch.optim.SGD(module.parameters(), learning_rate(task.train, number // 2))
        descend(module, shuffles(device_context("a", number), len(shard)), cross_entropy(shard), optimiser)
        weights = weights_of(module)
    assert_same(run_tree(HierFAVG((2,)), 2, {"root": ("edge",), "edge": ("a",)}, task).root.state["model"], weights)


def test_a_last_round_without_answers_does_not_lose_the_rounds_before() -> None:
    tree = run_tree(HierFAVG((2,)), 1, {"root": ("edge",), "edge": ("a",)}, cuts=[("a", 1.0, 9.0)])
    expected = train(initial(), "a", device_context("a", 0))
    assert_same(tree.root.state["model"], expected)


def test_an_empty_list_of_levels_is_refused() -> None:
    with pytest.raises(InputError, match=r"method\.rounds_per_level is empty; give at least one value"):
        HierFAVG(()).check()
