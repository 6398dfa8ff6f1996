"""What a short timing on this machine decides: which engine `auto` stands for, and how many workers share a GPU."""

from __future__ import annotations

import os
from collections.abc import Sequence
from contextlib import redirect_stderr, suppress
from multiprocessing import Pipe, get_context
from time import process_time
from typing import Any

import torch

from undergrowth.core import Context
from undergrowth.engines import Engine, Job, Processes, Serial, States, Vector
from undergrowth.engines.processes.engine import cores
from undergrowth.runs.federation import Federation
from undergrowth.runs.outlook import first_round

TRIED = 8  # jobs
CLEARLY = 1.5  # times faster: less may be noise, and another engine next time would give other last bits
WORTH_FORKING = 0.2  # seconds that a round takes in one process


def choose(federation: Federation) -> tuple[dict[str, Any], str]:
    """The settings of an engine, and why these, in words."""
    if torch.device(federation.world.device).type == "cuda":
        return {"engine": "vector"}, "took vector: many clients at once are what a GPU is for"
    jobs, asked = typical(federation, TRIED)
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
    told = engine.settle(typical(federation, 1)[0])
    # Workers get their devices in turn, so a list with one device for each gives them these again.
    devices = {"device": ",".join(engine.kinds)} if len(set(engine.kinds)) > 1 else {}
    return {"workers": len(engine.kinds), **devices}, told


def typical(federation: Federation, count: int) -> tuple[list[Job], int]:
    """Jobs of usual size in the first round, and how many devices are asked in it."""
    packets, _ = first_round(federation)
    # Those in the middle of the order by samples, not the smallest.
    names = sorted(packets, key=federation.population.size)
    middle = names[max(0, len(names) // 2 - count // 2) :][:count]
    return [Job("server", name, packets[name], Context(0, name, 0)) for name in middle], len(names)


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
        answer: tuple[float, float] = ours.recv()
        return answer
    except EOFError:
        return None
    finally:
        ours.close()
        process.join()


def _timed(federation: Federation, jobs: Sequence[Job]) -> tuple[float, float]:
    """Seconds a client, alone and in a stack."""
    return _seconds(Serial(), federation, jobs), _seconds(Vector(), federation, jobs)


def _seconds(engine: Engine, federation: Federation, jobs: Sequence[Job]) -> float:
    """Seconds a client, once warm. The devices' own states are left alone."""
    world = federation.world
    states, world.states = world.states, States()
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        engine.open(world)
        list(engine.run(jobs))
        began = process_time()  # what others do on this machine must not decide
        list(engine.run(jobs))
        return (process_time() - began) / len(jobs)
    finally:
        world.states = states
        torch.set_num_threads(threads)
