"""Metrics of classification beside the accuracy."""

from __future__ import annotations

import torch
from sklearn.metrics import f1_score

from undergrowth.learning.metrics import macro_f1


def test_macro_f1_is_that_of_scikit_learn() -> None:
    generator = torch.Generator().manual_seed(0)
    outputs, labels = torch.randn(40, 6, generator=generator), torch.randint(0, 4, (40,), generator=generator)
    outputs[:, 5] = -9  # class 5 neither occurs nor is predicted
    expected = f1_score(labels.numpy(), outputs.argmax(1).numpy(), average="macro")
    assert abs(macro_f1(outputs, labels) - expected) < 1e-6
