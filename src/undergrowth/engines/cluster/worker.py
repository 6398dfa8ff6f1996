"""What a worker of a Ray cluster does: jobs one after the other, folded by node; and sums of its neighbours' sums."""

from __future__ import annotations

import traceback
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from time import perf_counter
from typing import NamedTuple

import ray
from ray import cloudpickle

from undergrowth.core import RunError, Server, State, describe_misfit, moved
from undergrowth.engines.cluster.crate import Crate, packed, unpacked
from undergrowth.engines.world import Folding, Job, Outcome, Settings, World, do, set_torch


class Unlike(Exception):
    """The sums of two workers do not go together."""


class Order(NamedTuple):
    """A job without what is sent down, which comes once for all jobs, and with what its device has kept."""

    number: int  # in the round
    job: Job
    packet: int
    own: State
    residual: State


@dataclass
class Report:
    """What a worker says of its jobs, beside the combined uploads."""

    outcomes: dict[int, Outcome] = field(default_factory=dict)  # of the jobs that are not combined, by number
    kept: dict[str, tuple[State, State]] = field(default_factory=dict)  # device → its own state and residual
    seconds: dict[int, float] = field(default_factory=dict)  # by number
    failure: tuple[int, Exception] | None = None  # the job that failed, after which it stopped
    folds: bool = False  # whether any uploads were combined
    unlike: bool = False  # whether some upload did not go together with those before it


class Worker:
    def __init__(self, world: Crate, shards: Crate, device: str, settings: Settings) -> None:
        set_torch(settings.tf32)
        task, client, servers, links = unpacked(world)
        self.world = World(task.to(device), client, servers, unpacked(shards, copy=False), links=links, device=device)

    def node(self) -> str:
        """The machine it is on."""
        return str(ray.get_runtime_context().get_node_id())

    def work(self, orders: Crate, *packets: Crate) -> tuple[Crate, Crate]:
        """The combined uploads, one outcome for each node, and the report."""
        world, report = self.world, Report()
        downs = [moved(unpacked(packet), world.device) for packet in packets]
        sums: dict[str, Folding] = {}
        for number, job, packet, own, residual in unpacked(orders):
            began = perf_counter()
            try:
                kept, lost = moved(own, world.device), moved(residual, world.device)
                done = do(world, job._replace(down=downs[packet]), kept, lost)
                if job.fold:
                    total = sums.setdefault(job.node, Folding(job.node, world.servers[job.node]))
                    used = total.add(job.device, done)
                    report.unlike |= not used and done.problem is None
                elif done.problem is None:
                    report.outcomes[number] = Outcome(job.node, done.up, {job.device: done.size})
                    used = True
                else:
                    report.outcomes[number] = Outcome(job.node, None, refused={job.device: done.problem})
                    used = False
            except Exception as error:
                report.failure = (number, _portable(error))
                break
            if used:
                report.kept[job.device] = (done.own, done.residual)
            report.seconds[number] = perf_counter() - began
        report.folds = bool(sums)
        return packed([total.outcome() for total in sums.values()]), packed(report)

    def combine(self, *parts: Crate) -> Crate:
        """The combined uploads of several workers as those of one."""
        return packed(list(together(self.world.servers, map(unpacked, parts)).values()))


def together(servers: Mapping[str, Server], parts: Iterable[Iterable[Outcome]]) -> dict[str, Outcome]:
    """One outcome for each node, from the outcomes of several workers in their order."""
    totals: dict[str, Outcome] = {}
    for part in parts:
        for outcome in part:
            known = totals.get(outcome.node)
            totals[outcome.node] = _joined(servers[outcome.node], known, outcome) if known else outcome
    return totals


def _joined(server: Server, first: Outcome, second: Outcome) -> Outcome:
    refused = {**first.refused, **second.refused}
    if first.up is None or second.up is None:
        return replace(first if second.up is None else second, refused=refused)
    try:
        up = server.reducer.merge(first.up, second.up)
    except (ValueError, KeyError) as error:
        raise Unlike(describe_misfit(error)) from error
    return Outcome(
        first.node, up, {**first.sent, **second.sent}, refused, {**first.scalars, **second.scalars}, folded=True
    )


def _portable(error: Exception) -> Exception:
    """The same error where it can be sent, and how it came about, which is lost on the way."""
    story = "".join(traceback.format_exception(error))
    try:
        cloudpickle.loads(cloudpickle.dumps(error))
    except Exception:
        error = RunError(f"{type(error).__name__}: {error}")
    error.add_note(story)
    return error
