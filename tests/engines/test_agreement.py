"""Which differences between a step in a stack and the same step alone are accepted."""

from __future__ import annotations

import pytest
import torch

from undergrowth.engines.vector.agreement import agree

BEFORE = {"large": torch.zeros(100), "small": torch.zeros(4), "zero": torch.zeros(8), "count": torch.tensor(3)}
STEP = {"large": torch.ones(100), "small": torch.full((4,), 0.1), "zero": torch.zeros(8), "count": torch.tensor(4)}


def agrees(**differences: torch.Tensor | float) -> bool:
    other = {key: value + differences.get(key, 0) for key, value in STEP.items()}
    return agree({"parameters": other}, {"parameters": STEP}, {"parameters": BEFORE})


@pytest.mark.parametrize(
    ("differences", "same"),
    [
        ({}, True),
        ({"large": 1e-6}, True),
        ({"large": 0.03}, False),  # in all together
        ({"small": 0.01}, True),  # a tenth of a tensor that hardly counts
        ({"small": 0.05}, False),  # half of it
        ({"zero": 1e-7}, True),  # rounding
        ({"zero": 1e-3}, False),
        ({"count": 1}, False),
        ({"large": float("nan")}, False),
    ],
)
def test_a_step_may_differ_by_what_rounding_does(differences: dict[str, float], same: bool) -> None:
    assert agrees(**differences) == same


def test_names_shapes_and_plain_values_must_be_equal() -> None:
    one = torch.ones(2)
    assert agree({"a": one, "turn": 3}, {"a": one, "turn": 3}, {"a": one, "turn": 2})
    assert not agree({"a": one, "turn": 2}, {"a": one, "turn": 3}, {"a": one, "turn": 2})
    assert not agree({"a": one}, {"b": one}, {"b": one})
    assert not agree({"a": torch.ones(1)}, {"a": one}, {"a": one})
    assert agree([one, one], [one, one], [one, one]) and not agree([one], [one, one], [one, one])


def test_the_tensors_of_a_list_are_judged_together() -> None:
    """Adam's squares of gradients that are zero but for rounding, as of a bias before batch normalisation."""
    before, step = [torch.zeros(100), torch.zeros(8)], [torch.ones(100), torch.full((8,), 1e-20)]
    assert agree([torch.ones(100), torch.full((8,), 3e-20)], step, before)
    assert not agree([torch.ones(100), torch.full((8,), 1e-2)], step, before)


def test_a_plain_step_that_is_not_finite_is_not_compared() -> None:
    wrong = torch.tensor([float("inf"), 1.0])
    assert agree({"a": torch.zeros(2)}, {"a": wrong}, {"a": torch.zeros(2)})
