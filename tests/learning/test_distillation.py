"""Learning from other models: attention maps, distances of logits, prototypes, and training at the server."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from tests.methods.test_fedft import digits
from undergrowth.core import Classification, Context, Model, MultiLabel, NextToken, Output, Regression, Task, Train
from undergrowth.core.names import TEACHER, WEIGHT
from undergrowth.learning import CrossEntropy, Distillation, train_on_server
from undergrowth.learning.distillation import consensus, draw_public, draw_seed, logit_distances
from undergrowth.learning.features import LowerModel, UpperModel
from undergrowth.learning.objectives import LossInputs, divergences
from undergrowth.methods.fedat.server import FORMS, AttentionTransfer, attention, attention_of
from undergrowth.methods.fedkad import CLASSES, PROTOTYPES, PrototypeCrossEntropy, mean_prototypes, prototypes_of
from undergrowth.models import builder


def digits_task(name: str = "cnn", **options: object) -> Task:
    return Task(Model(builder(name, (1, 8, 8), 10, **options)), 10, Train(batch=16))


def random(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def test_an_attention_map_is_what_the_formula_says() -> None:
    features = random(3, 5, 2, 4)
    for sample, found in zip(features, attention(features), strict=False):
        plain = torch.zeros(2, 4)
        for channel in sample:
            plain += channel.abs() ** 2
        flat = plain.reshape(8)
        torch.testing.assert_close(found, flat / (flat**2).sum().sqrt())
    torch.testing.assert_close(attention(random(3, 6)), F.normalize(random(3, 6) ** 2))  # flat: one channel
    assert not attention(torch.zeros(1, 2, 3, 3)).isnan().any()


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("model", ["cnn", "wrn-10-1"])
def test_the_attention_loss_is_what_the_formula_says(model: str, form: str) -> None:
    task, shard = digits_task(model), digits(6)
    teacher, student = task.model.initial(1), task.model.initial(2)
    levels = ["low", "mid", "up"]
    batch = {"x": shard.x, **attention_of(task, teacher, shard.x, levels)}
    output = task.model.run(student, shard.x, maps=levels)
    found = AttentionTransfer(levels, form)(LossInputs(task, batch, output, {}, {}))
    theirs = task.model.run(teacher, shard.x, maps=levels).maps
    expected = 0.0
    for place in range(6):
        for level in levels:
            mine, other = (maps[level][place].pow(2).sum(0).flatten() for maps in (output.maps, theirs))
            squares = [float(gap) ** 2 for gap in mine / mine.norm() - other / other.norm()]
            expected += (sum(squares) ** 0.5 if form == "printed" else sum(squares) / len(squares)) / 6
    assert float(found) == pytest.approx(expected, rel=1e-5) and expected > 0.01


@pytest.mark.parametrize("form", FORMS)
def test_the_attention_loss_of_stacked_clients_is_that_of_each(form: str) -> None:
    """The vector engine: one long batch, in which the second client has two samples and one that only pads."""
    task, objective = digits_task(), AttentionTransfer(("low", "up"), form)
    maps = {level: random(6, 3, 2, 2, seed=seed) for seed, level in enumerate(objective.maps)}
    teacher = {f"attention/{level}": attention(random(6, 5, 2, 2, seed=9)) for level in objective.maps}

    def loss(rows: list[int], clients: int | None = None, **extra: Tensor) -> Tensor:
        output = Output(torch.zeros(len(rows), 10), {level: value[rows] for level, value in maps.items()}, {})
        batch = {name: value[rows] for name, value in teacher.items()}
        return objective(LossInputs(task, {**batch, **extra}, output, {}, {}, clients))

    weight = torch.tensor([1 / 3, 1 / 3, 1 / 3, 1 / 2, 1 / 2, 0.0])
    together = loss([0, 1, 2, 3, 4, 5], 2, **{WEIGHT: weight})
    torch.testing.assert_close(together, torch.stack([loss([0, 1, 2]), loss([3, 4])]))


def test_distances_of_logits() -> None:
    z, t = random(4, 3), random(4, 3, seed=1)
    chances = t.softmax(1)
    torch.testing.assert_close(logit_distances("l1", z, t, Classification()), (z - t).abs().sum(1) / 3)
    torch.testing.assert_close(logit_distances("l2", z, t, Classification()), ((z - t) ** 2).sum(1) / 3)
    torch.testing.assert_close(
        logit_distances("ce", z, t, Classification()),
        -(chances * (z.exp() / z.exp().sum(1, keepdim=True)).log()).sum(1),
    )


def test_distances_of_other_tasks() -> None:
    generator = torch.Generator().manual_seed(8)
    z, t = torch.randn(2, 5, 4, 3, generator=generator, dtype=torch.float64)  # positions × tokens
    p, q = t.softmax(2), z.softmax(2)
    entropies = -(p * q.log()).sum(2).mean(1)
    torch.testing.assert_close(logit_distances("ce", z, t, NextToken()), entropies)
    torch.testing.assert_close(logit_distances("l1", z, t, NextToken()), (z - t).abs().sum((1, 2)) / 12)
    torch.testing.assert_close(divergences(z, t, NextToken()), (p * (p / q).log()).sum(2).mean(1))
    z, t = z[:, 0], t[:, 0]
    for loss in ("l1", "l2", "ce"):  # outputs of a regression are no logits
        torch.testing.assert_close(logit_distances(loss, z, t, Regression()), ((z - t) ** 2).sum(1) / 3)
    torch.testing.assert_close(divergences(z, t, Regression()), ((z - t) ** 2).sum(1) / 3)
    p, q = 1 / (1 + (-t).exp()), 1 / (1 + (-z).exp())
    binary = -(p * q.log() + (1 - p) * (1 - q).log())
    torch.testing.assert_close(logit_distances("ce", z, t, MultiLabel()), binary.sum(1) / 3)
    divergence = p * (p / q).log() + (1 - p) * ((1 - p) / (1 - q)).log()
    torch.testing.assert_close(divergences(z, t, MultiLabel()), divergence.sum(1))


def test_a_consensus_is_the_mean_of_logits() -> None:
    logits = [random(5, 3, seed=seed) for seed in range(4)]
    torch.testing.assert_close(consensus(logits), sum(logits) / 4)


def test_who_has_the_seed_draws_the_same_samples() -> None:
    public, seed = digits(50), draw_seed(Context(0, "server", 3))
    assert torch.equal(draw_public(public, 20, seed), draw_public(public, 20, float(seed)))
    assert len(draw_public(public, 20, seed)) == 20 and len(draw_public(public, 500, seed)) == 50
    assert not torch.equal(draw_public(public, 20, seed), draw_public(public, 20, draw_seed(Context(0, "server", 4))))


def test_prototypes_are_the_means_of_classes() -> None:
    task, shard = digits_task(), digits(60)
    weights = task.model.initial(0)
    kept = shard.take((shard.y != 4).nonzero().flatten())
    maps, counts = prototypes_of(task, weights, kept, "up")
    assert maps.shape == (10, 64, 2, 2) and counts.sum() == len(kept)
    with torch.no_grad():
        features = task.model.run(weights, kept.x, stop="up").logits
    for label in range(10):
        if label != 4:
            torch.testing.assert_close(maps[label], features[kept.y == label].mean(0), rtol=1e-4, atol=1e-5)
    assert counts[4] == 0 and maps[4].abs().sum() == 0


def test_a_class_that_a_device_does_not_have_is_left_out_of_the_mean() -> None:
    task, shard = digits_task(), digits(80)
    weights = task.model.initial(0)
    without = shard.take((shard.y != 4).nonzero().flatten())
    neither = shard.take((shard.y < 3).nonzero().flatten())
    sent = [prototypes_of(task, weights, each, "up") for each in (shard, without, neither)]
    maps, classes = mean_prototypes(sent)
    assert classes.tolist() == list(range(10))
    torch.testing.assert_close(maps[4], sent[0][0][4])
    torch.testing.assert_close(maps[7], (sent[0][0][7] + sent[1][0][7]) / 2)
    assert mean_prototypes(sent[2:])[1].tolist() == [0, 1, 2], "a class that nobody has has no prototype"


def test_the_prototype_loss_trains_what_is_above_the_level() -> None:
    task = digits_task("wrn-10-1")
    weights = task.model.initial(0)
    maps, classes = random(3, 64, 2, 2), torch.tensor([1, 5, 6])
    trained = {name: weights[name].clone().requires_grad_() for name in task.model.parameters}
    output = task.model.run(weights, digits(4).x, training=True)
    received = {**weights, PROTOTYPES: maps, CLASSES: classes}
    loss = PrototypeCrossEntropy("up")(LossInputs(task, {}, output, trained, received))
    module = task.model.build().eval()
    module.load_state_dict({**weights, **output.buffers})
    with torch.no_grad():
        expected = F.cross_entropy(module[4:](maps), classes)
    torch.testing.assert_close(loss.detach(), expected)
    loss.backward()
    touched = {name for name, value in trained.items() if value.grad is not None}
    assert touched == set(task.model.trainable("up"))


def test_training_at_the_server_is_plain_training_bit_for_bit() -> None:
    task, public, context = digits_task("mlp"), digits(40), Context(3, "server", 2)
    start, teacher = task.model.initial(0), random(40, 10)
    data = {"x": public.x, "y": public.y, TEACHER: teacher}
    after = train_on_server(
        task, start, data, CrossEntropy() + 0.5 * Distillation("l2"), context, lr=0.1, epochs=2, batch=16
    )
    module = task.model.build()
    module.load_state_dict(start)
    optimiser = torch.optim.SGD(module.parameters(), 0.1)
    generator = context.generator("order")
    for _ in range(2):
        for rows in torch.randperm(40, generator=generator).split(16):
            optimiser.zero_grad()
            logits = module(public.x[rows])
            distance = (logits - teacher[rows]).square().mean(1).mean()
            (F.cross_entropy(logits, public.y[rows]) + 0.5 * distance).backward()
            optimiser.step()
    assert all(torch.equal(after[name], value) for name, value in module.state_dict().items())


def test_training_the_lower_part_leaves_the_upper_one_and_its_statistics() -> None:
    task, public = digits_task("wrn-10-1"), digits(24)
    start = task.model.initial(0)
    lower = LowerModel(task.model, "mid")
    assert lower.inside == ("low", "mid")
    objective = CrossEntropy() + 1.0 * AttentionTransfer(("low", "mid"))
    data = {"x": public.x, "y": public.y, **attention_of(task, task.model.initial(1), public.x, ("low", "mid"))}
    settings = {"lr": 0.1, "epochs": 1, "batch": 8}
    after = train_on_server(replace(task, model=lower), start, data, objective, Context(0, "server", 0), **settings)  # type: ignore[arg-type]
    upper = {*task.model.trainable("mid"), *task.model.upper_buffers("mid")}
    for name, value in start.items():
        assert torch.equal(after[name], value) == (name in upper), name


def test_the_frozen_part_above_has_the_precision_of_training() -> None:
    task, x = digits_task("wrn-10-1"), digits(6).x
    weights = task.model.initial(0)
    exact, mixed = (
        LowerModel(task.model.with_precision(bf16), "low").run(weights, x, training=True) for bf16 in (False, True)
    )
    assert (exact.logits.dtype, mixed.logits.dtype) == (torch.float32, torch.bfloat16)
    torch.testing.assert_close(mixed.logits.float(), exact.logits, rtol=0.1, atol=0.1)


def test_views_of_a_model_are_equal_if_they_run_it_in_the_same_way() -> None:
    one, other = digits_task("wrn-10-1").model, digits_task("wrn-10-1").model
    for view in (UpperModel, LowerModel):
        assert view(one, "low") == view(one, "low") and hash(view(one, "low")) == hash(view(one, "low"))
        assert view(one, "low") not in (view(one, "mid"), view(other, "low"), one)
        assert view(one, "low") != view(one.with_precision(True), "low")
    assert UpperModel(one, "low") != LowerModel(one, "low")
