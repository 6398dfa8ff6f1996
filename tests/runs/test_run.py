"""Properties of every run: what it learns, what it costs, and that it is reproducible."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import undergrowth as ug
from undergrowth.core import Context

from ..stopping import facts
from .objects import Own, dataset, digest, independent_digest, linear, normed


def test_fedavg_learns_the_digits(out):
    result = ug.run(
        method="fedavg", data="digits", partition="dirichlet:0.1", clients=10, model="cnn", rounds=10, out=out
    )
    assert result.accuracy >= 0.85
    assert result.history[-1]["accuracy"] == result.accuracy
    assert len(result.history) == 10


@pytest.mark.parametrize("method", ["fedadam", "fedyogi", "fedadagrad", "fedavg", "fedavgm"])
def test_a_server_that_does_not_step_leaves_the_model_as_it_was(run, method):
    result = run(method=method, options={"server_lr": 0.0}, data=dataset(), model=linear, rounds=2)
    with torch.random.fork_rng():
        torch.manual_seed(Context(0, "server", 0).key("model"))
        start = linear().state_dict()
    assert all(torch.equal(value, start[name]) for name, value in result.model.state_dict().items())


def test_fedprox_without_pull_is_fedavg_bit_for_bit(run):
    assert digest(run(method="fedprox", options={"mu": 0})) == digest(run(method="fedavg"))
    assert digest(run(method="fedprox", options={"mu": 1.0})) != digest(run(method="fedavg"))


@pytest.mark.parametrize("build", [linear, normed], ids=["linear", "batch norm"])
def test_one_device_and_one_round_of_fedavg_is_plain_training_bit_for_bit(run, build):
    population = Own(sizes=(50,))
    settings = {"batch": 16, "lr": 0.1, "momentum": 0.9, "weight_decay": 0.01, "epochs": 3, "seed": 4}
    result = run(data=population, model=build, rounds=1, **settings)
    with torch.random.fork_rng():
        torch.manual_seed(Context(4, "server", 0).key("model"))
        model = build().train()
    optimiser = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, weight_decay=0.01)
    shard = population.train("phone-0")
    order = Context(4, "phone-0", 0).generator("order")
    for _ in range(3):
        for index in torch.randperm(50, generator=order).split(16):
            optimiser.zero_grad()
            F.cross_entropy(model(shard.x[index]), shard.y[index]).backward()
            optimiser.step()
    trained = result.model.state_dict()
    assert all(torch.equal(trained[name], value) for name, value in model.state_dict().items())
    assert digest(result) == independent_digest(model)


def test_the_same_seed_gives_the_same_run_and_another_seed_another(run):
    first, second, third = run(seed=1, sample=0.5), run(seed=1, sample=0.5), run(seed=2, sample=0.5)
    assert facts(first) == facts(second)
    assert digest(first) != digest(third)


def test_a_run_neither_reads_nor_moves_the_global_random_state(run):
    torch.manual_seed(3)
    before = torch.random.get_rng_state()
    first = run(model=normed, data=dataset())
    assert torch.equal(before, torch.random.get_rng_state())
    torch.manual_seed(4)
    assert digest(run(model=normed, data=dataset())) == digest(first)


@pytest.mark.parametrize("topology", ["tree:2x4", "tree:2x2x2"])
def test_a_tree_gives_what_a_star_gives_at_the_same_price_for_the_devices(run, topology):
    star = run(clients=8, partition="iid")
    deep = run(clients=8, partition="iid", topology=topology)
    state, other = star.model.state_dict(), deep.model.state_dict()
    assert all(torch.allclose(state[name], other[name], rtol=1e-5, atol=1e-6) for name in state)
    assert deep.accuracy == pytest.approx(star.accuracy, abs=0.01)
    assert deep.ledger.flops == star.ledger.flops
    assert deep.ledger.bytes_up > star.ledger.bytes_up  # the inner links carry something too
    for mine, theirs in zip(star.clients, deep.clients, strict=True):
        for name in ("device", "bytes_down", "bytes_up", "flops", "rounds", "samples"):
            assert mine[name] == theirs[name]


def test_bytes_are_those_of_the_model_on_every_link(run):
    result = run(data=dataset(), model=linear, partition="iid", rounds=3)
    model = 4 * (6 * 3 + 3)
    assert result.ledger.bytes_down == 3 * 4 * model
    assert result.ledger.bytes_up == 3 * 4 * (model + 8)  # and the number of samples
    in_tree = run(data=dataset(), model=linear, partition="iid", rounds=3, topology="tree:2x2")
    assert in_tree.ledger.bytes_down == 3 * 6 * model


def test_devices_alone_learn_apart_and_send_no_model(run):
    result = run(method="local", partition="iid", rounds=4)
    assert result.accuracy > 0.3
    assert result.ledger.bytes_up == 4 * 4 * 8
    assert result.ledger.bytes_down == 4 * 4 * 8
    assert [row["rounds"] for row in result.clients] == [4] * 4


def test_all_data_in_one_place_is_one_device_with_all_samples(run):
    result = run(method="central", rounds=4)
    assert [row["device"] for row in result.clients] == ["pool"]
    assert result.clients[0]["samples"] == sum(row["samples"] for row in run().clients)
    assert result.accuracy > run(method="local", rounds=4).accuracy


def test_a_sample_of_the_devices_is_asked_and_only_they_pay(run):
    result = run(clients=10, sample=0.3, partition="iid", rounds=2)
    assert [row["arrived"] for row in result.history] == [3, 3]
    assert sum(row["rounds"] for row in result.clients) == 6
    assert len(list(result.ledger.rows())) == 6


def test_rounds_between_evaluations_repeat_the_last_scores_and_the_end_is_evaluated(run):
    every, some = run(rounds=5), run(rounds=5, evaluate_every=3)
    assert digest(every) == digest(some)
    assert some.accuracy == every.accuracy
    assert some.history[3]["accuracy"] == some.history[2]["accuracy"] == every.history[2]["accuracy"]


def test_the_deadline_of_a_run_makes_slow_devices_late(run):
    timely = run(partition="quantity:1.5", rounds=2)
    slowest = [max(entry.end - entry.start for entry in timely.ledger.rows() if entry.round == 1)]
    result = run(partition="quantity:1.5", rounds=2, deadline=slowest[0] * 0.99)
    assert all(row["late"] >= 1 and row["arrived"] >= 1 for row in result.history)
    assert any(client["late"] == 2 and client["rounds"] == 0 for client in result.clients)


def test_learning_rate_schedules_and_other_optimisers_change_the_result(run):
    digests = {digest(run(**s)) for s in ({}, {"schedule": "cosine"}, {"optimiser": "adam", "lr": 0.01})}
    assert len(digests) == 3


def test_the_model_may_be_any_module(run):
    class Two(nn.Module):
        def __init__(self):
            super().__init__()
            self.first, self.second = nn.Linear(6, 4), nn.Linear(4, 3)

        def forward(self, x):
            return self.second(torch.tanh(self.first(x)))

    result = run(data=dataset(), model=Two, rounds=5, partition="iid")
    assert result.accuracy > 0.6
    assert isinstance(result.model, Two)
