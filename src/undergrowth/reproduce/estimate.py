"""How long runs will take: from the FLOPs that their devices compute, and the speed of runs on this machine.

Estimates use a stopwatch. Nothing of them reaches a result.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch

from undergrowth.reproduce.table import Raw
from undergrowth.runs import Store
from undergrowth.runs.config import Experiment, parse_experiment
from undergrowth.runs.federation import Federation
from undergrowth.runs.federation_builder import federate
from undergrowth.runs.preview import price_devices
from undergrowth.runs.topologies import rounds_below
from undergrowth.runs.tree_price import price_tree
from undergrowth.sweeps.layers import merge_layers
from undergrowth.topology import ROOT

# Seconds for a FLOP of a run, until a run of the same kind was timed: WRN-16-1 on one core, and on an H200 with two
# runs at a time.
ASSUMED_SECONDS = {"cpu": 1 / 30e9, "cuda": 1 / 6e12}


@dataclass(frozen=True)
class Work:
    """What a run computes, without the work of its server."""

    method: str
    flops: float  # of all devices in all rounds
    memory: int  # bytes of the job of one device
    clients: int  # devices in a round
    data: int  # bytes of the training samples


def count_work(raw: Raw) -> Work:
    """Count the work of an experiment, without training. The data of the experiment must be available."""
    experiment = parse_experiment(merge_layers(raw, {"run": {"device": "cpu", "engine": "serial", "chunk": None}}))
    federation = federate(experiment)
    prospects = {each.device: each.timing for each in price_devices(federation)}
    asked = [prospects[device] for device in federation.first_round.packets if device in prospects]
    clients = max(1, math.ceil(experiment.train.sample * len(federation.first_round.packets)))
    rounds = _rounds(experiment, federation) * rounds_below(federation.topology, ROOT, federation.method)
    flops = clients * rounds * sum(each.flops for each in asked) / len(asked)
    samples = sum(federation.population.size(device) for device in federation.population.devices)
    return Work(
        experiment.method.name,
        flops,
        max(each.memory for each in asked),
        clients,
        4 * samples * math.prod(federation.population.shape),
    )


def _rounds(experiment: Experiment, federation: Federation) -> int:
    """The rounds of the root, as many as the simulated time leaves room for."""
    seconds, tree = experiment.stop.simulated_seconds, price_tree("", federation)
    if seconds is None or not tree:
        return experiment.max_rounds
    return min(experiment.max_rounds, math.ceil(seconds / float(tree[0]["seconds"])))


class Speeds:
    """Seconds per FLOP by method, from the runs that were timed."""

    def __init__(self, torch_device: str) -> None:
        self._assumed = ASSUMED_SECONDS.get(torch.device(torch_device).type, ASSUMED_SECONDS["cuda"])
        self._timed: dict[str, tuple[float, float]] = {}  # method → seconds and FLOPs

    def add(self, method: str, seconds: float, flops: float) -> None:
        before = self._timed.get(method, (0.0, 0.0))
        self._timed[method] = before[0] + seconds, before[1] + flops

    def seconds_per_flop(self, method: str) -> float:
        """That of the method; of all methods if it was never timed; else an assumption."""
        timed = [self._timed[method]] if method in self._timed else self._timed.values()
        flops = sum(each for _, each in timed)
        return sum(seconds for seconds, _ in timed) / flops if flops else self._assumed

    @property
    def assumed(self) -> bool:
        return not self._timed


def stored_speeds(store: Store, torch_device: str) -> Speeds:
    """The speeds of the finished runs in `store` on the same kind of torch device."""
    speeds, kind = Speeds(torch_device), torch.device(torch_device).type
    for row in store.runs():
        used = row["experiment"]["settings"]["run"]["device"].split(",")[0]
        if row["status"] == "done" and torch.device(used).type == kind:
            speeds.add(row["method"], row["summary"]["wall_seconds"], row["summary"]["flops"])
    return speeds


class Estimate:
    """The time that jobs will still take, corrected as they advance."""

    def __init__(
        self, work: Mapping[str, Work], speeds: Speeds, parallel: int, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self.work = work  # by the keys of the jobs
        self.parallel = parallel
        self._speeds = speeds
        self._clock = clock
        self._fractions = dict.fromkeys(work, 0.0)
        self._since: dict[str, tuple[float, float]] = {}  # key → time and fraction at the last report

    @property
    def flops(self) -> float:
        return sum(each.flops for each in self.work.values())

    @property
    def seconds_left(self) -> float:
        seconds = [
            each.flops * (1 - self._fractions[key]) * self._speeds.seconds_per_flop(each.method)
            for key, each in self.work.items()
        ]
        # The longest run cannot be shared between processes.
        return max(sum(seconds) / self.parallel, max(seconds, default=0.0))

    @property
    def assumed(self) -> bool:
        """Whether no run on this kind of machine was timed yet."""
        return self._speeds.assumed

    def report(self, key: str, fraction: float) -> None:
        """Note how much of a job is finished; the first report of a job says where it starts."""
        if key not in self.work:
            return
        now, work = self._clock(), self.work[key]
        if key in self._since:
            at, before = self._since[key]
            self._speeds.add(work.method, now - at, (fraction - before) * work.flops)
        self._since[key] = now, fraction
        self._fractions[key] = fraction
