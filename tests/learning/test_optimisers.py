"""Optimisers against torch.optim, and the schedules."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
import torch
from torch import Tensor
from torch.nn import functional

from undergrowth.core import InputError, Shard, Task, Train
from undergrowth.learning import Adam, CrossEntropy, Sgd, learning_rate
from undergrowth.learning.gradient_client import gradients_of
from undergrowth.learning.optimisers import Optimiser, build_optimiser

LR = 0.03
CASES: dict[str, tuple[Optimiser, Callable[..., torch.optim.Optimizer]]] = {
    "sgd": (Sgd(), lambda p: torch.optim.SGD(p, LR)),
    "momentum": (Sgd(0.9), lambda p: torch.optim.SGD(p, LR, momentum=0.9)),
    "decay": (Sgd(weight_decay=0.01), lambda p: torch.optim.SGD(p, LR, weight_decay=0.01)),
    "both": (Sgd(0.5, 1e-3), lambda p: torch.optim.SGD(p, LR, momentum=0.5, weight_decay=1e-3)),
    "dampening": (
        Sgd(0.9, 1e-3, 0.9),
        lambda p: torch.optim.SGD(p, LR, momentum=0.9, weight_decay=1e-3, dampening=0.9),
    ),
    "adam": (Adam(), lambda p: torch.optim.Adam(p, LR)),
    "adam decay": (Adam(weight_decay=0.1), lambda p: torch.optim.Adam(p, LR, weight_decay=0.1)),
    "adam betas": (Adam(0.8, 0.95, 1e-4), lambda p: torch.optim.Adam(p, LR, betas=(0.8, 0.95), eps=1e-4)),
    "adamw": (Adam(weight_decay=0.1, decoupled=True), lambda p: torch.optim.AdamW(p, LR, weight_decay=0.1)),
}


@pytest.mark.parametrize("case", CASES)
def test_twenty_steps_are_those_of_torch_bit_for_bit(
    task: Task, weights: dict[str, Tensor], shard: Shard, case: str
) -> None:
    ours, make = CASES[case]
    net = task.model.build()
    net.load_state_dict(weights)
    theirs = make(net.parameters())
    names = task.model.parameters
    parameters = [weights[name] for name in names]
    buffers = {name: weights[name] for name in task.model.buffers}
    state = ours.init(parameters)
    for at in range(20):
        batch = {"x": shard.x[at % 3 :: 3], "y": shard.y[at % 3 :: 3]}
        now = dict(zip(names, parameters, strict=False))
        gradients, buffers, _ = gradients_of(task, CrossEntropy(), now, buffers, weights, batch)
        parameters, state = ours.update(parameters, gradients, state, LR)
        theirs.zero_grad()
        functional.cross_entropy(net(batch["x"]), batch["y"]).backward()
        theirs.step()
    for name, value in zip(names, parameters, strict=False):
        assert torch.equal(value, net.get_parameter(name)), name
        # A bias under BatchNorm has no gradient but rounding, so only weights are sure to have moved.
        assert name.endswith("bias") or not torch.equal(value, weights[name]), name
    assert all(torch.equal(buffers[name], net.get_buffer(name)) for name in buffers)


@pytest.mark.parametrize("case", CASES)
def test_an_update_leaves_what_is_handed_in_as_it_is(case: str) -> None:
    optimiser = CASES[case][0]
    parameters, gradients = [torch.tensor([1.0, -2.0])], [torch.tensor([0.5, 0.25])]
    _, state = optimiser.update(parameters, gradients, optimiser.init(parameters), LR)
    lists = {key: [t.clone() for t in value] for key, value in state.items() if key not in ("step", "moving")}
    first = optimiser.update(parameters, gradients, state, LR)
    second = optimiser.update(parameters, gradients, state, LR)
    assert torch.equal(first[0][0], second[0][0])
    assert parameters[0].tolist() == [1.0, -2.0] and gradients[0].tolist() == [0.5, 0.25]
    assert all(torch.equal(lists[key][0], state[key][0]) for key in lists)


def test_the_runs_settings_name_the_optimiser() -> None:
    assert build_optimiser(Train(momentum=0.4, weight_decay=0.2)) == Sgd(0.4, 0.2)
    assert build_optimiser(Train(optimiser="adam", weight_decay=0.2)) == Adam(weight_decay=0.2)
    assert build_optimiser(Train(optimiser="adamw", weight_decay=0.2)) == Adam(weight_decay=0.2, decoupled=True)
    with pytest.raises(InputError, match="'adan' is not known; did you mean 'adam'"):
        build_optimiser(Train(optimiser="adan"))


def rates(schedule: str, rounds: int = 10) -> list[float]:
    return [learning_rate(Train(rounds=rounds, lr=0.8, schedule=schedule), at) for at in range(rounds)]


def test_schedules_follow_their_formulas() -> None:
    assert rates("constant") == [0.8] * 10
    assert rates("linear") == pytest.approx([0.8 * (1 - at / 10) for at in range(10)])
    assert rates("cosine") == pytest.approx([0.4 * (1 + math.cos(math.pi * at / 10)) for at in range(10)])
    assert rates("step:4:0.5") == [0.8] * 4 + [0.4] * 4 + [0.2] * 2
    assert rates("cosine")[0] == rates("linear")[0] == 0.8


def test_after_the_last_round_a_rate_is_never_below_zero() -> None:
    for schedule in ("linear", "cosine"):
        assert learning_rate(Train(rounds=10, schedule=schedule), 25) == 0


@pytest.mark.parametrize("schedule", ["", "cosin", "linear:2", "step", "step:4", "step:0:0.5", "step:4:2", "step:a:b"])
def test_an_unknown_schedule_is_refused_with_what_would_be_right(schedule: str) -> None:
    with pytest.raises(InputError, match=r"train\.schedule '.*' (is not known; |must be (linear|step:EVERY:FACTOR))"):
        learning_rate(Train(schedule=schedule), 0)
