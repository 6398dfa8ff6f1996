"""Which engine `auto` stands for: the one that a short timing on this machine favours."""

from __future__ import annotations

import os
from collections.abc import Sequence
from time import perf_counter

import torch

from undergrowth.core import Context
from undergrowth.engines import Engine, Job, Serial, States, Vector
from undergrowth.runs.federation import Federation
from undergrowth.runs.outlook import first_packets

TRIED = 8  # jobs
CLEARLY = 1.5  # times faster: less may be noise, and another engine next time would give other last bits
WORTH_FORKING = 2.0  # seconds that a round takes serially


def choose(federation: Federation) -> tuple[str, str]:
    """The name of an engine, and why."""
    if torch.device(federation.world.device).type == "cuda":
        return "vector", "many clients at once are what a GPU is for"
    packets = first_packets(federation)
    names = list(packets)
    # The typical size, not the smallest: devices in the middle of the order by samples.
    names.sort(key=federation.population.size)
    middle = names[max(0, len(names) // 2 - TRIED // 2) :][:TRIED]
    jobs = [Job("server", name, packets[name], Context(0, name, 0)) for name in middle]
    serial, vector = (_seconds(engine, federation, jobs) for engine in (Serial(), Vector()))
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    told = f"a client takes {1e3 * serial:.3g} ms alone and {1e3 * vector:.3g} ms in a stack, on {cores} cores"
    if serial > CLEARLY * vector:
        return "vector", told
    if cores > 1 and serial * len(names) > WORTH_FORKING:
        return "processes", told
    return "serial", told


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
