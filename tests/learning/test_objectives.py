"""Loss terms, their sums and multiples, against the formulas."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import pytest
import torch
from torch import Tensor
from torch.nn import functional

from undergrowth.core import Shard, Task
from undergrowth.learning import CrossEntropy, LossInputs, Objective, Proximal
from undergrowth.learning.gradient_client import gradients_of

MU = 0.3


@pytest.fixture
def moved(task: Task, weights: dict[str, Tensor]) -> dict[str, Tensor]:
    """Parameters that are some way from those received."""
    generator = torch.Generator().manual_seed(2)
    return {n: weights[n] + 0.1 * torch.randn(weights[n].shape, generator=generator) for n in task.model.parameters}


def look(task: Task, weights: dict[str, Tensor], trained: dict[str, Tensor], shard: Shard) -> LossInputs:
    output = task.model.run({**weights, **trained}, shard.x, training=True, maps=("low", "head"))
    return LossInputs(task, {"x": shard.x, "y": shard.y}, output, trained, weights)


def test_terms_add_up_and_scale(task: Task, weights: dict[str, Tensor], moved: dict[str, Tensor], shard: Shard) -> None:
    at = look(task, weights, moved, shard)
    entropy = functional.cross_entropy(at.output.logits, shard.y)
    distance = sum((moved[name] - weights[name]).square().sum() for name in moved)
    torch.testing.assert_close(CrossEntropy()(at), entropy)
    torch.testing.assert_close(Proximal(MU)(at), MU / 2 * distance)
    torch.testing.assert_close((CrossEntropy() + 0.5 * Proximal(MU))(at), entropy + 0.5 * MU / 2 * distance)
    nested = 2.0 * (CrossEntropy() + 0.5 * (Proximal(MU) + Proximal(MU)))
    torch.testing.assert_close(nested(at), 2 * entropy + MU * distance)
    assert float(distance) > 0.01


def test_gradients_are_those_of_the_formula(
    task: Task, weights: dict[str, Tensor], moved: dict[str, Tensor], shard: Shard
) -> None:
    batch = {"x": shard.x, "y": shard.y}
    buffers = {name: weights[name] for name in task.model.buffers}
    objective = CrossEntropy() + 0.5 * Proximal(MU)
    gradients, after, _ = gradients_of(task, objective, moved, buffers, weights, batch)
    net = task.model.build()
    net.load_state_dict({**weights, **moved})
    functional.cross_entropy(net(shard.x), shard.y).backward()
    for name, gradient in zip(moved, gradients, strict=False):
        by_hand = net.get_parameter(name).grad + 0.5 * MU * (moved[name] - weights[name])
        torch.testing.assert_close(gradient, by_hand)
    assert all(torch.equal(after[name], net.get_buffer(name)) for name in buffers)
    assert not any(value.requires_grad for value in moved.values())


def test_at_the_received_weights_the_pull_back_is_nothing(task: Task, weights: dict[str, Tensor], shard: Shard) -> None:
    trained = {name: weights[name] for name in task.model.parameters}
    assert float(Proximal(5.0)(look(task, weights, trained, shard))) == 0.0


@dataclass(frozen=True)
class MapSize(Objective):
    """A term that looks at feature maps."""

    maps: Sequence[str] = ("low",)

    def __call__(self, look: LossInputs) -> Tensor:
        return torch.stack([look.output.maps[level].square().mean() for level in self.maps]).sum()


def test_a_sum_asks_for_the_maps_of_all_its_terms_once(task: Task, weights: dict[str, Tensor], shard: Shard) -> None:
    objective = CrossEntropy() + 0.5 * MapSize() + (MapSize(("head", "low")) + Proximal(MU))
    assert objective.maps == ("low", "head")
    trained = {name: weights[name] for name in task.model.parameters}
    buffers = {name: weights[name] for name in task.model.buffers}
    batch = {"x": shard.x, "y": shard.y}
    gradients, _, _ = gradients_of(task, objective, trained, buffers, weights, batch)
    plain, _, _ = gradients_of(task, CrossEntropy(), trained, buffers, weights, batch)
    assert not torch.allclose(gradients[0], plain[0])


def test_a_term_without_a_formula_says_so(task: Task, weights: dict[str, Tensor], shard: Shard) -> None:
    with pytest.raises(NotImplementedError, match="__call__"):
        Objective()(look(task, weights, {}, shard))
