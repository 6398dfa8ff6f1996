"""The values that tables report about a run: accuracies, learning efficiency and sizes, from the store."""

from __future__ import annotations

import math
import re
import statistics
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import pairwise
from typing import Any

import torch

from undergrowth.core import RunError
from undergrowth.data import load
from undergrowth.devices.inference import count_products
from undergrowth.report.run_record import finite, learning_efficiency
from undergrowth.reproduce.pruned_models import METRICS as PRUNED
from undergrowth.reproduce.pruned_models import measure_pruned
from undergrowth.runs import Store
from undergrowth.runs.relative_accuracy import distribution
from undergrowth.runs.result import personal_accuracy, result_of
from undergrowth.runs.stored_experiment import stored_experiment

EFFICIENCY, METADATA, TOTAL, PASSES = "efficiency", "metadata", "total GB", "forward passes"
FINAL = "final"
PERSONAL = re.compile(r"(accuracy|relative accuracy) of (.+), (.+)")
_COSTS = {
    "down": ("bytes_down",), "up": ("bytes_up",), "traffic": ("bytes_down", "bytes_up"),
    "computing": ("compute_seconds",),
}  # fmt: skip
ROOT = "root"
Curve = tuple[tuple[int, float], ...]  # pairs of a round and a value


def measure(store: Store, run: str, metric: str) -> float:
    """The value of `metric` for a run.

    `metric` is one of

    - a column of the rounds such as `accuracy`: its best value, in per cent;
    - `final`, `final COLUMN`: the accuracy, or that column, after the last round, in per cent;
    - `class N`: the accuracy of the final model on the test samples of class N, in per cent;
    - `efficiency`: the best accuracy in per cent for an hour of computing on one device;
    - `metadata`: the megabytes that all devices together send in the last round besides their models;
    - `down`, `up`: the MB (of 2^20 bytes) that a device gets or sends when it is asked, mean over all asks;
    - `traffic`, `traffic GB`: the MB or GB (of 2^30 bytes) of a device in all rounds, mean over devices;
    - `total GB`: the GB (of 10^9 bytes) of all devices in all rounds, without what came before the first one;
    - `forward passes`: the FLOPs of all devices in all rounds, in forward passes of the model for one image;
    - `computing`: the simulated seconds that a device computes when it is asked, mean over all asks;
    - `tier NAME`: the mean accuracy of the devices of this class on their own test samples, in per cent;
    - `own data N`: the mean accuracy, on each device's test samples, of the model N links above the device after the
      last round, in per cent: 0 is the device's own model, 1 that of its server, `root` that of the root;
    - `all data N`: the mean accuracy of these models on the central test set, for N of at least 1, or `root`;
    - `accuracy of MODEL, FIGURE` or `relative accuracy of MODEL, FIGURE`: a figure about the accuracies of all devices
      with a model of the phase `personal`, such as local. FIGURE is a field of `Distribution`: `mean`, `best mean` or
      `worst mean` in per cent, `variance`, `best variance` or `worst variance` in percent², `below zero` in devices;
    - a figure about pruned models, see `pruned_models.measure_pruned`.
    """
    if metric in PRUNED:
        return measure_pruned(store, run, metric)
    if personal := PERSONAL.fullmatch(metric):
        return _personal_figure(store, run, *personal.groups())
    if metric.removesuffix(" GB") in _COSTS:
        return _mean_cost(store, run, metric)
    if metric in (TOTAL, PASSES):
        return _total(store, run, metric)
    rounds = store.rounds(run)
    for prefix, accuracy in _ACCURACIES.items():
        if metric.startswith(prefix):
            return 100 * _known(accuracy(store, run, metric.removeprefix(prefix)), run, metric)
    name, _, column = metric.partition(" ")
    if name == FINAL:
        return 100 * _known(finite(rounds[-1].get(column or "accuracy")), run, metric)
    if metric == EFFICIENCY:
        per_second = learning_efficiency(rounds, store.run(run)["summary"]["compute_seconds"])
        return 100 * 3600 * _known(per_second, run, metric)
    if metric == METADATA:
        return _metadata_bytes(rounds) / 1e6
    return 100 * _known(max(_values(rounds, metric), default=None), run, metric)


def mean_curve(store: Store, runs: Sequence[str], metric: str) -> Curve:
    """The mean of `metric` over runs in per cent, for each round that was evaluated; empty if it has no curve."""
    if not metric.startswith("accuracy"):
        return ()
    by_round: dict[int, list[float]] = {}
    for run in runs:
        every = int(stored_experiment(store.run(run)).run.evaluate_every)
        rounds = store.rounds(run)
        for row in rounds:
            value = finite(row.get(metric))
            if value is not None and (row["round"] % every == 0 or row is rounds[-1]):
                by_round.setdefault(row["round"], []).append(100 * value)
    return tuple((at, statistics.fmean(values)) for at, values in sorted(by_round.items()) if len(values) == len(runs))


