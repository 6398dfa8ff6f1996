"""Inference: what a forward pass of a module computes, and how long it takes on this machine.

The stopwatch is for pages and benchmarks. Nothing of it reaches a run.
"""

from __future__ import annotations

import statistics
import time
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.flop_counter import FlopCounterMode

_WARM_UP, _PASSES = 3, 30


def count_products(module: nn.Module, x: Tensor) -> int:
    """Multiplications of convolutions and linear layers in a forward pass."""
    counter: Any = FlopCounterMode(display=False)
    with counter, torch.no_grad():
        module(x)
    return int(counter.get_total_flops()) // 2


def time_forward_pass(module: nn.Module, x: Tensor) -> float:
    """Seconds of a forward pass, the median of many."""
    taken = []
    with torch.no_grad():
        for number in range(_WARM_UP + _PASSES):
            began = time.perf_counter()
            module(x)
            if number >= _WARM_UP:
                taken.append(time.perf_counter() - began)
    return statistics.median(taken)
