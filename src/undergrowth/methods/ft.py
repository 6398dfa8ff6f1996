"""FT and FedNCM+FT (Legate et al. 2023; Bernier, Concordia thesis, §3.1): a pretrained model is tuned by FedAvg.

Down: w. A device: E epochs of SGD from w. Up: w_k and its number of samples n_k. Server: w ← Σ n_k·w_k / Σ n. ft is
FedAvg under the source's name: what makes it fine-tuning is that w starts from `start.weights`, `model.weights` or an
`hf:` model. fedncm-ft first gives w the last layer of FedNCM. It is short for

    method: ft
    start: {method: fedncm}

so the message of FedNCM is booked apart, and the accuracy before the first round is that of FedNCM. The same section
gives FedProx, FedAdam or any other method that head, and `start: {method: lp, rounds: 10}` that of a linear probe.

BatchNorm: by default devices normalise by their batches, and their running statistics are averaged. On devices with few
classes neither fits the pretrained features: a note advises `model: {statistics: frozen}` (docs/decisions/0058).

    >>> import undergrowth as ug
    >>> result = ug.run(method="fedncm-ft", rounds=2)
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from undergrowth.core import Method, Task
from undergrowth.learning import AveragingServer, GradientClient
from undergrowth.learning.batch_statistics import statistics_names


@dataclass(frozen=True)
class FT(Method):
    """Fine-tuning of the whole model by FedAvg."""

    client = GradientClient()
    server = AveragingServer()

    def notes(self, task: Task) -> Sequence[str]:
        return _advise_frozen_statistics(task)


@dataclass(frozen=True)
class FedNCMFT(Method):
    """FedNCM for the last layer, then fine-tuning of the whole model."""

    client = GradientClient()
    server = AveragingServer()
    begins_with: ClassVar[str] = "fedncm"

    @property
    def needs_classes(self) -> str:
        return "it begins with the mean features of every class"

    def notes(self, task: Task) -> Sequence[str]:
        return _advise_frozen_statistics(task)


def _advise_frozen_statistics(task: Task) -> Sequence[str]:
    if not statistics_names(task.model):
        return ()
    return (
        "devices normalise by the statistics of their own batches, which can harm pretrained features if devices have "
        "few classes; -s model.statistics=frozen keeps those of the weights",
    )
