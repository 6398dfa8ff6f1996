"""Ditto, FedPer, APFL and L2GD against plain loops of their formulas, and their limits."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

import undergrowth as ug
from tests.methods import tiny_federation as tiny
from undergrowth.core import Context, InputError, Model, Packet, Steps
from undergrowth.core.names import MODEL
from undergrowth.methods import APFL, L2GD, Ditto, FedAvg, FedPer
from undergrowth.methods.l2gd import draw_counts, first_steps

PARAMETERS = tiny.TASK.model.parameters


# Ditto -------------------------------------------------------------------------------------------------------


def test_ditto() -> None:
    """The federated model is FedAvg's; v_k continues from its last value, towards the model of this round."""
    lam, model, personal = 0.6, tiny.initial(), dict.fromkeys(tiny.SHARDS, tiny.initial())
    for number in range(3):
        contexts = {device: tiny.device_context(device, number) for device in tiny.SHARDS}
        losses = {device: tiny.proximal(shard, model, lam) for device, shard in tiny.SHARDS.items()}
        personal = {k: tiny.train(personal[k], k, at, losses[k], epochs=1) for k, at in contexts.items()}
        model = tiny.mean([tiny.train(model, device, at) for device, at in contexts.items()], tiny.SIZES)
    method = Ditto(lam=lam, personal_epochs=1)
    state, own = tiny.simulate(method, 3)
    tiny.assert_same(state[MODEL], model)
    for device in tiny.SHARDS:
        tiny.assert_same(method.personal(tiny.TASK, state, own[device], device), personal[device])
    tiny.assert_same(method.personal(tiny.TASK, state, {}, "new"), model)


def test_ditto_without_a_pull_gives_the_model_that_a_device_trains_alone() -> None:
    _, own = tiny.simulate(Ditto(lam=0.0), 3)
    for device in tiny.SHARDS:
        alone = tiny.initial()
        for number in range(3):
            alone = tiny.train(alone, device, tiny.device_context(device, number))
        tiny.assert_same(own[device]["model"], alone)


def test_ditto_with_a_strong_pull_gives_the_federated_model() -> None:
    """Steps of length lr·λ = 1 end at the received model, but for lr times a gradient."""
    task = replace(
        tiny.TASK, model=Model(lambda: nn.Linear(4, 3).double()), train=replace(tiny.TASK.train, momentum=0.0)
    )
    before = tiny.simulate(FedAvg(), 2, task)[0][MODEL]
    _, own = tiny.simulate(Ditto(lam=1e7, personal_lr=1e-7), 3, task)
    for device in tiny.SHARDS:
        for name, value in before.items():
            torch.testing.assert_close(own[device]["model"][name], value, rtol=0, atol=1e-6)


def test_ditto_refuses_a_pull_at_which_its_steps_diverge() -> None:
    with pytest.raises(InputError, match=r"method\.lam 30: with a learning rate of 0\.1 .* below 30"):
        tiny.simulate(Ditto(lam=30.0), 1)


def test_a_personal_model_that_is_not_finite_is_refused() -> None:
    method = Ditto(lam=0.0, personal_lr=1e300)
    up, _ = method.client.local(tiny.TASK, Packet(tiny.initial()), tiny.SHARDS["b"], {}, tiny.device_context("b", 0))
    assert "of the personal model, 'lower" in str(method.server.check(tiny.TASK, up))


# FedPer ------------------------------------------------------------------------------------------------------

HEAD = ("head.",)


def test_fedper() -> None:
    """All layers below the split are averaged; a device continues with its own layers above it."""
    model, heads = tiny.keep_layers(HEAD, 3)
    state, own = tiny.simulate(FedPer(), 3)
    for device in tiny.SHARDS:
        tiny.assert_same(own[device]["layers"], heads[device])
        tiny.assert_same(FedPer().personal(tiny.TASK, state, own[device], device), {**model, **heads[device]})
    tiny.assert_same(FedPer().models(tiny.TASK, state, own)["global"], model)  # with the mean of the devices' heads


def test_a_device_new_to_fedper_starts_with_the_initial_head() -> None:
    state, _ = tiny.simulate(FedPer(), 2)
    start = tiny.initial()
    for name, value in FedPer().personal(tiny.TASK, state, {}, "new").items():
        assert not name.startswith(HEAD) or torch.equal(value, start[name])


