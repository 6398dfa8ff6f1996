"""The classes that a device's model predicts after a full and after a few-shot update (Shi, Sheffield thesis, §4.3.2).

Both updates start from the final model of the run. The full update trains the whole model on the device with the run's
settings. The few-shot update trains only the classifier, on a few samples of each class that the device has. The
predicted classes on the central test set are compared with the true ones.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from statistics import fmean

import torch
from torch import Tensor

from undergrowth.core import InputError
from undergrowth.learning import FewShotSelector, GradientClient, Sgd, logits_of
from undergrowth.report.analyses.analysis import Analysis, Numbers, RunNumbers, add_run_heading, heat_map, round_numbers
from undergrowth.report.analyses.reopened_run import ReopenedRun
from undergrowth.report.figures import Figure
from undergrowth.report.html import Page
from undergrowth.report.run_record import RunRecord
from undergrowth.report.tables import score

SHOTS = 10
# The settings of the thesis.
_FEW_SHOT = GradientClient(
    split="head", selector=FewShotSelector(SHOTS), optimiser=Sgd(0.9, weight_decay=1e-3), lr=0.01, epochs=10, batch=4
)
_UPDATES = {"full": GradientClient(), "few_shot": _FEW_SHOT}
_WORDS = {"full": "full update", "few_shot": "few-shot update"}


def compute(record: RunRecord, reopen: Callable[[], ReopenedRun]) -> Numbers:
    run = reopen()
    devices, test, classes = run.devices, run.test_samples(), run.task.classes
    if not devices:
        raise InputError(f"the bias analysis needs a device that can train, and run '{record.run}' has none")
    logits = {"before": [logits_of(run.task, run.weights, test.x)]}
    for update, client in _UPDATES.items():
        tracked = run.progress.track(devices, description=f"bias: {_WORDS[update]}")
        logits[update] = [logits_of(run.task, run.train_locally(client, name), test.x) for name in tracked]
    true_fractions = _class_fractions(test.y, classes)
    numbers: Numbers = {
        "devices": devices, "classes": run.class_names(), "shots": SHOTS, "test_samples": len(test),
        "true": round_numbers(true_fractions.tolist()),
    }  # fmt: skip
    for update, per_device in logits.items():
        fractions = [_class_fractions(each[:, :classes].argmax(1), classes) for each in per_device]
        numbers[update] = {
            "predicted": round_numbers([each.tolist() for each in fractions]),
            "accuracy": [float((each.argmax(1) == test.y).double().mean()) for each in per_device],
            "bias": [float((each - true_fractions).abs().sum() / 2) for each in fractions],
            # For the largest device. Rows: true class; columns: mean logit of each class.
            "mean_logits": round_numbers(_mean_logits(per_device[0][:, :classes], test.y, classes).tolist(), 3),
        }
    return numbers


def render(page: Page, runs: Sequence[RunNumbers]) -> None:
    for run in runs:
        add_run_heading(page, runs, run)
        numbers = run.numbers
        bias = {update: fmean(numbers[update]["bias"]) for update in _UPDATES}
        accuracy = {update: fmean(numbers[update]["accuracy"]) for update in ("before", *_UPDATES)}
        page.text(
            f"Bias is the fraction of predictions that must change so that each class is predicted as often as it "
            f"occurs. It is {bias['full']:.0%} after a full update and {bias['few_shot']:.0%} after a few-shot update. "
            f"The mean accuracy is {accuracy['before']:.3f} before, {accuracy['full']:.3f} after a full update and "
            f"{accuracy['few_shot']:.3f} after a few-shot update."
        )
        page.figures(_prediction_figure(numbers, update) for update in _UPDATES)
        page.figures(_logit_figure(numbers, update) for update in _UPDATES)
    rows = [
        (run.label, words, score(fmean(run.numbers[update]["accuracy"])), score(fmean(run.numbers[update]["bias"])))
        for run in runs
        for update, words in {"before": "final model", **_WORDS}.items()
    ]
    page.table(("run", "model", "mean accuracy", "mean bias"), rows)


def _prediction_figure(numbers: Numbers, update: str) -> Figure:
    rows = ["in the test set", "before", *numbers["devices"]]
    values = [numbers["true"], *numbers["before"]["predicted"], *numbers[update]["predicted"]]
    highest = max(max(row) for kind in _UPDATES for row in numbers[kind]["predicted"])
    title = f"Predictions after a {_WORDS[update]}"
    return heat_map(rows, numbers["classes"], values, title, zmin=0, zmax=highest)


def _logit_figure(numbers: Numbers, update: str) -> Figure:
    names, values = numbers["classes"], numbers[update]["mean_logits"]
    title = f"Mean logits after a {_WORDS[update]}"
    figure = heat_map(names, names, values, title, hovertemplate="class %{y}<br>logit of %{x}: %{z}<extra></extra>")
    figure["layout"]["xaxis"]["title"] = {"text": f"mean logit on {numbers['devices'][0]}"}
    figure["layout"]["yaxis"]["title"] = {"text": "class of the sample"}
    return figure


def _class_fractions(labels: Tensor, classes: int) -> Tensor:
    return torch.bincount(labels, minlength=classes).double().cpu() / len(labels)


def _mean_logits(logits: Tensor, labels: Tensor, classes: int) -> Tensor:
    """Mean logits of the samples of each class; NaN for a class without samples."""
    sums = torch.zeros(classes, classes, dtype=torch.float64).index_add_(0, labels.cpu(), logits.double().cpu())
    return sums / torch.bincount(labels.cpu(), minlength=classes)[:, None]


BIAS = Analysis(
    "Bias of predictions",
    "Predictions of device models on the central test set after local training of the whole model, and after training "
    "only the classifier on a few samples of each class.",
    compute,
    render,
    needs_classes=True,
)
