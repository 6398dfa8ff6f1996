"""Which engine `auto` stands for: the one that a short timing on this machine favours."""

from __future__ import annotations

from collections.abc import Sequence
from time import perf_counter
from typing import Any

import torch

from undergrowth.core import Context
from undergrowth.engines import Engine, Job, Serial, States, Vector
from undergrowth.engines.processes.engine import cores
from undergrowth.runs.federation import Federation
from undergrowth.runs.outlook import first_round

TRIED = 8  # jobs
CLEARLY = 1.5  # times faster: less may be noise, and another engine next time would give other last bits
WORTH_FORKING = 1.0  # seconds that a round takes in one process


def choose(federation: Federation) -> tuple[dict[str, Any], str]:
    """The settings of an engine, and why these, in words."""
    if torch.device(federation.world.device).type == "cuda":
        return {"engine": "vector"}, "took vector: many clients at once are what a GPU is for"
    packets, _ = first_round(federation)
    # Those in the middle of the order by samples: the typical size, not the smallest.
    names = sorted(packets, key=federation.population.size)
    middle = names[max(0, len(names) // 2 - TRIED // 2) :][:TRIED]
    jobs = [Job("server", name, packets[name], Context(0, name, 0)) for name in middle]
    alone, stacked = (_seconds(engine, federation, jobs) for engine in (Serial(), Vector()))
    told = f"a client takes {1e3 * alone:.3g} ms alone and {1e3 * stacked:.3g} ms in a stack, on {cores()} cores"
    stack = alone > CLEARLY * stacked
    if cores() > 1 and min(alone, stacked) * len(names) > WORTH_FORKING:
        in_stacks = " of stacked clients" if stack else ""
        return {"engine": "processes", "stack": stack}, f"took processes{in_stacks}: {told}"
    name = "vector" if stack else "serial"
    return {"engine": name}, f"took {name}: {told}"


def _seconds(engine: Engine, federation: Federation, jobs: Sequence[Job]) -> float:
    """Seconds a client, once warm. The devices' own states are left alone."""
    world = federation.world
    states, world.states = world.states, States()
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        engine.open(world)
        list(engine.run(jobs))
        began = perf_counter()
        list(engine.run(jobs))
        return (perf_counter() - began) / len(jobs)
    finally:
        world.states = states
        torch.set_num_threads(threads)
