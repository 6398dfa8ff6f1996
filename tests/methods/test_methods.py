"""Properties of every method, and special cases in which one method equals another, on nodes driven by hand."""

from __future__ import annotations

from dataclasses import FrozenInstanceError, fields
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from undergrowth.core import Answer, Ask, Context, Method, Model, ModelWeights, Node, Receipt, Shard, State, Task, Train
from undergrowth.methods import METHODS, Central, FedAdam, FedAvg, FedAvgM, FedProx, Local


class Net(nn.Sequential):
    levels = {"low": "1", "mid": "2", "up": "2", "head": "3"}  # noqa: RUF012

    def __init__(self) -> None:
        super().__init__(nn.Linear(4, 6), nn.BatchNorm1d(6), nn.ReLU(), nn.Linear(6, 3))


def build() -> nn.Module:
    return Net()


@pytest.fixture
def task() -> Task:
    train = Train(rounds=3, epochs=2, batch=4, lr=0.1, momentum=0.5)
    return Task(Model(build), classes=3, train=train, public=shard(4, 12))


def shard(seed: int, count: int) -> Shard:
    generator = torch.Generator().manual_seed(seed)
    return Shard(torch.randn(count, 4, generator=generator), torch.randint(0, 3, (count,), generator=generator))


SHARDS = {"a": shard(1, 8), "b": shard(2, 15), "c": shard(3, 4)}


def play(
    method: Method, task: Task, shards: dict[str, Shard] = SHARDS, rounds: int = 3
) -> tuple[State, dict[str, Any]]:
    """Returns the state of the root and the states of the devices after some rounds of a star."""
    root = Node("root", method.server, task, tuple(shards), rounds, seed=9)
    own: dict[str, Any] = {device: {} for device in shards}
    root.start()
    while not root.done:
        for send in [command for command in root.advance() if isinstance(command, Ask)]:
            context = Context(9, send.child, send.id.round, send.id.turn)
            up, own[send.child] = method.client.local(task, send.packet, shards[send.child], own[send.child], context)
            assert root.receive(Answer(send.id, up)) is Receipt.TAKEN
    return root.state, own


def same(a: dict[str, Tensor], b: dict[str, Tensor]) -> bool:
    return a.keys() == b.keys() and all(torch.equal(a[name], b[name]) for name in a)


@pytest.mark.parametrize("name", METHODS)
def test_every_method_changes_the_model_to_finite_values_and_is_frozen(task: Task, name: str) -> None:
    method = METHODS[name]()
    state, own = play(method, task)
    models = method.models(task, state, own)
    start = task.model.initial(Context(9, "root", 0).key("model"))
    trained = [found.weights if isinstance(found, ModelWeights) else found for found in models.values()]
    assert trained and all(torch.isfinite(w[k].double()).all() for w in trained for k in w)
    personal = method.personal(task, state, own["a"], "a")
    changed = [personal] if name == "adapt" else trained  # `adapt` leaves the federated model as it is
    assert not any(same(dict(weights), start) for weights in changed)
    assert personal.keys() == task.model.shapes.keys()
    for option in fields(method):  # type: ignore[arg-type]
        with pytest.raises(FrozenInstanceError):
            setattr(method, option.name, 1.0)


def test_fedprox_equals_fedavg_only_without_its_proximal_term(task: Task) -> None:
    average, _ = play(FedAvg(), task)
    assert same(play(FedProx(mu=0.0), task)[0]["model"], average["model"])
    assert not same(play(FedProx(mu=1.0), task)[0]["model"], average["model"])


def test_fedavgm_without_momentum_is_fedavg(task: Task) -> None:
    average, momentum = play(FedAvg(), task)[0]["model"], play(FedAvgM(momentum=0.0), task)[0]["model"]
    torch.testing.assert_close(momentum, average, rtol=1e-4, atol=1e-6)


def test_fedadam_with_a_learning_rate_of_zero_keeps_the_parameters(task: Task) -> None:
    state, _ = play(FedAdam(server_lr=0.0), task)
    start = task.model.initial(Context(9, "root", 0).key("model"))
    assert all(torch.equal(state["model"][name], start[name]) for name in task.model.parameters)


def test_one_round_of_fedavg_on_one_device_is_plain_training(task: Task) -> None:
    state, _ = play(FedAvg(), task, {"b": SHARDS["b"]}, rounds=1)
    net = build()
    net.load_state_dict(task.model.initial(Context(9, "root", 0).key("model")))
    optimiser = torch.optim.SGD(net.parameters(), 0.1, momentum=0.5)
    generator = Context(9, "b", 0).generator("order")
    for _ in range(2):
        for rows in torch.randperm(15, generator=generator).split(4):
            optimiser.zero_grad()
            functional.cross_entropy(net(SHARDS["b"].x[rows]), SHARDS["b"].y[rows]).backward()
            optimiser.step()
    assert same(state["model"], dict(net.state_dict()))


def test_local_devices_continue_from_their_own_models(task: Task) -> None:
    state, own = play(Local(), task)
    models = Local().models(task, state, own)
    assert models.keys() == SHARDS.keys() and not same(dict(models["a"]), dict(models["b"]))
    _, without_others = play(Local(), task, {"a": SHARDS["a"]})
    assert same(without_others["a"]["model"], dict(models["a"])), "other devices do not change it"
    assert not Local.pooled and Central.pooled


def test_local_shows_the_initial_model_before_the_first_round(task: Task) -> None:
    root = Node("root", Local().server, task, ("a",), 1, seed=9)
    root.start()
    assert Local().models(task, root.state, {}).keys() == {"start"}
    assert same(dict(Local().personal(task, root.state, {}, "a")), dict(Local().models(task, root.state, {})["start"]))
