"""Which classes a device's model predicts after a full and after a few-shot update (Shi, Sheffield thesis, §4.3.2).

Both start from the final model of the run. The full update trains all of it on the device, with the run's settings;
the few-shot update trains the classifier alone on a few samples of each class that the device has. What they predict
on the central test set is compared with the classes that are there.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from undergrowth.core import InputError
from undergrowth.learning import FewShotSelector, GradientClient, Sgd, predictions
from undergrowth.report.analyses.analysis import Analysis, Numbers, Seen, heat_map, rounded, several
from undergrowth.report.analyses.finished import Finished
from undergrowth.report.figures import Figure
from undergrowth.report.html import Page
from undergrowth.report.record import Record
from undergrowth.report.tables import score

SHOTS = 10
# The settings of the source.
_FEW_SHOT = GradientClient(
    split="head", selector=FewShotSelector(SHOTS), optimiser=Sgd(0.9, weight_decay=1e-3), lr=0.01, epochs=10, batch=4
)
_UPDATES = {"full": GradientClient(), "few_shot": _FEW_SHOT}
_WORDS = {"full": "full update", "few_shot": "few-shot update"}


def look(record: Record, run: Callable[[], Finished]) -> Numbers:
    finished = run()
    devices, test, classes = finished.devices, finished.test(), finished.task.classes
    if not devices:
        raise InputError(f"the bias of predictions needs a device that can train, and run '{record.run}' has none")
    logits = {"before": [predictions(finished.task, finished.weights, test)]}
    for update, client in _UPDATES.items():
        watched = finished.bar.track(devices, description=f"bias: {_WORDS[update]}")
        logits[update] = [predictions(finished.task, finished.trained(client, name), test) for name in watched]
    there = _shares(test.y, classes)
    found: Numbers = {
        "devices": devices, "classes": finished.class_names(), "shots": SHOTS, "test_samples": len(test),
        "there": rounded(there.tolist()),
    }  # fmt: skip
    for update, per_device in logits.items():
        shares = [_shares(each[:, :classes].argmax(1), classes) for each in per_device]
        found[update] = {
            "predicted": rounded([each.tolist() for each in shares]),
            "accuracy": [float((each.argmax(1) == test.y).double().mean()) for each in per_device],
            "bias": [float((each - there).abs().sum() / 2) for each in shares],
            # Rows: the class of a sample. Columns: the mean logit of each class. Of the largest device.
            "mean_logits": rounded(_mean_logits(per_device[0][:, :classes], test.y, classes).tolist(), 3),
        }
    return found


def show(page: Page, seen: Sequence[Seen]) -> None:
    for each in seen:
        several(page, seen, each)
        numbers = each.numbers
        bias = {update: _mean(numbers[update]["bias"]) for update in _UPDATES}
        accuracy = {update: _mean(numbers[update]["accuracy"]) for update in ("before", *_UPDATES)}
        page.text(
            f"After a full update {bias['full']:.0%} of the predictions would have to change for each class to be "
            f"predicted as often as it is there, after a few-shot update of the classifier {bias['few_shot']:.0%}; the "
            f"mean accuracy goes from {accuracy['before']:.3f} to {accuracy['full']:.3f} or {accuracy['few_shot']:.3f}."
        )
        page.figures(_predicted(numbers, update) for update in _UPDATES)
        page.figures(_logits(numbers, update) for update in _UPDATES)
    rows = [
        (each.label, words, score(_mean(each.numbers[update]["accuracy"])), score(_mean(each.numbers[update]["bias"])))
        for each in seen
        for update, words in {"before": "the final model", **_WORDS}.items()
    ]
    page.table(("run", "model", "mean accuracy", "mean bias"), rows)


def _predicted(numbers: Numbers, update: str) -> Figure:
    rows = ["in the test set", "before", *numbers["devices"]]
    values = [numbers["there"], *numbers["before"]["predicted"], *numbers[update]["predicted"]]
    most = max(max(row) for kind in _UPDATES for row in numbers[kind]["predicted"])
    title = f"Predictions after a {_WORDS[update]}"
    return heat_map(rows, numbers["classes"], values, title, zmin=0, zmax=most)


def _logits(numbers: Numbers, update: str) -> Figure:
    names, values = numbers["classes"], numbers[update]["mean_logits"]
    title = f"Mean logits after a {_WORDS[update]}"
    drawn = heat_map(names, names, values, title, hovertemplate="of class %{y}<br>logit of %{x}: %{z}<extra></extra>")
    drawn["layout"]["xaxis"]["title"] = {"text": f"mean logit on {numbers['devices'][0]}"}
    drawn["layout"]["yaxis"]["title"] = {"text": "class of the sample"}
    return drawn


def _shares(labels: Tensor, classes: int) -> Tensor:
    return torch.bincount(labels, minlength=classes).double().cpu() / len(labels)


def _mean_logits(logits: Tensor, labels: Tensor, classes: int) -> Tensor:
    """NaN for a class that has no sample."""
    sums = torch.zeros(classes, classes, dtype=torch.float64).index_add_(0, labels.cpu(), logits.double().cpu())
    return sums / torch.bincount(labels.cpu(), minlength=classes)[:, None]


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)


BIAS = Analysis(
    "Bias of predictions",
    "What devices' models predict on the central test set after local training: of the whole model, or of its "
    "classifier alone with a few samples of each class.",
    look,
    show,
)
