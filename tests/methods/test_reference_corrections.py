"""Methods that correct what differs between devices, and FedSGD, against plain loops of their formulas."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

import undergrowth as ug
from tests.methods import tiny_federation as tiny
from undergrowth.core import InputError, Model, Shard, Task
from undergrowth.learning import Adam, Sgd, sum_of_weights
from undergrowth.methods import FedAvg, FedBN, FedDyn, FedNova, FedSGD, Scaffold

PARAMETERS = tiny.TASK.model.parameters
PLAIN = replace(tiny.TASK, train=replace(tiny.TASK.train, momentum=0.0))
LIMITS = {"b": 3, "c": 1}  # steps of stragglers


def zeros() -> dict[str, Tensor]:
    return {name: torch.zeros_like(value) for name, value in tiny.initial().items() if name in PARAMETERS}


def steps_of(device: str, limits: Mapping[str, int]) -> int:
    return limits.get(device, tiny.EPOCHS * -(-len(tiny.SHARDS[device]) // tiny.TASK.train.batch))


def by_the_deadline(task: Task, limits: Mapping[str, int]) -> Task:
    return replace(task, train=replace(task.train, deadline=2.0)) if limits else task


class Asked:
    """The devices that are asked in each round, two of three, and the contexts in which they work."""

    def __init__(self) -> None:
        self.turns = dict.fromkeys(tiny.SHARDS, 0)

    def contexts(self, number: int) -> dict[str, Any]:
        picked = torch.randperm(3, generator=tiny.server_context(number).generator("sample"))[:2].sort().values
        chosen = [list(tiny.SHARDS)[position] for position in picked.tolist()]
        contexts = {device: tiny.device_context(device, number, self.turns[device]) for device in chosen}
        for device in chosen:
            self.turns[device] += 1
        return contexts


def train_with(
    received: tiny.Weights, device: str, context: Any, added: tiny.Weights, momentum: float, steps: int | None = None
) -> dict[str, Tensor]:
    """Local training in which `added` is added to every gradient."""
    module, shard = tiny.module_with(received), tiny.SHARDS[device]
    for name, parameter in module.named_parameters():
        parameter.register_hook(lambda gradient, name=name: gradient + added[name])
    optimiser = torch.optim.SGD(module.parameters(), tiny.LR, momentum)
    tiny.descend(module, tiny.shuffles(context, len(shard)), tiny.cross_entropy(shard), optimiser, steps=steps)
    return tiny.weights_of(module)


def weights_of_gradients(steps: int, momentum: float) -> float:
    """Σ a_j: the velocity holds the gradient of step j with momentum^(i − j) in every later step i."""
    return sum(momentum ** (i - j) for j in range(steps) for i in range(j, steps))


# SCAFFOLD ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("limits", [{}, LIMITS], ids=["full work", "partial work"])
@pytest.mark.parametrize(("momentum", "weighting"), [(0.0, "uniform"), (tiny.MOMENTUM, "samples")])
def test_scaffold(momentum: float, weighting: str, limits: dict[str, int]) -> None:
    """c_k ← c_k − c + (w − w_k) / (K·lr); w ← w + η·mean(w_k − w); c is the mean of all c_k."""
    server_lr, model, c, controls, asked = (
        0.7,
        tiny.initial(),
        zeros(),
        {device: zeros() for device in tiny.SHARDS},
        Asked(),
    )
    for number in range(4):
        trained: list[tiny.Weights] = []
        sizes: list[float] = []
        for device, context in asked.contexts(number).items():
            c_k, steps = controls[device], steps_of(device, limits)
            added = {name: c[name] - c_k[name] for name in c}
            w_k = train_with(model, device, context, added, momentum, limits.get(device))
            k = weights_of_gradients(steps, momentum) if momentum else steps
            c_plus = {name: c_k[name] - c[name] + (model[name] - w_k[name]) / (k * tiny.LR) for name in c}
            trained.append(w_k)
            sizes.append(len(tiny.SHARDS[device]) if weighting == "samples" else 1)
            controls[device] = c_plus
        average = tiny.mean(trained, sizes)
        model = {
            name: value + server_lr * (average[name] - value) if name in PARAMETERS else average[name]
            for name, value in model.items()
        }
        c = tiny.mean(list(controls.values()), tiny.SIZES if weighting == "samples" else None)
    task = replace(tiny.TASK, train=replace(tiny.TASK.train, sample=0.67, momentum=momentum))
    state, own = tiny.simulate(
        Scaffold(server_lr=server_lr, weighting=weighting), 4, by_the_deadline(task, limits), limits
    )
    tiny.assert_same(state["model"], model)
    tiny.assert_same(state["control"], c)
    for device in tiny.SHARDS:
        tiny.assert_same(own[device]["control"], controls[device])


def test_the_first_round_of_scaffold_is_that_of_fedavg() -> None:
    tiny.assert_same(tiny.simulate(Scaffold(), 1)[0]["model"], tiny.simulate(FedAvg(), 1)[0]["model"])


# FedNova -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("limits", [{}, LIMITS], ids=["full work", "partial work"])
@pytest.mark.parametrize("momentum", [0.0, tiny.MOMENTUM])
def test_fednova(momentum: float, limits: dict[str, int]) -> None:
    """w ← w − lr·τ_eff·Σ p_k·d_k with d_k = (w − w_k) / (lr·‖a_k‖) and τ_eff = Σ p_k·‖a_k‖."""
    model, p = tiny.initial(), {device: len(shard) / sum(tiny.SIZES) for device, shard in tiny.SHARDS.items()}
    a = {device: weights_of_gradients(steps_of(device, limits), momentum) for device in tiny.SHARDS}
    tau = sum(p[device] * a[device] for device in tiny.SHARDS)
    assert len(set(a.values())) > 1
    for number in range(2):
        trained = {
            device: train_with(
                model, device, tiny.device_context(device, number), zeros(), momentum, limits.get(device)
            )
            for device in tiny.SHARDS
        }
        buffers = tiny.mean(list(trained.values()), tiny.SIZES)
        for name in PARAMETERS:
            d = sum(p[k] * (model[name] - trained[k][name]) / (tiny.LR * a[k]) for k in tiny.SHARDS)
            buffers[name] = model[name] - tiny.LR * tau * d
        model = buffers
    task = replace(tiny.TASK, train=replace(tiny.TASK.train, momentum=momentum))
    tiny.assert_same(tiny.simulate(FedNova(), 2, by_the_deadline(task, limits), limits)[0]["model"], model)


def test_fednova_is_fedavg_if_all_do_the_same_number_of_steps() -> None:
    limits = dict.fromkeys(tiny.SHARDS, 3)
    task = by_the_deadline(tiny.TASK, limits)
    average = [tiny.train(tiny.initial(), device, tiny.device_context(device, 0), steps=3) for device in tiny.SHARDS]
    tiny.assert_same(tiny.simulate(FedNova(), 1, task, limits)[0]["model"], tiny.mean(average, tiny.SIZES))


@pytest.mark.parametrize("momentum", [0.0, 0.5, 0.9])
@pytest.mark.parametrize("steps", [0, 1, 7])
def test_sum_of_weights_is_the_sum_over_the_steps_of_sgd(momentum: float, steps: int) -> None:
    assert sum_of_weights(Sgd(momentum), steps) == pytest.approx(weights_of_gradients(steps, momentum))


def test_sum_of_weights_of_dampened_steps_is_their_effect() -> None:
    optimiser, parameters = Sgd(0.9, dampening=0.7), [torch.zeros(1, dtype=torch.float64)]
    state = optimiser.init(parameters)
    for _ in range(4):
        parameters, state = optimiser.update(parameters, [torch.ones(1, dtype=torch.float64)], state, 0.1)
    assert float(parameters[0]) == pytest.approx(-0.1 * sum_of_weights(optimiser, 4))


def test_sum_of_weights_refuses_an_optimiser_whose_steps_are_no_sums() -> None:
    with pytest.raises(InputError, match=r"train\.optimiser 'adamw': this method needs sgd"):
        sum_of_weights(Adam(decoupled=True), 1)


# FedDyn ------------------------------------------------------------------------------------------------------


def test_feddyn() -> None:
    """min L_k − ⟨q_k, θ⟩ + (α/2)·‖θ − w‖²; q_k ← q_k − α·(θ_k − w); h ← h − (α/m)·Σ (θ_k − w); w ← mean − h/α."""
    alpha, model, h, q, asked = 0.3, tiny.initial(), zeros(), {device: zeros() for device in tiny.SHARDS}, Asked()

    def loss(device: str, received: tiny.Weights) -> Any:
        def value(module: nn.Module, rows: Tensor) -> Tensor:
            total = tiny.cross_entropy(tiny.SHARDS[device])(module, rows)
            for name, theta in module.named_parameters():
                total = total - (q[device][name] * theta).sum() + alpha / 2 * (theta - received[name]).square().sum()
            return total

        return value

    for number in range(4):
        contexts = asked.contexts(number)
        trained = {device: tiny.train(model, device, at, loss(device, model)) for device, at in contexts.items()}
        for device, theta in trained.items():
            q[device] = {name: q[device][name] - alpha * (theta[name] - model[name]) for name in h}
        h = {name: h[name] - alpha / 3 * sum(theta[name] - model[name] for theta in trained.values()) for name in h}
        average = tiny.mean(list(trained.values()))
        model = {name: value - h[name] / alpha if name in h else value for name, value in average.items()}
    task = replace(tiny.TASK, train=replace(tiny.TASK.train, sample=0.67))
    state, own = tiny.simulate(FedDyn(alpha=alpha), 4, task)
    tiny.assert_same(state["model"], model)
    tiny.assert_same(state["h"], h)
    for device in tiny.SHARDS:
        tiny.assert_same({name: -value for name, value in own[device]["slope"].items()}, q[device])


# FedBN -------------------------------------------------------------------------------------------------------

NORM = ("lower.1.", "upper.0.")  # the normalisation layers of the tiny model


def test_fedbn() -> None:
    """All layers but the normalisation are averaged; a device continues with its own, first with the initial ones."""
    model, layers = tiny.keep_layers(NORM, 3)
    state, own = tiny.simulate(FedBN(), 3)
    for device in tiny.SHARDS:
        tiny.assert_same(own[device]["layers"], layers[device])
        tiny.assert_same(FedBN().personal(tiny.TASK, state, own[device], device), {**model, **layers[device]})
    tiny.assert_same(FedBN().models(tiny.TASK, state, own)["global"], model)  # with the mean of the devices' layers


def test_a_device_new_to_fedbn_starts_from_the_initial_normalisation() -> None:
    state, _ = tiny.simulate(FedBN(), 2)
    start = tiny.initial()
    found = FedBN().personal(tiny.TASK, state, {}, "new")
    assert found.keys() == start.keys()
    same = {name for name, value in found.items() if torch.equal(value, start[name])}
    # Biases before batch normalisation may stay as they were, because normalisation subtracts them.
    assert same - {"lower.0.bias", "lower.3.bias"} == {name for name in start if name.startswith(NORM)}


def test_a_model_without_normalisation_is_averaged_as_by_fedavg(tmp_path: Path) -> None:
    found = [ug.run(method, model="mlp", clients=3, rounds=2, out=str(tmp_path)) for method in ("fedavg", "fedbn")]
    assert found[0].history[-1]["loss"] == found[1].history[-1]["loss"]


# FedSGD ------------------------------------------------------------------------------------------------------


def linear_task() -> Task:
    return replace(tiny.TASK, model=Model(lambda: nn.Linear(4, 3).double()))


def test_fedsgd() -> None:
    """w ← w − lr·Σ p_k·g_k, and that is gradient descent on the pooled samples."""
    task = linear_task()
    found = tiny.simulate(FedSGD(), 4, task)[0]["model"]
    model = tiny.initial(task.model)
    for _ in range(4):
        gradients = []
        for shard in tiny.SHARDS.values():
            w = {name: value.clone().requires_grad_() for name, value in model.items()}
            functional.cross_entropy(functional.linear(shard.x, w["weight"], w["bias"]), shard.y).backward()
            gradients.append({name: value.grad for name, value in w.items()})
        step = tiny.mean(gradients, tiny.SIZES)
        model = {name: value - tiny.LR * step[name] for name, value in model.items()}
    tiny.assert_same(found, model)

    pooled = Shard(*(torch.cat([getattr(shard, part) for shard in tiny.SHARDS.values()]) for part in ("x", "y")))
    module = tiny.module_with(tiny.initial(task.model), task.model)
    everything = [torch.arange(len(pooled))] * 4
    tiny.descend(
        module, everything, tiny.cross_entropy(pooled), torch.optim.SGD(module.parameters(), tiny.LR), batch=len(pooled)
    )
    tiny.assert_same(found, tiny.weights_of(module))


def test_fedsgd_with_one_batch_per_device_is_fedavg() -> None:
    task = replace(PLAIN, train=replace(PLAIN.train, epochs=1, batch=max(tiny.SIZES)))
    tiny.assert_same(tiny.simulate(FedSGD(), 2, PLAIN)[0]["model"], tiny.simulate(FedAvg(), 2, task)[0]["model"])
