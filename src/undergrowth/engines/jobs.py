"""One job: from the packet that a device receives to its upload as the server gets it."""

from __future__ import annotations

from dataclasses import dataclass

from undergrowth.core import CODE_ERRORS, InputError, Packet, RunError, Shard, State, describe_error, find_non_finite
from undergrowth.engines.samples import shards_at
from undergrowth.engines.world import Job, World


@dataclass(frozen=True)
class FinishedJob:
    """The upload as it leaves the link, its bytes on the link, and what the device keeps."""

    up: Packet
    size: int
    own: State
    residual: State
    problem: str | None  # why the upload cannot be used


def run_job(world: World, job: Job) -> FinishedJob:
    """Runs one job in this process, with the states that `world` holds for its device."""
    shard: Shard | None = None
    limit = {} if job.limit is None else {"limit": job.limit}
    own, residual = world.states.get(job.device), world.states.residual(job.device)
    try:
        shard = world.samples.of(job.device, job.root_round)
        up, kept = world.client.local(world.task, job.down, shard, own, job.context, **limit)
        return send_up(world, job, up, kept, residual, check_finite=True)
    except InputError:
        raise
    except CODE_ERRORS as error:
        raise job_error(job, shard, error) from error


def send_up(world: World, job: Job, up: Packet, kept: State, residual: State, check_finite: bool) -> FinishedJob:
    """Passes an upload through its link and checks it. `check_finite`: also look for values that are not finite."""
    up, size, residual = world.links.up(up, job.down.tensors, residual, job.context)
    problem = (find_non_finite(up) if check_finite else None) or world.servers[job.node].check(world.task, up)
    return FinishedJob(up, size, kept, residual, problem)


def job_error(job: Job, shard: Shard | None, error: BaseException) -> RunError:
    """The error to raise for a client that raised `error`: names the device, the round and the number of samples."""
    samples = "" if shard is None else f" with {len(shard)} samples"
    return RunError(f"{job.device} failed in round {job.context.round + 1}{samples}: {describe_error(error)}")


def count_batches(world: World, job: Job) -> int:
    """Batches that a job goes through, at least one. A placement balances these."""
    train = world.task.train
    whole, rest = divmod(shards_at(world.shards, job.root_round).size(job.device), train.batch)
    batches = (whole if whole and train.drop_last else whole + (rest > 0)) * train.epochs
    return max(1, batches if job.limit is None else min(batches, job.limit))
