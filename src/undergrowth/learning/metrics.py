"""Metrics of classification beside the accuracy, for `task.metrics`: functions of the outputs and labels of samples."""

from __future__ import annotations

import torch
from torch import Tensor


def macro_f1(outputs: Tensor, labels: Tensor) -> float:
    """The mean over classes of 2·both / (predicted + there), for the classes that are predicted or there.

    -s task.metrics.macro_f1=undergrowth.learning.metrics:macro_f1
    """
    classes = outputs.shape[1]
    predicted = outputs.argmax(1)
    both = torch.bincount(labels[predicted == labels], minlength=classes)
    either = torch.bincount(predicted, minlength=classes) + torch.bincount(labels, minlength=classes)
    occurs = either > 0
    return float((2 * both[occurs] / either[occurs]).mean())
