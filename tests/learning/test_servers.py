"""Server rules against their formulas."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from undergrowth.core import Context, Packet, Server, State, Task, WeightedMean, add_upload, find_non_finite
from undergrowth.learning import AveragingServer
from undergrowth.methods import FedAdagrad, FedAdam, FedAvgM, FedYogi

CONTEXT = Context(4, "root", 0)
SERVERS: list[Server] = [AveragingServer(), FedAvgM().server, FedAdam(server_lr=0.1).server]
each_server = pytest.mark.parametrize("server", SERVERS, ids=lambda server: type(server).__name__)


def uploads(task: Task, seed: int, names: tuple[str, ...] | None = None) -> list[Packet]:
    """Three devices' models with different amounts of data."""
    generator = torch.Generator().manual_seed(seed)
    result = []
    for samples in (1.0, 30.0, 5.0):
        tensors = {}
        for name, shape in task.model.shapes.items():
            if names is None or name in names:
                counter = name.endswith("num_batches_tracked")
                drawn = torch.randn(shape, generator=generator)
                tensors[name] = torch.tensor(int(samples)) if counter else drawn
        result.append(Packet(tensors, {"samples": samples}))
    return result


def total_of(packets: list[Packet]) -> Packet:
    total = None
    for at, packet in enumerate(packets):
        total = add_upload(WeightedMean(), total, f"d{at}", packet)
    assert total is not None
    return total


def after(task: Task, server: Server, rounds: int) -> tuple[State, list[State], list[Packet]]:
    """The states of some rounds."""
    state = server.init(task, CONTEXT)
    states, totals = [], []
    for at in range(rounds):
        totals.append(total_of(uploads(task, at)))
        states.append(state)
        state = server.step(task, state, totals[-1], CONTEXT)
    return state, states, totals


def test_averaging_with_rate_one_is_the_mean_bit_for_bit(task: Task) -> None:
    state, _, totals = after(task, AveragingServer(), 1)
    assert all(torch.equal(state["model"][name], totals[0].tensors[name]) for name in task.model.shapes)
    alone = uploads(task, 9)[1]
    state = AveragingServer().step(task, state, add_upload(WeightedMean(), None, "d", alone), CONTEXT)
    assert all(torch.equal(state["model"][name], alone.tensors[name]) for name in task.model.shapes)


def test_averaging_with_another_rate_goes_part_of_the_way(task: Task) -> None:
    state, (start,), (total,) = after(task, AveragingServer(0.3), 1)
    for name in task.model.parameters:
        old = start["model"][name]
        torch.testing.assert_close(state["model"][name], old + 0.3 * (total.tensors[name] - old))
    assert all(torch.equal(state["model"][name], total.tensors[name]) for name in task.model.buffers)


def test_momentum_is_its_formula(task: Task) -> None:
    state, states, totals = after(task, FedAvgM(momentum=0.8, server_lr=0.5).server, 3)
    for name in task.model.parameters:
        w, v = states[0]["model"][name].double(), 0.0
        for total in totals:
            v = 0.8 * v + (total.tensors[name].double() - w)
            w = w + 0.5 * v
        torch.testing.assert_close(state["model"][name].double(), w, rtol=1e-4, atol=1e-5)


METHODS = {"adam": FedAdam, "yogi": FedYogi, "adagrad": FedAdagrad}
RULES: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "adam": lambda v, d: 0.95 * v + 0.05 * d**2,
    "yogi": lambda v, d: v - 0.05 * d**2 * torch.sign(v - d**2),
    "adagrad": lambda v, d: v + d**2,
}


