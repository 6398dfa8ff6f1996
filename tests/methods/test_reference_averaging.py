"""Methods that average models, and the bounds, against plain loops of their formulas."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import fields, replace
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from tests.methods import tiny_federation as tiny
from undergrowth.core import Context, Model, Shard
from undergrowth.methods import Central, FedAdagrad, FedAdam, FedAvg, FedAvgM, FedProx, FedYogi, Local, Moon
from undergrowth.methods.fedopt import FedOpt
from undergrowth.models import builder
from undergrowth.runs.config import parse_experiment
from undergrowth.runs.federation_builder import federate


def test_local() -> None:
    """Every device trains its own model, all from the same weights."""
    state, own = tiny.simulate(Local(), 2)
    start = tiny.initial()
    models = Local().models(tiny.TASK, state, own)
    for device in tiny.SHARDS:
        weights = start
        for number in range(2):
            weights = tiny.train(weights, device, tiny.device_context(device, number))
        tiny.assert_same(models[device], weights)


class TinyPopulation:
    devices, name, shape, classes = tuple(tiny.SHARDS), "tiny", (4,), 3

    def train(self, device: str) -> Shard:
        return tiny.SHARDS[device]

    def test(self, device: str) -> Shard:
        return tiny.SHARDS[device].take(torch.arange(2))

    def central_test(self) -> Shard:
        return tiny.SHARDS["a"]

    def size(self, device: str) -> int:
        return len(tiny.SHARDS[device])


def pooled_model(model: Callable[[], nn.Module], out: Path) -> tuple[tiny.Weights, str]:
    """The model of a run of `central` on the samples of all devices, and the name of its server."""
    settings = {"rounds": 2, "epochs": tiny.EPOCHS, "batch": 5, "lr": tiny.LR, "momentum": tiny.MOMENTUM}
    raw = {"train": settings, "run": {"seed": tiny.SEED, "out": str(out), "engine": "serial"}}
    federation = federate(parse_experiment(raw), Central(), TinyPopulation(), model)
    federation.driver.start()
    for _ in federation.driver.rounds():
        pass
    own = {"pool": federation.world.states.get("pool")}
    root = federation.driver.root
    return Central().models(federation.task, root.state, own)["pool"], root.name


EVERYTHING = Shard(*(torch.cat([getattr(shard, part) for shard in tiny.SHARDS.values()]) for part in ("x", "y")))


def first_model(model: Model, server: str) -> tiny.Weights:
    return model.initial(Context(tiny.SEED, server, 0).key("model"))


def descend_on_everything(module: nn.Module, samples: Shard) -> None:
    for number in range(2):
        orders = tiny.shuffles(tiny.device_context("pool", number), len(samples))
        tiny.descend(module, orders, tiny.cross_entropy(samples), batch=5)


def test_central(tmp_path: Path) -> None:
    """One model is trained on the samples of all devices."""
    found, server = pooled_model(tiny.build, tmp_path)
    module = tiny.module_with(first_model(tiny.TASK.model, server))
    descend_on_everything(module, EVERYTHING)
    tiny.assert_same(found, tiny.weights_of(module))


def test_central_with_a_frozen_model_is_the_oracle_of_a_linear_probe(tmp_path: Path) -> None:
    """Only the last layer is trained, on the features of all samples."""
    recipe = builder("mlp", (4,), 3, hidden=(6,), freeze="head")
    model = Model(lambda: recipe().double())
    found, server = pooled_model(model.build, tmp_path)
    head, lower = nn.Linear(6, 3).double(), model.module[:-1]  # type: ignore[index]
    head.load_state_dict({name.removeprefix("head."): w for name, w in first_model(model, server).items()})
    with torch.no_grad():
        features = lower(EVERYTHING.x)
    descend_on_everything(head, Shard(features, EVERYTHING.y))
    tiny.assert_same(found, {f"head.{name}": w for name, w in tiny.weights_of(head).items()})


def federated_average(
    rounds: int, train_device: Callable[[tiny.Weights, str, int], tiny.Weights], server_lr: float = 1.0
):
    """w ← w + η·(Σ n_k·w_k / Σ n − w); buffers are averaged."""
    model = tiny.initial()
    for number in range(rounds):
        average = tiny.mean([train_device(model, device, number) for device in tiny.SHARDS], tiny.SIZES)
        model = {
            name: value + server_lr * (average[name] - value) if name in tiny.TASK.model.parameters else average[name]
            for name, value in model.items()
        }
    return model


@pytest.mark.parametrize("server_lr", [1.0, 0.3])
def test_fedavg(server_lr: float) -> None:
    expected = federated_average(
        2, lambda w, device, number: tiny.train(w, device, tiny.device_context(device, number)), server_lr
    )
    tiny.assert_same(tiny.simulate(FedAvg(server_lr=server_lr), 2)[0]["model"], expected)


@pytest.mark.parametrize("limits", [{}, {"b": 3, "c": 1}], ids=["full work", "partial work"])
def test_fedprox(limits: dict[str, int]) -> None:
    """A straggler sends the model after the steps that it could do, and counts for all its samples."""

    def train_device(received: tiny.Weights, device: str, number: int) -> tiny.Weights:
        loss = tiny.proximal(tiny.SHARDS[device], received, mu=0.7)
        return tiny.train(received, device, tiny.device_context(device, number), loss, steps=limits.get(device))

    task = replace(tiny.TASK, train=replace(tiny.TASK.train, deadline=2.0))
    tiny.assert_same(tiny.simulate(FedProx(mu=0.7), 2, task, limits)[0]["model"], federated_average(2, train_device))


@pytest.mark.parametrize(
    ("kind", "reduced", "random"), [(FedAvg, 1, False), (FedProx, 1, True)], ids=["fedavg+", "fedprox+"]
)
def test_stragglers_that_train_fewer_epochs(kind: type[FedAvg | FedProx], reduced: int, random: bool) -> None:
    """The variants `+` of the thesis: stragglers do E_r epochs, or a random number from E_r to E."""
    settings = {"f_n": 0.34, "reduced_epochs": reduced, "random_epochs": random}
    method = kind(**settings, **({"mu": 0.7} if kind is FedProx else {}))

    def train_device(received: tiny.Weights, device: str, number: int) -> tiny.Weights:
        full = min(tiny.SHARDS, key=lambda each: Context(tiny.SEED, each, number).key("straggler"))
        generator = Context(tiny.SEED, device, number).generator("epochs")
        few = int(torch.randint(reduced, tiny.EPOCHS + 1, (), generator=generator)) if random else reduced
        loss = tiny.proximal(tiny.SHARDS[device], received, 0.7 if kind is FedProx else 0.0)
        epochs = tiny.EPOCHS if device == full else few
        return tiny.train(received, device, tiny.device_context(device, number), loss, epochs=epochs)

    tiny.assert_same(tiny.simulate(method, 2)[0]["model"], federated_average(2, train_device))


# Optimisers at the server ------------------------------------------------------------------------------------


def changes(model: tiny.Weights, number: int) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    """Δ = Σ n_k·(w_k − w) / Σ n of the parameters, and the mean buffers."""
    average = tiny.mean(
        [tiny.train(model, device, tiny.device_context(device, number)) for device in tiny.SHARDS], tiny.SIZES
    )
    parameters = tiny.TASK.model.parameters
    return (
        {name: average[name] - model[name] for name in parameters},
        {name: value for name, value in average.items() if name not in parameters},
    )


def test_fedavgm() -> None:
    model = tiny.initial()
    velocity = {name: torch.zeros_like(model[name]) for name in tiny.TASK.model.parameters}
    for number in range(3):
        delta, buffers = changes(model, number)
        velocity = {name: 0.8 * velocity[name] + delta[name] for name in delta}
        model = {**model, **buffers, **{name: model[name] + 0.5 * velocity[name] for name in delta}}
    tiny.assert_same(tiny.simulate(FedAvgM(momentum=0.8, server_lr=0.5), 3)[0]["model"], model)


def assert_adaptive(method: FedOpt, square: Callable[[Tensor, Tensor], Tensor]) -> None:
    """m ← β1·m + (1 − β1)·Δ; v by `square`; w ← w + η·m / (√v + τ)."""
    model, beta1, tau = tiny.initial(), method.beta1, method.tau
    m = {name: torch.zeros_like(model[name]) for name in tiny.TASK.model.parameters}
    v = {name: torch.full_like(model[name], tau**2) for name in tiny.TASK.model.parameters}
    for number in range(3):
        delta, buffers = changes(model, number)
        m = {name: beta1 * m[name] + (1 - beta1) * delta[name] for name in delta}
        v = {name: square(v[name], delta[name]) for name in delta}
        step = {name: method.server_lr * m[name] / (v[name].sqrt() + tau) for name in delta}
        model = {**model, **buffers, **{name: model[name] + step[name] for name in delta}}
    state, _ = tiny.simulate(method, 3)
    tiny.assert_same(state["square"], v)
    tiny.assert_same(state["mean"], m)
    tiny.assert_same(state["model"], model)


def test_fedadam() -> None:
    assert_adaptive(FedAdam(server_lr=0.05), lambda v, delta: 0.99 * v + 0.01 * delta**2)


def test_fedyogi() -> None:
    assert_adaptive(FedYogi(server_lr=0.05), lambda v, delta: v - 0.01 * delta**2 * torch.sign(v - delta**2))


@pytest.mark.parametrize("options", [{}, {"beta1": 0.6}], ids=["default", "momentum"])
def test_fedadagrad(options: dict[str, float]) -> None:
    """Squares of all changes add up."""
    assert_adaptive(FedAdagrad(server_lr=0.05, **options), lambda v, delta: v + delta**2)


def test_defaults_of_the_server_optimisers_are_those_of_the_paper() -> None:
    def defaults(kind: type[FedOpt]) -> dict[str, object]:
        return {field.name: field.default for field in fields(kind) if field.name != "server_lr"}

    assert defaults(FedAdam) == defaults(FedYogi) == {"beta1": 0.9, "beta2": 0.99, "tau": 1e-3}
    assert defaults(FedAdagrad) == {"beta1": 0.0, "beta2": 0.99, "tau": 1e-3}


# MOON --------------------------------------------------------------------------------------------------------


def moon_features(weights: tiny.Weights, x: Tensor, projection: bool) -> Tensor:
    """z: the activated hidden layer, or what a projection of two layers makes of it."""
    z = functional.relu(functional.linear(x, weights["hidden1.0.weight"], weights["hidden1.0.bias"]))
    if not projection:
        return z
    inner = functional.relu(functional.linear(z, weights["projection.0.weight"], weights["projection.0.bias"]))
    return functional.linear(inner, weights["projection.2.weight"], weights["projection.2.bias"])


@pytest.mark.parametrize("projection", [None, 4], ids=["without projection", "with projection"])
def test_moon(projection: int | None) -> None:
    """The classifier works on the projection, as in the authors' code; z_glob and z_prev are computed in every step."""
    mu, temperature, head = 2.0, 0.5, bool(projection)
    recipe = builder("mlp", (4,), 3, hidden=(6,), projection=projection)
    model = Model(lambda: recipe().double())

    def train_device(received: tiny.Weights, previous: tiny.Weights, device: str, number: int) -> dict[str, Tensor]:
        shard, context = tiny.SHARDS[device], tiny.device_context(device, number)
        w = {name: value.clone().requires_grad_() for name, value in received.items()}
        optimiser = torch.optim.SGD(w.values(), tiny.LR, tiny.MOMENTUM)
        for rows in [
            rows for order in tiny.shuffles(context, len(shard)) for rows in order.split(tiny.TASK.train.batch)
        ]:
            z, z_glob, z_prev = (moon_features(each, shard.x[rows], head) for each in (w, received, previous))
            near, far = (torch.exp(functional.cosine_similarity(z, other) / temperature) for other in (z_glob, z_prev))
            contrastive = -torch.log(near / (near + far)).mean()
            logits = functional.linear(z, w["head.weight"], w["head.bias"])
            optimiser.zero_grad()
            (functional.cross_entropy(logits, shard.y[rows]) + mu * contrastive).backward()
            optimiser.step()
        return {name: value.detach() for name, value in w.items()}

    expected = tiny.initial(model)
    previous: dict[str, dict[str, Tensor]] = {}
    for number in range(3):
        previous = {
            device: train_device(expected, previous.get(device, expected), device, number) for device in tiny.SHARDS
        }
        expected = tiny.mean(list(previous.values()), tiny.SIZES)
    state, own = tiny.simulate(Moon(mu=mu, temperature=temperature), 3, replace(tiny.TASK, model=model))
    tiny.assert_same(state["model"], expected)
    for device, kept in own.items():
        tiny.assert_same(kept["model"], previous[device])
