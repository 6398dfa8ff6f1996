"""Sizes of the pruned models of a run, the time of their forward pass, and how much of the devices' speed they use.

The stopwatch runs when a page is made. Nothing of it reaches a run.
"""

from __future__ import annotations

import statistics

import torch

from undergrowth.core import RunError
from undergrowth.devices import build_fleet
from undergrowth.devices.inference import count_products, time_forward_pass
from undergrowth.learning.pruning import pruned_copy, utilisation
from undergrowth.methods import REFT
from undergrowth.runs import Store
from undergrowth.runs.method_builder import build_method
from undergrowth.runs.result import result_of
from undergrowth.runs.stored_experiment import stored_experiment

PARAMETERS, SIZE, PRODUCTS, TIME = "parameters", "model size", "model products", "inference time"
UTILISATION = "utilisation"
METRICS = (PARAMETERS, SIZE, PRODUCTS, TIME, UTILISATION)


def measure_pruned(store: Store, run: str, metric: str) -> float:
    """A figure about the pruned models of a run of REFT.

    - `parameters`: of the model without `method.ratio` of its channels, in millions;
    - `model size`: of the same in float32, in MB of 2^20 bytes;
    - `model products`: multiplications of its forward pass for one sample, in 10^9 (the FLOPs of the source);
    - `inference time`: milliseconds of a forward pass of one sample on this machine's CPU, the median of 30;
    - `utilisation`: U (`learning.pruning.utilisation`) of the devices with that model in per cent, mean over devices.
    """
    row = store.run(run)
    experiment = stored_experiment(row)
    method = build_method(experiment.method.name, experiment.method.options)
    if not isinstance(method, REFT) or method.ratio is None:
        raise RunError(f"run '{run}' of {row['method']}: '{metric}' needs reft with a ratio")
    if metric == UTILISATION:
        devices = [facts["device"] for facts in store.devices(run)]
        fleet = build_fleet(experiment.fleet.name, devices, experiment.run.seed)
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
