"""The loss terms of EWC and KD, and the Fisher information, against plain loops of their formulas, in float64."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import Tensor
from torch.nn import functional

from tests.methods import tiny_federation as tiny
from undergrowth.core import Context, Model, Packet, Regression, Shard, Task
from undergrowth.core.client import Loop
from undergrowth.core.names import TEACHER, WEIGHT
from undergrowth.learning import (
    Consolidation,
    GradientClient,
    ImageAugmentation,
    LossInputs,
    Objective,
    Proximal,
    SoftTargets,
    TaskLoss,
    distillation_loss,
    elastic_loss,
    fisher_information,
    reference,
    weighted_sum,
)
from undergrowth.learning.reference import FISHER
from undergrowth.models import builder

CONTEXT = Context(0, "device", 0)
Weights = dict[str, Tensor]


@pytest.fixture
def double(task: Task) -> Task:
    build = task.model.build
    return replace(task, model=Model(lambda: build().double()))


@pytest.fixture
def samples(shard: Shard) -> Shard:
    return Shard(shard.x.double(), shard.y)


@pytest.fixture
def received(double: Task) -> Weights:
    return double.model.initial(1)


@pytest.fixture
def moved(double: Task, received: Weights) -> Weights:
    generator = torch.Generator().manual_seed(2)
    return {n: received[n] + 0.1 * torch.randn(received[n].shape, generator=generator) for n in double.model.parameters}


def fisher(task: Task, weights: Weights, shard: Shard, split: str | None = None) -> Weights:
    """The Fisher information of a job that received `weights`."""
    client, down = GradientClient(split=split), Packet(weights)
    loop = Loop(client, down, shard, *client.begin(task, down, shard, {}, CONTEXT), CONTEXT)
    (found,) = fisher_information(task, [loop], split)
    return found


@pytest.mark.parametrize(("split", "least"), [(None, 32), ("head", 16), (None, 5)])
def test_the_fisher_information_is_the_mean_squared_gradient_of_single_samples(
    split: str | None, least: int, double: Task, received: Weights, samples: Shard, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In one part of 23 samples, in two or in five."""
    monkeypatch.setattr(reference, "FISHER_SAMPLES", least)
    expected = tiny.fisher(received, samples, double.model)
    found = fisher(double, received, samples, split)
    assert tuple(found) == double.model.trainable(split)
    for name, value in found.items():
        torch.testing.assert_close(value, expected[name])
        assert float(value.abs().max()) > 0


def inputs_at(task: Task, received: Weights, moved: Weights, shard: Shard, **added: Tensor) -> LossInputs:
    output = task.model.run({**received, **moved}, shard.x)
    return LossInputs(task, {"x": shard.x, "y": shard.y, **added}, output, moved, received)


def test_consolidation_is_what_the_formula_says(
    double: Task, received: Weights, moved: Weights, samples: Shard
) -> None:
    information = fisher(double, received, samples)
    named = {FISHER + name: value for name, value in information.items()}
    at = inputs_at(double, {**received, **named}, moved, samples)
    distance = sum((information[name] * (moved[name] - received[name]) ** 2).sum() for name in moved)
    torch.testing.assert_close(Consolidation(50.0)(at), 25.0 * distance)
    torch.testing.assert_close(elastic_loss(50.0)(at), TaskLoss()(at) + 25.0 * distance)


def test_with_a_fisher_information_of_one_it_is_the_proximal_term(
    double: Task, received: Weights, moved: Weights, samples: Shard
) -> None:
    ones = {FISHER + name: torch.ones_like(value) for name, value in moved.items()}
    at = inputs_at(double, {**received, **ones}, moved, samples)
    torch.testing.assert_close(Consolidation(0.7)(at), Proximal(0.7)(at))


@pytest.mark.parametrize(
    ("form", "task_weight", "teacher_weight"),
    [("cited", 0.3, 0.7 * 16), ("printed", 11.2, 0.3), ("averaged", 0.3, 0.7 * 16 / 3)],
)
def test_distillation_is_what_the_formula_says(
    form: str,
    task_weight: float,
    teacher_weight: float,
    double: Task,
    received: Weights,
    moved: Weights,
    samples: Shard,
) -> None:
    teacher = double.model(received, samples.x)
    at = inputs_at(double, received, moved, samples, **{TEACHER: teacher})
    p, q = (logits.div(4).softmax(1) for logits in (teacher, at.output.logits))
    divergence = sum(float((a * (a / b).log()).sum()) for a, b in zip(p, q, strict=True)) / len(samples)
    entropy = float(functional.cross_entropy(at.output.logits, samples.y))
    assert divergence > 1e-4
    assert float(SoftTargets(4.0)(at)) == pytest.approx(divergence)
    found = float(distillation_loss(0.7, 4.0, form)(at))
    assert found == pytest.approx(task_weight * entropy + teacher_weight * divergence)


def test_of_a_regression_distillation_is_the_squared_distance_at_every_temperature(
    double: Task, received: Weights, moved: Weights, samples: Shard
) -> None:
    task = replace(double, kind=Regression())
    teacher = task.model(received, samples.x)
    at = inputs_at(task, received, moved, replace(samples, y=teacher + 1), **{TEACHER: teacher})
    distance = (at.output.logits - teacher).square().mean()
    squared_error = (at.output.logits - teacher - 1).square().mean()
    for temperature in (1.0, 6.0):
        found = distillation_loss(0.7, temperature)(at)
        torch.testing.assert_close(found, 0.3 * squared_error + 0.7 * distance)