@pytest.mark.parametrize("rule", RULES)
def test_adaptive_rules_are_their_formulas(task: Task, rule: str) -> None:
    state, states, totals = after(task, METHODS[rule](0.1, 0.7, 0.95, 0.01).server, 3)
    for name in task.model.parameters:
        w = states[0]["model"][name].double()
        m, v = torch.zeros_like(w), torch.full_like(w, 0.01**2)
        for total in totals:
            change = total.tensors[name].double() - w
            m = 0.7 * m + 0.3 * change
            v = RULES[rule](v, change)
            w = w + 0.1 * m / (v.sqrt() + 0.01)
        torch.testing.assert_close(state["model"][name].double(), w, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(
    "server",
    [AveragingServer(0.0), FedAvgM(server_lr=0.0).server, *(method(0.0).server for method in METHODS.values())],
    ids=lambda server: type(getattr(server, "options", server)).__name__,
)
def test_a_rate_of_zero_leaves_the_parameters_and_averages_the_buffers(task: Task, server: Server) -> None:
    state, states, totals = after(task, server, 3)
    assert all(torch.equal(state["model"][n], states[0]["model"][n]) for n in task.model.parameters)
    assert all(torch.equal(state["model"][n], totals[-1].tensors[n]) for n in task.model.buffers)
    assert int(state["model"]["first.1.num_batches_tracked"]) == 30, "counters are the largest, not a mean"


@each_server
def test_a_step_leaves_the_old_state_as_it_was(task: Task, server: Server) -> None:
    state = server.step(task, server.init(task, CONTEXT), total_of(uploads(task, 1)), CONTEXT)
    before = {part: {k: v.clone() for k, v in values.items()} for part, values in state.items()}
    server.step(task, state, total_of(uploads(task, 2)), CONTEXT)
    assert all(torch.equal(state[part][k], v) for part, values in before.items() for k, v in values.items())


@each_server
def test_what_nobody_sent_stays(task: Task, server: Server) -> None:
    state = server.init(task, CONTEXT)
    upper = (*task.model.trainable("low"), *task.model.upper_buffers("low"))
    moved = server.step(task, state, total_of(uploads(task, 1, upper)), CONTEXT)["model"]
    assert moved.keys() == state["model"].keys()
    for name, value in state["model"].items():
        assert torch.equal(moved[name], value) is (name not in upper), name


@each_server
def test_when_nobody_had_a_sample_the_model_stays(task: Task, server: Server) -> None:
    state = server.init(task, CONTEXT)
    empty = [Packet(packet.tensors, {"samples": 0.0}) for packet in uploads(task, 1)]
    moved = server.step(task, state, total_of(empty), CONTEXT)["model"]
    assert all(torch.equal(moved[name], value) for name, value in state["model"].items())


@each_server
def test_the_model_keeps_its_type(task: Task, server: Server) -> None:
    state = server.init(task, CONTEXT)
    half = {part: {k: v.half() if v.is_floating_point() else v for k, v in d.items()} for part, d in state.items()}
    moved = server.step(task, half, total_of(uploads(task, 1)), CONTEXT)["model"]
    assert {name: value.dtype for name, value in moved.items()} == {n: v.dtype for n, v in half["model"].items()}


@each_server
def test_uploads_that_are_not_of_the_model_are_refused_by_name(task: Task, server: Server) -> None:
    good = uploads(task, 1)[0]
    assert server.check(task, good) is None
    wrong = {
        "'out.bias' has shape (4,) and the model's is (3,)": {**good.tensors, "out.bias": torch.zeros(4)},
        "'extra' is not a tensor of the model": {**good.tensors, "extra": torch.zeros(1)},
        "it holds no tensor": {},
    }
    for sentence, tensors in wrong.items():
        assert server.check(task, Packet(tensors, good.scalars)) == sentence
    not_a_number = {**good.tensors, "out.bias": torch.tensor([1, torch.nan, 2])}
    assert find_non_finite(Packet(not_a_number, good.scalars)) == "'out.bias' has values that are not finite"
    assert find_non_finite(Packet(good.tensors, {"samples": float("nan")})) == "'samples' is nan"
    assert find_non_finite(good) is None
