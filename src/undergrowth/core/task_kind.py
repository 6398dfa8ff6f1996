"""TaskKind: what a model learns in a run. It decides the shape of labels and outputs, the loss and the metrics."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import ClassVar, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

LossFunction = Callable[[Tensor, Tensor], Tensor]  # outputs, labels → a loss for each sample
MetricFunction = Callable[[Tensor, Tensor], object]  # outputs and labels of all samples → one number

FRACTIONS = frozenset({"accuracy", "micro_f1", "macro_f1"})  # metrics from 0 to 1, which tables may show in per cent


class Metric(NamedTuple):
    """A figure of a model on test samples, and whether a higher one is better."""

    name: str
    higher: bool = True

    def improvement(self, value: float) -> float:
        """The value, with the sign changed if a lower one is better."""
        return value if self.higher else -value

    def reaches(self, value: float, target: float) -> bool:
        """Whether `value` is at least as good as `target`."""
        return self.improvement(value) >= self.improvement(target)

    @property
    def is_fraction(self) -> bool:
        return self.name.partition("/")[0] in FRACTIONS


class Losses(NamedTuple):
    """The losses of some samples. The loss of a batch is the sum of `values` divided by the sum of `counts`."""

    values: Tensor  # one per sample
    counts: Tensor | None = None  # what a sample counts; None: 1

    @property
    def means(self) -> Tensor:
        """The loss of each sample on its own."""
        return self.values if self.counts is None else self.values / self.counts.clamp_min(1)


class Guess(NamedTuple):
    """How well a model does that ignores its input. A model that learned something is above `value` by `margin`."""

    metric: str
    value: float
    margin: float
    words: str  # what such a model does
    loss: float  # of a model that has learned nothing


@dataclass(frozen=True)
class TaskKind:
    """What a model learns. `classes` of the data is its number of outputs: classes, targets, labels or tokens.

    `loss` and `own_metrics` are functions of the user: the loss replaces that of the task, the metrics are added to
    those of the task. `main` is the metric that decides which model is better.
    """

    loss: LossFunction | None = None
    own_metrics: Mapping[str, MetricFunction] = field(default_factory=dict, hash=False)
    main: Metric | None = None  # None: the first of `metrics`

    name: ClassVar[str]
    metrics: ClassVar[tuple[Metric, ...]]

    @property
    def metric(self) -> Metric:
        """The metric that decides which model is better."""
        return self.main or self.metrics[0]

    def metric_named(self, name: str) -> Metric:
        """The metric of that name. Of metrics that the task does not know, as of losses and costs, less is better."""
        base = name.partition("/")[0]
        known = {each.name: each for each in (*self.metrics, self.metric)}
        return Metric(name, known[base].higher if base in known else False)

    def losses(self, outputs: Tensor, labels: Tensor) -> Losses:
        """The loss of each sample: that of the user, if there is one, or that of the task."""
        if self.loss is None:
            return self.task_losses(outputs, labels)
        return self.reduce_losses(self.loss(*self.aligned(outputs, labels)), labels)

    def reduce_losses(self, values: Tensor, labels: Tensor) -> Losses:
        """The losses of samples out of the values of the user's function, which may have one for each output."""
        return Losses(values.flatten(1).mean(1) if values.dim() > 1 else values)

    def aligned(self, outputs: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
        """Outputs and labels as functions of the user get them."""
        return outputs, labels

    def task_losses(self, outputs: Tensor, labels: Tensor) -> Losses:
        raise NotImplementedError

    def mean_loss(self, outputs: Tensor, labels: Tensor) -> Tensor:
        """The loss of a batch."""
        losses = self.losses(outputs, labels)
        return losses.values.mean() if losses.counts is None else losses.values.sum() / losses.counts.sum().clamp_min(1)

    def statistics(self, outputs: Tensor, labels: Tensor) -> Tensor:
        """A row of numbers for each sample, whose sums over samples determine the metrics."""
        raise NotImplementedError

    def scores(self, sums: Tensor, labels: Tensor) -> dict[str, float]:
        """The metrics of the task, from the sums of `statistics` over the samples that have these labels."""
        raise NotImplementedError

    def guess(self, labels: Tensor) -> Guess:
        """What a model reaches that ignores its input, on samples with these labels."""
        fraction = _most_common_fraction(labels)
        margin = 2 * (fraction * (1 - fraction) / len(labels)) ** 0.5
        return Guess("accuracy", fraction, margin, "guessing", self._blank_loss(labels))

    def _blank_loss(self, labels: Tensor) -> float:
        """The loss of a model that gives all labels the same probability."""
        return float(torch.tensor(max(2, len(labels.unique()))).log())

    def example_labels(self, samples: int, shape: tuple[int, ...], classes: int, torch_device: torch.device) -> Tensor:
        """Labels of samples with inputs of that shape, for a price."""
        raise NotImplementedError

    def output_problem(self, shape: tuple[int, ...], labels: tuple[int, ...], classes: int) -> str | None:
        """Which shape the outputs of one sample must have, if `shape` is wrong. `labels`: the shape of its label."""
        raise NotImplementedError


@dataclass(frozen=True)
class Classification(TaskKind):
    """One of several classes. Labels: samples, whole numbers from 0."""

    name: ClassVar[str] = "classification"
    metrics: ClassVar[tuple[Metric, ...]] = (Metric("accuracy"),)

    def task_losses(self, outputs: Tensor, labels: Tensor) -> Losses:
        return Losses(F.cross_entropy(outputs, labels, reduction="none"))

    def mean_loss(self, outputs: Tensor, labels: Tensor) -> Tensor:
        # In one operation: faster than the mean of the losses.
        return F.cross_entropy(outputs, labels) if self.loss is None else super().mean_loss(outputs, labels)

    def statistics(self, outputs: Tensor, labels: Tensor) -> Tensor:
        return (outputs.argmax(1) == labels).double()[:, None]

    def scores(self, sums: Tensor, labels: Tensor) -> dict[str, float]:
        return {"accuracy": float(sums[0]) / len(labels)}

    def example_labels(self, samples: int, shape: tuple[int, ...], classes: int, torch_device: torch.device) -> Tensor:
        return torch.zeros(samples, dtype=torch.int64, device=torch_device)

    def output_problem(self, shape: tuple[int, ...], labels: tuple[int, ...], classes: int) -> str | None:
        fits = len(shape) == 1 and shape[0] >= classes
        return None if fits else f"({classes},), one value for each class"


@dataclass(frozen=True)
class Regression(TaskKind):
    """Numbers. Labels: samples, or samples × targets, of floats; the loss is the mean squared error.

    r2 is 1 − Σ(y − z)² / Σ(y − mean of y)², mean over the targets; NaN if the labels of a target are all equal.
    """

    name: ClassVar[str] = "regression"
    metrics: ClassVar[tuple[Metric, ...]] = (Metric("r2"), Metric("mse", False), Metric("mae", False))

    def aligned(self, outputs: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
        # Of the same shape: samples against samples × 1 would broadcast to a matrix.
        return same_type(outputs, labels.reshape(outputs.shape))

    def task_losses(self, outputs: Tensor, labels: Tensor) -> Losses:
        outputs, labels = self.aligned(outputs, labels)
        return Losses((outputs - labels).square().flatten(1).mean(1))

    def statistics(self, outputs: Tensor, labels: Tensor) -> Tensor:
        outputs, labels = self.aligned(outputs, labels)
        errors = (outputs.double() - labels.double()).flatten(1)
        return torch.cat([errors.square(), errors.abs()], 1)

    def scores(self, sums: Tensor, labels: Tensor) -> dict[str, float]:
        squares, absolute = sums.reshape(2, -1).cpu() / len(labels)
        targets = labels.double().reshape(len(labels), -1).cpu()
        variances = targets.var(0, correction=0)
        r2 = torch.where(variances > 0, 1 - squares / variances, torch.nan)
        return {"r2": float(r2.mean()), "mse": float(squares.mean()), "mae": float(absolute.mean())}

    def guess(self, labels: Tensor) -> Guess:
        words = "always naming the mean of the labels"
        return Guess("r2", 0.0, 0.0, words, float(labels.double().var(0, correction=0).mean()))

    def example_labels(self, samples: int, shape: tuple[int, ...], classes: int, torch_device: torch.device) -> Tensor:
        return torch.zeros(samples, classes, device=torch_device)

    def output_problem(self, shape: tuple[int, ...], labels: tuple[int, ...], classes: int) -> str | None:
        return None if shape == (classes,) else f"({classes},), one value for each target"


@dataclass(frozen=True)
class MultiLabel(TaskKind):
    """Several labels, each of which a sample has or not. Labels: samples × labels of 0 and 1.

    The loss is the binary cross-entropy, mean over the labels. A label is predicted where its output is above 0.
    accuracy: samples with all labels right. micro_f1: F1 over all labels together; macro_f1: the mean of the F1 of each
    label, 0 for a label that is neither predicted nor there.
    """

    name: ClassVar[str] = "multi-label"
    metrics: ClassVar[tuple[Metric, ...]] = (Metric("micro_f1"), Metric("macro_f1"), Metric("accuracy"))

    def aligned(self, outputs: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
        return same_type(outputs, labels)

    def task_losses(self, outputs: Tensor, labels: Tensor) -> Losses:
        outputs, labels = self.aligned(outputs, labels)
        return Losses(F.binary_cross_entropy_with_logits(outputs, labels, reduction="none").mean(1))

    def statistics(self, outputs: Tensor, labels: Tensor) -> Tensor:
        predicted, there = outputs > 0, labels > 0.5
        right = (predicted == there).all(1)[:, None]
        return torch.cat([predicted & there, predicted & ~there, ~predicted & there, right], 1).double()

    def scores(self, sums: Tensor, labels: Tensor) -> dict[str, float]:
        both, only_predicted, only_there = sums[:-1].reshape(3, -1).cpu()
        errors = only_predicted + only_there
        micro = 2 * both.sum() / (2 * both.sum() + errors.sum()).clamp_min(1)
        macro = (2 * both / (2 * both + errors).clamp_min(1)).mean()
        return {"micro_f1": float(micro), "macro_f1": float(macro), "accuracy": float(sums[-1]) / len(labels)}

    def _blank_loss(self, labels: Tensor) -> float:
        return float(torch.tensor(2.0).log())

    def example_labels(self, samples: int, shape: tuple[int, ...], classes: int, torch_device: torch.device) -> Tensor:
        return torch.zeros(samples, classes, device=torch_device)

    def output_problem(self, shape: tuple[int, ...], labels: tuple[int, ...], classes: int) -> str | None:
        return None if shape == (classes,) else f"({classes},), one value for each label"


@dataclass(frozen=True)
class NextToken(TaskKind):
    """The next token at every position. Labels: samples × positions, whole numbers from 0; outputs: … × tokens.

    Positions whose label is negative, or is the token `padding`, are not counted. The loss is the cross-entropy, mean
    over the positions that count. accuracy: of these positions; perplexity: exp of their mean cross-entropy.
    """

    padding: int | None = None

    name: ClassVar[str] = "next-token"
    metrics: ClassVar[tuple[Metric, ...]] = (Metric("perplexity", False), Metric("accuracy"))

    def counted(self, labels: Tensor) -> Tensor:
        """Whether each position counts."""
        return labels >= 0 if self.padding is None else (labels >= 0) & (labels != self.padding)

    def reduce_losses(self, values: Tensor, labels: Tensor) -> Losses:
        if values.shape != labels.shape:
            return super().reduce_losses(values, labels)
        counted = self.counted(labels)
        return Losses(values.where(counted, 0).sum(1), counted.sum(1).to(values.dtype))

    def task_losses(self, outputs: Tensor, labels: Tensor) -> Losses:
        target = labels.clamp_min(0)
        return self.reduce_losses(F.cross_entropy(outputs.transpose(1, 2), target, reduction="none"), labels)

    def statistics(self, outputs: Tensor, labels: Tensor) -> Tensor:
        losses, counted = self.task_losses(outputs, labels), self.counted(labels)
        right = ((outputs.argmax(2) == labels) & counted).sum(1)
        assert losses.counts is not None
        return torch.stack([right.double(), losses.values.double(), losses.counts.double()], 1)

    def scores(self, sums: Tensor, labels: Tensor) -> dict[str, float]:
        right, entropy, count = sums.cpu()
        return {"perplexity": float((entropy / count).exp()), "accuracy": float(right / count)}

    def guess(self, labels: Tensor) -> Guess:
        return super().guess(labels[self.counted(labels)])

    def example_labels(self, samples: int, shape: tuple[int, ...], classes: int, torch_device: torch.device) -> Tensor:
        return torch.zeros(samples, shape[0], dtype=torch.int64, device=torch_device)

    def output_problem(self, shape: tuple[int, ...], labels: tuple[int, ...], classes: int) -> str | None:
        fits = len(shape) == 2 and shape[0] == labels[0] and shape[1] >= classes
        return None if fits else f"({labels[0]}, {classes}), one value for each position and token"


TASKS: dict[str, type[TaskKind]] = {kind.name: kind for kind in (Classification, Regression, MultiLabel, NextToken)}


def same_type(outputs: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
    """Both in the more precise of their types: outputs may be bfloat16, or float64."""
    dtype = torch.promote_types(outputs.dtype, labels.dtype)
    return outputs.to(dtype), labels.to(dtype)


def _most_common_fraction(labels: Tensor) -> float:
    """How frequent the most common label is; of matrices, the most common row."""
    _, counts = torch.unique(labels, dim=0, return_counts=True)
    return int(counts.max()) / len(labels)