def progress(store: Store, run: str, metric: str) -> str:
    """How far an unfinished run has got: its rounds and, if `metric` is one of their columns, its best value."""
    rounds = store.rounds(run)
    done = f"{len(rounds)} of {stored_experiment(store.run(run)).train.rounds} rounds"
    values = _values(rounds, metric)
    return f"{100 * max(values):.2f} after {done}" if values else done


def _values(rounds: Sequence[dict[str, Any]], metric: str) -> list[float]:
    return [value for row in rounds if (value := finite(row.get(metric))) is not None]


def _known(value: float | None, run: str, metric: str) -> float:
    if value is None:
        raise RunError(f"run '{run}' has no '{metric}' in its rounds, which the table needs")
    return value


def _mean_cost(store: Store, run: str, metric: str) -> float:
    """A cost in the ledger, per ask or, for `traffic`, per device."""
    name, _, gigabytes = metric.partition(" ")
    costs = store.costs_by_device(run).values()
    total = math.fsum(cost[column] for cost in costs for column in _COSTS[name])
    mean = total / (len(costs) if name == "traffic" else sum(cost["asked"] for cost in costs))
    return mean if name == "computing" else mean / 2 ** (30 if gigabytes else 20)


def _total(store: Store, run: str, metric: str) -> float:
    """The traffic of all devices in GB, or their work in forward passes."""
    row = store.run(run)
    if metric == TOTAL:
        return float(row["summary"]["bytes_up"] + row["summary"]["bytes_down"]) / 1e9
    one = 2 * count_products(result_of(store, run).model, torch.zeros(1, *row["experiment"]["shape"]))
    return float(row["summary"]["flops"]) / one


def _mean(values: Iterable[float | None]) -> float | None:
    """The mean of the values that are known."""
    known = [value for value in values if value is not None]
    return statistics.fmean(known) if known else None


def _tier_accuracy(store: Store, run: str, tier: str) -> float | None:
    return _mean(each.get("accuracy") for each in store.devices(run) if each["tier"] == tier)


def _own_data_accuracy(store: Store, run: str, links: str) -> float | None:
    """On the devices' test samples. If nodes have no models of their own, all devices use the root's."""
    tree = store.run(run)["summary"].get("tree")
    if not tree:
        return _mean(each.get("accuracy") for each in store.devices(run))
    wanted = tree["distances"][-1]["distance"] if links == ROOT else int(links)
    return _mean(row["score"] for row in tree["distances"] if row["distance"] == wanted)


def _all_data_accuracy(store: Store, run: str, links: str) -> float | None:
    """On the central test set. The last level of servers is one link above the devices."""
    tree = store.run(run)["summary"].get("tree")
    if not tree:
        return float(store.rounds(run)[-1]["accuracy"])
    wanted = 0 if links == ROOT else max(row["depth"] for row in tree["nodes"]) + 1 - int(links)
    return _mean(row["score"] for row in tree["nodes"] if row["depth"] == wanted)


def _personal_figure(store: Store, run: str, kind: str, model: str, figure: str) -> float:
    """A figure about the devices' accuracies with a model, or about what these exceed those of the local one by."""
    found = personal_accuracy(store, run)
    if found is None or model not in found.models:
        raise RunError(f"run '{run}' did not evaluate the model '{model}' on its devices, which the table needs")
    values = distribution(found.accuracies[model] if kind == "accuracy" else found.relative(model))
    field = figure.replace(" ", "_")
    unit = 1.0 if field == "below_zero" else 1e4 if field.endswith("variance") else 100.0
    return unit * float(getattr(values, field))


def _metadata_bytes(rounds: Sequence[dict[str, Any]]) -> float:
    """What devices sent up in the last round and did not get in the same round: all but the models."""
    totals = [0, *(row["bytes_up"] - row["bytes_down"] for row in rounds)]  # the store has totals up to each round
    return float([after - before for before, after in pairwise(totals)][-1])


def _class_accuracy(store: Store, run: str, label: str) -> float:
    section = stored_experiment(store.run(run)).data
    test = load(section.name, section.path, **section.options).central_test()
    x = test.x[test.y == int(label)]
    with torch.no_grad():
        model = result_of(store, run).model
        predicted = torch.cat([model(part).argmax(1) for part in x.split(500)])
    return float((predicted == int(label)).float().mean())


# Begin of a metric → the accuracy that the rest of its text asks for; None if the run does not have it.
_ACCURACIES: Mapping[str, Callable[[Store, str, str], float | None]] = {
    "tier ": _tier_accuracy,
    "class ": _class_accuracy,
    "own data ": _own_data_accuracy,
    "all data ": _all_data_accuracy,
}