@pytest.mark.parametrize("topology", ["star", "tree:2x2"])
def test_personal_layers_never_cross_a_link(topology: str, tmp_path: Path) -> None:
    """The ledger: every download and upload has the bytes of the layers below the split, and one number of 8 bytes."""
    settings = {"model": "mlp", "clients": 4, "rounds": 2, "topology": topology, "out": str(tmp_path)}
    rows = list(ug.run("fedper", progress=False, **settings).ledger.rows())  # type: ignore[arg-type]
    weights = ug.load("last", tmp_path).model.state_dict()
    below = sum(value.nbytes for name, value in weights.items() if not name.startswith("head"))
    links = {row.child for row in rows if row.child.startswith("device")}
    assert len(links) == 4 and below < sum(value.nbytes for value in weights.values())
    for row in rows:
        assert row.bytes_down == below + 8
        assert row.bytes_up == below + 8


def test_fedper_refuses_a_model_of_which_nothing_is_shared() -> None:
    task = replace(tiny.TASK, model=Model(lambda: nn.Sequential(nn.Linear(4, 3)).double()))
    with pytest.raises(InputError, match=r"method\.split 'head': no parameter of the model is below this level"):
        tiny.simulate(FedPer(), 1, task)


# APFL --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("adaptive", [False, True])
def test_apfl(adaptive: bool) -> None:
    """v ← v − lr·α·∇F(αv + (1−α)w_k), w_k ← w_k − lr·∇F(w_k); α ← α − lr·⟨∇F, v − w_k⟩ in the first step."""
    task = replace(
        tiny.TASK, model=Model(lambda: nn.Linear(4, 3).double()), train=replace(tiny.TASK.train, momentum=0.0)
    )
    model = tiny.initial(task.model)
    personal, mixtures = (
        dict.fromkeys(tiny.SHARDS, model),
        dict.fromkeys(tiny.SHARDS, torch.tensor(0.7, dtype=torch.float64)),
    )

    def gradient(w: tiny.Weights, x: Tensor, y: Tensor) -> dict[str, Tensor]:
        free = {name: value.detach().requires_grad_() for name, value in w.items()}
        loss = functional.cross_entropy(functional.linear(x, free["weight"], free["bias"]), y)
        return dict(zip(free, torch.autograd.grad(loss, list(free.values())), strict=True))

    for number in range(4):
        trained = []
        for device, shard in tiny.SHARDS.items():
            w, v, alpha = dict(model), dict(personal[device]), mixtures[device]
            orders = tiny.shuffles(tiny.device_context(device, number), len(shard))
            for step, rows in enumerate(rows for order in orders for rows in order.split(tiny.TASK.train.batch)):
                mixed = {name: alpha * v[name] + (1 - alpha) * w[name] for name in w}
                at_mixed, at_w = (gradient(each, shard.x[rows], shard.y[rows]) for each in (mixed, w))
                slope = sum((at_mixed[name] * (v[name] - w[name])).sum() for name in w)
                v = {name: v[name] - tiny.LR * alpha * at_mixed[name] for name in v}
                w = {name: w[name] - tiny.LR * at_w[name] for name in w}
                if adaptive and step == 0:
                    alpha = (alpha - tiny.LR * slope).clamp(0, 1)
            trained.append(w)
            personal[device], mixtures[device] = v, alpha
        model = tiny.mean(trained, tiny.SIZES)
    method = APFL(mixture=0.7, adaptive=adaptive)
    state, own = tiny.simulate(method, 4, task)
    tiny.assert_same(state[MODEL], model)
    for device in tiny.SHARDS:
        tiny.assert_same(own[device]["parameters"], personal[device])
        torch.testing.assert_close(own[device]["mixture"], mixtures[device])
        assert (float(mixtures[device]) != 0.7) == adaptive
        alpha = mixtures[device]
        mixed = {name: alpha * personal[device][name] + (1 - alpha) * model[name] for name in model}
        tiny.assert_same(method.personal(task, state, own[device], device), mixed)
    tiny.assert_same(method.personal(task, state, {}, "new"), model)


