"""FT and FedNCM+FT (Legate et al. 2023; Bernier, Concordia thesis, §3.1): a pretrained model is tuned by FedAvg.

Down: w. A device: E epochs of SGD from w. Up: w_k and its number of samples n_k. Server: w ← Σ n_k·w_k / Σ n. ft is
FedAvg under the source's name: what makes it fine-tuning is that w starts from `start.weights`, `model.weights` or an
`hf:` model. fedncm-ft first gives w the last layer of FedNCM. It is short for

    method: ft
    start: {method: fedncm}

so the message of FedNCM is booked apart, and the accuracy before the first round is that of FedNCM. The same section
gives FedProx, FedAdam or any other method that head, and `start: {method: lp, rounds: 10}` that of a linear probe.

    >>> import undergrowth as ug
    >>> result = ug.run(method="fedncm-ft", rounds=2)
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from undergrowth.core import Method
from undergrowth.learning import AveragingServer, GradientClient


@dataclass(frozen=True)
class FT(Method):
    """Fine-tuning of the whole model by FedAvg."""

    client = GradientClient()
    server = AveragingServer()


@dataclass(frozen=True)
class FedNCMFT(Method):
    """FedNCM for the last layer, then fine-tuning of the whole model."""

    client = GradientClient()
    server = AveragingServer()
    begins_with: ClassVar[str] = "fedncm"

    @property
    def needs_classes(self) -> str:
        return "it begins with the mean features of every class"
