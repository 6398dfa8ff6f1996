"""The losses and metrics of each task, against plain formulas and scikit-learn."""

from __future__ import annotations

import math

import pytest
import torch
import torch.nn.functional as F
from sklearn import metrics as reference
from torch import Tensor

from undergrowth.core import Classification, Metric, MultiLabel, NextToken, Regression, TaskKind

GENERATOR = torch.Generator().manual_seed(3)


def normal(*shape: int) -> Tensor:
    return torch.randn(*shape, generator=GENERATOR, dtype=torch.float64)


def scores(kind: TaskKind, outputs: Tensor, labels: Tensor) -> dict[str, float]:
    return kind.scores(kind.statistics(outputs, labels).sum(0), labels)


@pytest.mark.parametrize("targets", [1, 3])
def test_regression(targets: int) -> None:
    z, y = normal(20, targets), normal(20, targets)
    labels = y[:, 0] if targets == 1 else y
    found = scores(Regression(), z, labels)
    assert found["mse"] == pytest.approx(((z - y) ** 2).sum().item() / (20 * targets))
    assert found["mae"] == pytest.approx((z - y).abs().sum().item() / (20 * targets))
    assert found["r2"] == pytest.approx(reference.r2_score(y, z))
    assert Regression().mean_loss(z, labels).item() == pytest.approx(found["mse"])
    assert Regression().losses(z, labels).values.shape == (20,)


def test_r2_of_equal_labels_is_not_defined() -> None:
    assert math.isnan(scores(Regression(), normal(4, 1), torch.ones(4))["r2"])


def test_multi_label() -> None:
    z, y = normal(30, 4), (normal(30, 4) > 0.5).float()
    z[:, 3], y[:, 3] = -1, 0  # never there, and never predicted
    found, predicted = scores(MultiLabel(), z, y), (z > 0).int()
    for average in ("micro", "macro"):
        expected = reference.f1_score(y.int(), predicted, average=average, zero_division=0)
        assert found[f"{average}_f1"] == pytest.approx(expected)
    assert found["accuracy"] == reference.accuracy_score(y.int(), predicted)
    p = 1 / (1 + (-z).exp())
    entropy = -(y * p.log() + (1 - y) * (1 - p).log()).mean()
    assert MultiLabel().mean_loss(z, y).item() == pytest.approx(entropy.item())


@pytest.mark.parametrize("padding", [None, 2])
def test_next_token(padding: int | None) -> None:
    kind, z = NextToken(padding=padding), normal(6, 5, 7)
    y = torch.randint(0, 7, (6, 5), generator=GENERATOR)
    y[0, 3:], y[1] = -1, -1  # a text that ends, and one that is all padding
    counted = [(i, t) for i in range(6) for t in range(5) if y[i, t] >= 0 and y[i, t] != padding]
    losses = [-math.log(z[i, t].softmax(0)[y[i, t]].item()) for i, t in counted]
    mean = sum(losses) / len(losses)
    assert kind.mean_loss(z, y).item() == pytest.approx(mean)
    right = sum(int(z[i, t].argmax() == y[i, t]) for i, t in counted)
    assert scores(kind, z, y) == pytest.approx({"perplexity": math.exp(mean), "accuracy": right / len(counted)})
    assert kind.losses(z, y).means[1] == 0  # nothing counts


def test_the_loss_of_the_user_replaces_that_of_the_task() -> None:
    z, y = normal(8, 1), normal(8)
    huber = Regression(lambda outputs, labels: F.huber_loss(outputs, labels, reduction="none"))
    gap = (z[:, 0] - y).abs()
    expected = torch.where(gap < 1, gap**2 / 2, gap - 0.5)
    torch.testing.assert_close(huber.losses(z, y).values, expected)
    assert huber.mean_loss(z, y).item() == pytest.approx(expected.mean().item())
    tokens = torch.tensor([[1, 0, -1], [2, -1, -1]])
    ones = NextToken(lambda outputs, labels: torch.full(labels.shape, 3.0))
    values, counts = ones.losses(normal(2, 3, 4), tokens)  # one value per position: padding does not count
    assert values.tolist() == [6, 3] and counts is not None and counts.tolist() == [2, 1]


def test_metrics_know_their_direction() -> None:
    assert Classification().metric == Metric("accuracy") and NextToken().metric == Metric("perplexity", False)
    assert Regression().metric_named("r2/devices").higher and not Regression().metric_named("loss").higher
    own = Regression(main=Metric("gain", True))
    assert own.metric_named("gain").higher
    assert Metric("perplexity", False).reaches(4.0, 5.0) and not Metric("r2").reaches(0.4, 0.5)
