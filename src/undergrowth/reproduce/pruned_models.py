"""Sizes of the pruned models of a run, the time of their forward pass, and how much of the devices' speed they use.

The stopwatch runs when a page is made. Nothing of it reaches a run.
"""

from __future__ import annotations

import statistics
import time
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.flop_counter import FlopCounterMode

from undergrowth.core import Model, RunError
from undergrowth.devices import build_fleet
from undergrowth.learning.pruning import prune, pruned_module, utilisation
from undergrowth.methods import REFT
from undergrowth.runs import Store
from undergrowth.runs.builders import build_method
from undergrowth.runs.result import result_of
from undergrowth.runs.stored_experiment import stored_experiment

PARAMETERS, SIZE, PRODUCTS, TIME = "parameters", "model size", "model products", "inference time"
UTILISATION = "utilisation"
METRICS = (PARAMETERS, SIZE, PRODUCTS, TIME, UTILISATION)
_WARM_UP, _PASSES = 3, 30


def measure_pruned(store: Store, run: str, metric: str) -> float:
    """A figure about the pruned models of a run of REFT.

    - `parameters`: of the model without `method.ratio` of its channels, in millions;
    - `model size`: of the same in float32, in MB of 2^20 bytes;
    - `model products`: multiplications of its forward pass for one sample, in 10^9 (the FLOPs of the source);
    - `inference time`: milliseconds of a forward pass of one sample on this machine's CPU, the median of 30;
    - `utilisation`: U (`learning.pruning.utilisation`) of the devices with that model in per cent, mean over devices.
    """
    row = store.run(run)
    section = stored_experiment(row)
    method = build_method(section.method.name, section.method.options)
    if not isinstance(method, REFT) or method.ratio is None:
        raise RunError(f"run '{run}' of {row['method']}: '{metric}' needs reft with a ratio")
    if metric == UTILISATION:
        devices = [facts["device"] for facts in store.devices(run)]
        fleet = build_fleet(section.fleet.name, devices, section.run.seed)
        speeds = [fleet.profile(device).achieved_flops for device in devices]
        return 100 * statistics.fmean(utilisation(method.ratio, speed, 1e9 * method.f_lambda) for speed in speeds)
    module = pruned_copy(result_of(store, run).model, method.ratio)
    count = sum(value.numel() for value in module.parameters())
    if metric == PARAMETERS:
        return count / 1e6
    if metric == SIZE:
        return 4 * count / 2**20
    x = torch.zeros(1, *row["experiment"]["shape"])
    return count_products(module, x) / 1e9 if metric == PRODUCTS else 1e3 * time_forward_pass(module, x)


def pruned_copy(module: nn.Module, fraction: float) -> nn.Module:
    """The module without `fraction` of the channels of its layers."""
    model = Model(lambda: module)
    weights = {name: value.detach() for name, value in module.state_dict().items() if name in model.shapes}
    return pruned_module(model, prune(model, weights, fraction))


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
