"""A worker of a Ray cluster: runs jobs, combines their uploads, and merges the partial results of its neighbours."""

from __future__ import annotations

import math
import traceback
from dataclasses import dataclass, field
from time import perf_counter
from typing import NamedTuple

import ray
from ray import cloudpickle

from undergrowth.core import RunError, State, move_to
from undergrowth.engines.combining import JobReport, WorkerCombiner, merge_partial_results
from undergrowth.engines.jobs import run_job
from undergrowth.engines.ray_cluster.serialization import SerializedObject, deserialize, serialize
from undergrowth.engines.states import States
from undergrowth.engines.torch_settings import set_torch
from undergrowth.engines.world import EngineSettings, Job, World


class JobMessage(NamedTuple):
    """A job and what its device has kept. Its download is sent once for all jobs; `down` is its number."""

    position: int
    job: Job
    down: int
    own: State
    residual: State


@dataclass
class WorkerReport:
    """What a worker reports about its jobs, besides the partial results."""

    jobs: dict[int, tuple[JobReport, State | None, State | None]] = field(default_factory=dict)  # see RoundReport.add
    failure: tuple[int, Exception] | None = None  # the job that failed; the worker stops after it
    has_partial_results: bool = False


class Worker:
    """What runs in a process of the cluster. `world` and `shards` are sent once, the jobs of a round in one call."""

    def __init__(
        self, world: SerializedObject, shards: SerializedObject, torch_device: str, settings: EngineSettings
    ) -> None:
        set_torch(settings.tf32)
        task, client, servers, links = deserialize(world)
        population = deserialize(shards, copy=False)
        self.world = World(task.to(torch_device), client, servers, population, links=links, torch_device=torch_device)

    def machine(self) -> str:
        """The id of the machine that the worker runs on."""
        return str(ray.get_runtime_context().get_node_id())

    def run(self, messages: SerializedObject, *downs: SerializedObject) -> tuple[SerializedObject, SerializedObject]:
        """Runs jobs; returns the partial results and the report."""
        world, report = self.world, WorkerReport()
        downloads = [move_to(deserialize(down), world.torch_device) for down in downs]
        combiner = WorkerCombiner(world.servers)
        for position, job, down, own, residual in deserialize(messages):
            began = perf_counter()
            try:
                states = world.states = States(math.inf)
                states.put(job.device, move_to(own, world.torch_device), move_to(residual, world.torch_device))
                before = states.get(job.device), states.residual(job.device)
                finished = run_job(world, job._replace(down=downloads[down]))
                one = combiner.add(job, finished)
            except Exception as error:
                report.failure = (position, _make_portable(error))
                break
            after = finished.own, finished.residual
            kept = [None if new is old else new for new, old in zip(after, before, strict=True)]
            report.jobs[position] = one._replace(seconds=perf_counter() - began), kept[0], kept[1]
        partial_results = combiner.partial_results()
        report.has_partial_results = bool(partial_results)
        return serialize(partial_results), serialize(report)

    def merge(self, *partial_results: SerializedObject) -> SerializedObject:
        """The partial results of several workers as those of one."""
        return serialize(merge_partial_results(self.world.servers, map(deserialize, partial_results)))


def _make_portable(error: Exception) -> Exception:
    """The same error if it can be pickled, with its traceback as a note, because pickling loses that."""
    trace = "".join(traceback.format_exception(error))
    try:
        cloudpickle.loads(cloudpickle.dumps(error))
    except Exception:
        error = RunError(f"{type(error).__name__}: {error}")
    error.add_note(trace)
    return error
