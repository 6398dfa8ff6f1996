"""What a short timing on this machine decides: which engine `auto` stands for, and how many workers share a GPU."""

from __future__ import annotations

import math
import os
from collections.abc import Sequence
from contextlib import redirect_stderr, suppress
from multiprocessing import Pipe, get_context
from time import process_time
from typing import Any, cast

import torch

from undergrowth.core import Context, LoopClient, Updates
from undergrowth.engines import Engine, Job, Processes, Serial, States, Vector
from undergrowth.engines.processes.engine import cores
from undergrowth.runs.federation import Federation
from undergrowth.runs.outlook import first_round

FEWEST, MOST = 4, 32  # jobs that are tried
SHORT = 0.05  # seconds of a job that is tried: of a longer one, only the first steps
TURNS, LONG = 5, 0.2  # the fastest of so many counts, or of those that are done after so many seconds
PATIENCE = 120.0  # seconds after which a fork is taken for one that waits for ever
CLEARLY = 1.5  # times faster: less may be noise, and another engine next time would give other last bits
WORTH_FORKING = 0.2  # seconds that a round takes in one process


def choose(federation: Federation) -> tuple[dict[str, Any], str]:
    """The settings of an engine, and why these, in words."""
    if torch.device(federation.world.device).type == "cuda":
        return {"engine": "vector"}, "took vector: many clients at once are what a GPU is for"
    asked = math.ceil(federation.task.train.sample * len(federation.population.devices))
    jobs = typical(federation, min(asked, MOST))
    timed = _in_a_fork(federation, jobs)
    alone, stacked = timed or _timed(federation, jobs)
    told = f"a client takes {1e3 * alone:.3g} ms alone and {1e3 * stacked:.3g} ms in a stack, on {cores()} cores"
    stack = alone > CLEARLY * stacked
    if timed and cores() > 1 and min(alone, stacked) * asked > WORTH_FORKING:
        in_stacks = " of stacked clients" if stack else ""
        return {"engine": "processes", "stack": stack}, f"took processes{in_stacks}: {told}"
    name = "vector" if stack else "serial"
    return {"engine": name}, f"took {name}: {told}"


def settle(federation: Federation) -> tuple[dict[str, Any], list[str]]:
    """The settings that give each GPU as many workers as it bears, where that is open, and why these, in words."""
    engine = federation.simulation.engine
    if not isinstance(engine, Processes) or engine.kinds:
        return {}, []
    told = engine.settle(typical(federation, 1))
    # Workers get their devices in turn, so a list with one device for each gives them these again.
    devices = {"device": ",".join(engine.kinds)} if len(set(engine.kinds)) > 1 else {}
    return {"workers": len(engine.kinds), **devices}, told


def typical(federation: Federation, count: int) -> list[Job]:
    """Jobs of usual size in the first round."""
    packets, _ = first_round(federation)
    # Those in the middle of the order by samples, not the smallest.
    names = sorted(packets, key=federation.population.size)
    middle = names[max(0, len(names) // 2 - count // 2) :][:count]
    return [Job("server", name, packets[name], Context(0, name, 0)) for name in middle]


def _in_a_fork(federation: Federation, jobs: Sequence[Job]) -> tuple[float, float] | None:
    """Timed where it leaves no trace: on a machine with a GPU, a process that has trained can start no workers.

    None: a fork of this process cannot train, for that reason or another.
    """
    ours, theirs = Pipe()

    def work() -> None:
        with suppress(Exception), open(os.devnull, "w") as nowhere, redirect_stderr(nowhere):
            theirs.send(_timed(federation, jobs))

    process = get_context("fork").Process(target=work, daemon=True)
    process.start()
    theirs.close()
    try:
        answer: tuple[float, float] | None = ours.recv() if ours.poll(PATIENCE) else None
        return answer
    except EOFError:
        return None
    finally:
        ours.close()
        process.kill()
        process.join()


def _timed(federation: Federation, jobs: Sequence[Job]) -> tuple[float, float]:
    """Seconds a client, alone and in a stack, on one thread: in a fork, more would wait for ever."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        return _tried(federation, jobs)
    finally:
        torch.set_num_threads(threads)


def _tried(federation: Federation, jobs: Sequence[Job]) -> tuple[float, float]:
    """Where clients are long, few of them and their first steps tell."""
    middle = jobs[len(jobs) // 2]
    if not isinstance(federation.world.client, LoopClient | Updates):  # it can neither stop early nor be stacked
        alone = _seconds(Serial(), federation, [middle])
        return alone, alone
    step = max(1e-6, _seconds(Serial(), federation, [middle._replace(limit=1)]))
    steps, limit = _steps(federation, middle), max(2, int(SHORT / step))
    count = max(FEWEST, int(2 * SHORT / step / min(steps, limit)))
    tried = [job._replace(limit=limit) for job in jobs[max(0, (len(jobs) - count) // 2) :][:count]]
    whole = max(1.0, steps / limit)
    return whole * _seconds(Serial(), federation, tried), whole * _seconds(Vector(), federation, tried)


def _steps(federation: Federation, job: Job) -> int:
    """How many steps a job of a client that is made of steps has, one at least."""
    client, task = federation.world.client, federation.world.task
    shard = federation.world.samples.of(job.device)
    clients = client.updates(task, job.down).values() if isinstance(client, Updates) else (cast(LoopClient, client),)
    return max(1, sum(len(each.begin(task, job.down, shard, {}, job.context)[1]) for each in clients))


def _seconds(engine: Engine, federation: Federation, jobs: Sequence[Job]) -> float:
    """Seconds a client, once warm. The devices' own states are left alone."""
    world = federation.world
    states, world.states = world.states, States()
    turns: list[float] = []
    try:
        engine.open(world)
        list(engine.run(jobs))
        while len(turns) < TURNS and sum(turns) < LONG:
            began = process_time()  # what others do on this machine must not decide
            list(engine.run(jobs))
            turns.append(process_time() - began)
        return min(turns) / len(jobs)
    finally:
        world.states = states