def test_the_terms_of_stacked_clients_are_those_of_each(double: Task, received: Weights, moved: Weights) -> None:
    """The vector engine: one long batch, in which the second client has two samples and one that only pads."""
    generator = torch.Generator().manual_seed(3)
    logits, teacher = (torch.randn(6, 3, generator=generator, dtype=torch.float64) for _ in range(2))
    weight = torch.tensor([1 / 3, 1 / 3, 1 / 3, 0.5, 0.5, 0.0], dtype=torch.float64)
    fisher = {FISHER + name: torch.rand(2, *value.shape, dtype=torch.float64) for name, value in moved.items()}
    stacked = {name: torch.stack([value, value + 0.1]) for name, value in moved.items()}
    both = {**{name: value.expand(2, *value.shape) for name, value in received.items()}, **fisher}
    output = replace(double.model.run(received, torch.zeros(6, 4, dtype=torch.float64)), logits=logits)
    objective = Consolidation(3.0) + SoftTargets(2.0)
    found = objective(LossInputs(double, {TEACHER: teacher, WEIGHT: weight}, output, stacked, both, 2))
    for client, rows in enumerate((slice(0, 3), slice(3, 5))):
        own = {name: value[client] for name, value in stacked.items()}
        alone = LossInputs(
            double,
            {TEACHER: teacher[rows]},
            replace(output, logits=logits[rows]),
            own,
            {name: value[client] for name, value in both.items()},
        )
        torch.testing.assert_close(found[client], objective(alone))


def trained(objective: Objective, task: Task, received: Weights, shard: Shard) -> Packet:
    return GradientClient(objective).local(task, Packet(received), shard, {}, CONTEXT)[0]


@pytest.mark.parametrize("alpha", [0.0, 1.0])
def test_distillation_with_all_weight_on_the_task_is_fine_tuning(
    alpha: float, double: Task, received: Weights, samples: Shard
) -> None:
    """cited: the task's weight is 1 − α. printed: it is α·T²."""
    form = "printed" if alpha else "cited"
    found = trained(distillation_loss(alpha, 1.0, form), double, received, samples)
    plain, _ = GradientClient().local(double, Packet(received), samples, {}, CONTEXT)
    assert all(torch.equal(found.tensors[name], value) for name, value in plain.tensors.items())


@pytest.mark.parametrize("split", [None, "head"])
def test_a_client_keeps_near_what_it_received(
    split: str | None, double: Task, received: Weights, samples: Shard
) -> None:
    """Plain training by the formulas: teacher and Fisher information are those of the received model."""
    client = GradientClient(elastic_loss(30.0) + 0.5 * SoftTargets(2.0), split)
    found, _ = client.local(double, Packet(received), samples, {}, CONTEXT)
    _, steps = GradientClient(split=split).begin(double, Packet(received), samples, {}, CONTEXT)
    fisher = tiny.fisher(received, samples, double.model)
    module = double.model.build()
    module.load_state_dict(received)
    module.train()
    if split:
        module.first.eval()
        module.second.eval()
    names = double.model.trainable(split)
    optimiser = torch.optim.SGD([module.get_parameter(name) for name in names], double.train.lr)
    for batch in steps:
        teacher = double.model(received, batch["x"]).div(2).log_softmax(1)
        logits = module(batch["x"])
        loss = functional.cross_entropy(logits, batch["y"])
        loss = loss + 0.5 * functional.kl_div(
            logits.div(2).log_softmax(1), teacher, reduction="batchmean", log_target=True
        )
        for name in names:
            loss = loss + 15.0 * (fisher[name] * (module.get_parameter(name) - received[name]) ** 2).sum()
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
    for name in names:
        torch.testing.assert_close(found.tensors[name], module.get_parameter(name).detach())
    assert not torch.equal(found.tensors["out.weight"], received["out.weight"])


def test_a_strong_pull_returns_a_weight_in_one_step_instead_of_overshooting(
    double: Task, received: Weights, samples: Shard
) -> None:
    """λ·F ≤ 1/lr: with all F above the limit, every step ends at the received weights, but for the plain gradient."""
    client = GradientClient(0.5 * elastic_loss(1e12))
    down = Packet(received)
    carry, steps = client.begin(double, down, samples, {}, CONTEXT)
    (carry,) = client.before_steps(double, [Loop(client, down, samples, carry, steps, CONTEXT)])
    information = tiny.fisher(received, samples, double.model)
    for name in double.model.parameters:
        limit = 1 / (double.train.lr * 0.5e12)
        torch.testing.assert_close(carry["received"][FISHER + name], information[name].clamp_max(limit))
    for batch in steps:
        carry = client.step(double, carry, batch)
    distance = (carry["parameters"]["out.weight"] - received["out.weight"]).abs().max()
    assert 0 < float(distance) < double.train.lr


def test_the_teacher_sees_the_augmented_inputs() -> None:
    augmentation = ImageAugmentation((1, 8, 8), torch.zeros(1, 1, 1), crop=True, flip=True)
    task = Task(Model(builder("logistic", (1, 8, 8), 3)), 3, augmentation=augmentation)
    generator = torch.Generator().manual_seed(1)
    shard = Shard(torch.rand(9, 1, 8, 8, generator=generator), torch.arange(9) % 3)
    weights = task.model.initial(0)
    _, steps = GradientClient(SoftTargets(2.0)).begin(task, Packet(weights), shard, {}, CONTEXT)
    for batch in steps:
        torch.testing.assert_close(
            batch[TEACHER], task.model(weights, augmentation.apply(batch["x"], batch["augment"])).detach()
        )


def test_a_sum_leaves_out_terms_of_weight_zero() -> None:
    assert weighted_sum((1.0, TaskLoss()), (0.0, SoftTargets(2.0))) == TaskLoss()
    assert weighted_sum((0.0, TaskLoss()), (0.5, SoftTargets(2.0))) == 0.5 * SoftTargets(2.0)