def test_apfl_trains_the_federated_model_of_fedavg_whatever_the_mixture() -> None:
    state, own = tiny.simulate(APFL(mixture=0.3), 2)
    tiny.assert_same(state[MODEL], tiny.simulate(FedAvg(), 2)[0][MODEL])
    assert own["a"]["buffers"].keys() == set(tiny.TASK.model.buffers)


@pytest.mark.parametrize("mixture", [0.0, 1.0])
def test_a_mixture_of_one_is_training_alone_and_one_of_zero_is_the_federated_model(mixture: float) -> None:
    state, own = tiny.simulate(APFL(mixture=mixture), 2)
    for device in tiny.SHARDS:
        found = APFL(mixture=mixture).personal(tiny.TASK, state, own[device], device)
        alone = tiny.initial()
        for number in range(2):
            alone = tiny.train(alone, device, tiny.device_context(device, number))
        expected = alone if mixture else state[MODEL]
        tiny.assert_same({n: found[n] for n in PARAMETERS}, {n: expected[n] for n in PARAMETERS})


# L2GD --------------------------------------------------------------------------------------------------------


def test_l2gd() -> None:
    """The steps of the paper one by one: some towards the mean, then some of training; all devices share the coin."""
    lam, p = 0.8, 0.3
    theta = tiny.LR * (1 - p) * lam / p
    mean_model, models, counts = tiny.initial(), dict.fromkeys(tiny.SHARDS, tiny.initial()), set()
    for number in range(4):
        steps, moves = (int(count) for count in draw_counts(p, tiny.server_context(number)))
        counts.add((steps, moves))
        for device, shard in tiny.SHARDS.items():
            x = dict(models[device])
            for _ in range(moves):
                x = {
                    name: value - theta * (value - mean_model[name]) if value.is_floating_point() else value
                    for name, value in x.items()
                }
            epochs = -(-steps // max(1, len(shard) // tiny.TASK.train.batch))
            models[device] = tiny.train(x, device, tiny.device_context(device, number), epochs=epochs, steps=steps)
        mean_model = tiny.mean(list(models.values()))
    method = L2GD(lam=lam, p=p)
    state, own = tiny.simulate(method, 4)
    assert len(counts) > 1 and max(steps for steps, _ in counts) > 2
    tiny.assert_same(state[MODEL], mean_model)
    for device in tiny.SHARDS:
        tiny.assert_same(method.personal(tiny.TASK, state, own[device], device), models[device])
    tiny.assert_same(method.personal(tiny.TASK, state, {}, "new"), mean_model)


def test_l2gd_draws_numbers_of_steps_with_the_probabilities_of_the_coin() -> None:
    """Runs of tails in single tosses of a coin have 1/p tails on average, and runs of heads 1/(1 − p) heads."""
    tosses = torch.rand(20000, generator=torch.Generator().manual_seed(0)) < 0.2
    changes = int((tosses[1:] != tosses[:-1]).sum()) / 2
    expected = [float((~tosses).sum()) / changes, float(tosses.sum()) / changes]
    draws = torch.tensor([draw_counts(0.2, Context(0, "root", number)) for number in range(2000)])
    assert draws.min() == 1
    assert draws.mean(0).tolist() == pytest.approx(expected, rel=0.1)


def test_l2gd_without_a_pull_leaves_the_devices_alone() -> None:
    _, own = tiny.simulate(L2GD(lam=0.0, p=0.5), 3)
    models = [own[device]["model"]["head.weight"] for device in tiny.SHARDS]
    assert not torch.allclose(models[0], models[1], atol=1e-3)


def test_l2gd_refuses_a_step_beyond_the_mean() -> None:
    with pytest.raises(InputError, match=r"method\.lam 5: with p 0\.2 and a learning rate of 0\.1, .* at most 2\.5"):
        tiny.simulate(L2GD(lam=5.0, p=0.2), 1)


def test_the_first_steps_end_within_an_epoch() -> None:
    orders = (torch.arange(5), torch.arange(5).flip(0))
    visits = {"draw": (torch.arange(5) * 10, torch.arange(5) * 100)}
    steps = Steps({"x": torch.arange(5)}, orders, 2, visits)
    for count in range(1, 7):
        found = list(first_steps(steps, count))
        assert len(found) == count
        for one, other in zip(found, steps, strict=False):
            assert torch.equal(one["x"], other["x"]) and torch.equal(one["draw"], other["draw"])
