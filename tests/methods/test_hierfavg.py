"""HierFAVG against a plain loop, and what it must equal."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from undergrowth.core import InputError, NodePlace
from undergrowth.learning import learning_rate
from undergrowth.methods import FedAvg, HierFAVG

from . import tiny_federation as tiny
from .tiny_trees import STAR, THREE_LEVELS, TWO_LEVELS, run_tree


def size(devices: tuple[str, ...]) -> float:
    return float(sum(len(tiny.SHARDS[device]) for device in devices))


def test_hierfavg() -> None:
    """Liu et al., algorithm 1, with κ₂ = 2: edges average their devices twice, then the cloud averages the edges."""
    edges, model, rounds = [("a", "b"), ("c",)], tiny.initial(), 3
    for number in range(rounds):
        at_edges: list[tiny.Weights] = []
        for devices in edges:
            edge: tiny.Weights = model
            for local in range(2):
                turn = 2 * number + local
                trained = [tiny.train(edge, device, tiny.device_context(device, turn)) for device in devices]
                edge = tiny.mean(trained, [float(len(tiny.SHARDS[device])) for device in devices])
            at_edges.append(edge)
        model = tiny.mean(at_edges, [size(devices) for devices in edges])
    tiny.assert_same(run_tree(HierFAVG((2,)), rounds).root.state["model"], model)


@pytest.mark.parametrize("tree", [STAR, TWO_LEVELS, THREE_LEVELS])
def test_with_one_round_per_level_it_is_fedavg_in_any_tree(tree) -> None:
    expected, _ = tiny.simulate(FedAvg(), 2)
    tiny.assert_same(run_tree(HierFAVG((1,)), 2, tree).root.state["model"], expected["model"])
    tiny.assert_same(run_tree(FedAvg(), 2, tree).root.state["model"], expected["model"])


def test_the_last_number_holds_for_further_levels_and_a_place_may_have_its_own() -> None:
    tree = run_tree(HierFAVG((2, 3)), 2, THREE_LEVELS, places={"right": NodePlace(rounds=1)})
    assert {name: node.round for name, node in tree.nodes.items()} == {"root": 2, "top": 4, "left": 12, "right": 4}


def test_a_schedule_follows_the_rounds_of_the_run() -> None:
    """Device a is alone below its edge server, which does two rounds at the learning rate of one round of the run."""
    task = replace(tiny.TASK, train=replace(tiny.TASK.train, schedule="linear", rounds=2, momentum=0.0))
    weights: tiny.Weights = tiny.initial()
    for number in range(4):
        module, shard = tiny.module_with(weights), tiny.SHARDS["a"]
        optimiser = torch.optim.SGD(module.parameters(), learning_rate(task.train, number // 2))
        tiny.descend(
            module, tiny.shuffles(tiny.device_context("a", number), len(shard)), tiny.cross_entropy(shard), optimiser
        )
        weights = tiny.weights_of(module)
    tiny.assert_same(
        run_tree(HierFAVG((2,)), 2, {"root": ("edge",), "edge": ("a",)}, task).root.state["model"], weights
    )


def test_a_last_round_without_answers_does_not_lose_the_rounds_before() -> None:
    tree = run_tree(HierFAVG((2,)), 1, {"root": ("edge",), "edge": ("a",)}, cuts=[("a", 1.0, 9.0)])
    expected = tiny.train(tiny.initial(), "a", tiny.device_context("a", 0))
    tiny.assert_same(tree.root.state["model"], expected)


def test_an_empty_list_of_levels_is_refused() -> None:
    with pytest.raises(InputError, match=r"method\.rounds_per_level is empty; give at least one value"):
        HierFAVG(()).check()
