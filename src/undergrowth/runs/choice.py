"""The engine `auto`, the default: serial, vector or processes, as a short timing on this machine decides.

On a GPU it is `vector`. On a CPU a few clients are timed, alone and in a stack; what is not clearly faster is not
taken, and a round must be long for worker processes to pay. The timing is remembered (`timings.py`), so the same run
gets the same engine again; the notes of a run say which, and why.
"""

from __future__ import annotations

import math
import os
import platform
import re
from collections.abc import Callable, Sequence
from contextlib import redirect_stderr, redirect_stdout, suppress
from multiprocessing import Pipe, current_process, get_context
from time import process_time
from typing import Any, cast
from warnings import catch_warnings, simplefilter

import torch

from undergrowth.core import Context, LoopClient, Updates
from undergrowth.engines import Engine, Job, Processes, Serial, States, Vector
from undergrowth.engines.processes.engine import cores
from undergrowth.runs.federation import Federation
from undergrowth.runs.timings import recall, remember

FEWEST, MOST = 4, 32  # jobs that are tried
SHORT = 0.05  # seconds of a job that is tried: of a longer one, only the first steps
HEAVY = 0.02  # seconds of a step that is all arithmetic: a stack saves calls, and these take a millisecond or two
TURNS, LONG = 5, 0.2  # the fastest of so many counts, or of those that are done after so many seconds
VERY_LONG = 2.0  # seconds after which it does not matter that the first turn is a cold one
PATIENCE = 120.0  # seconds after which a fork is taken for one that waits for ever
CLEARLY = 1.5  # times faster: less may be noise, and another engine next time would give other last bits
SLOW, CALLS = 2e9, 2e-3  # FLOPs a second of a slow core, and what the calls of a step take it
BRIEF = 1.0  # seconds that all rounds take one client after the other: nothing is gained
WORTH_FORKING = 0.2  # seconds that a round takes in one process

_NOWHERE = re.compile(r" at 0x\w+")  # the place of an object in memory, which is another one each time


def choose(federation: Federation) -> tuple[dict[str, Any], str]:
    """The settings of an engine, and why these, in words."""
    if torch.device(federation.world.device).type == "cuda":
        return {"engine": "vector"}, "took vector: many clients at once are what a GPU is for"
    asked = math.ceil(federation.task.train.sample * len(federation.population.devices))
    jobs = typical(federation, min(asked, MOST))
    clients = asked * federation.task.train.rounds
    if _at_most(federation, jobs[len(jobs) // 2]) * clients < BRIEF:
        return {"engine": "serial"}, "took serial: there is little to compute"
    try:
        alone, stacked, forked = _measured(federation, jobs, clients)
    except Exception:  # which the run itself will meet, where it is told and nothing is lost
        return {"engine": "serial"}, "took serial: its clients could not be timed"
    if alone * clients < BRIEF:
        return {"engine": "serial"}, f"took serial: all clients together take {alone * clients:.2g} seconds"
    in_a_stack = f"{1e3 * stacked:.3g} ms in a stack" if stacked != alone else "would gain nothing in a stack"
    told = f"a client takes {1e3 * alone:.3g} ms alone and {in_a_stack}, on {cores()} cores"
    stack = alone > CLEARLY * stacked
    if forked and cores() > 1 and min(alone, stacked) * asked > WORTH_FORKING:
        in_stacks = " of stacked clients" if stack else ""
        return {"engine": "processes", "stack": stack}, f"took processes{in_stacks}: {told}"
    name = "vector" if stack else "serial"
    return {"engine": name}, f"took {name}: {told}"


def settle(federation: Federation) -> tuple[dict[str, Any], list[str]]:
    """The settings that give each GPU as many workers as it bears, where that is open, and why these, in words."""
    engine = federation.engine
    if not isinstance(engine, Processes) or engine.kinds:
        return {}, []
    told = engine.settle(typical(federation, 1))
    # Workers get their devices in turn, so a list with one device for each gives them these again.
    devices = {"device": ",".join(engine.kinds)} if len(set(engine.kinds)) > 1 else {}
    return {"workers": len(engine.kinds), **devices}, told


def typical(federation: Federation, count: int) -> list[Job]:
    """Jobs of usual size in the first round."""
    packets = federation.first_round.packets
    # Those in the middle of the order by samples, not the smallest.
    names = sorted(packets, key=federation.population.size)
    middle = names[max(0, len(names) // 2 - count // 2) :][:count]
    return [Job("server", name, packets[name], Context(0, name, 0)) for name in middle]


def _at_most(federation: Federation, job: Job) -> float:
    """Seconds of a client, by counting: no core is slower, so where this is little nothing needs to be timed."""
    train = federation.task.train
    steps = train.epochs * math.ceil(federation.population.size(job.device) / train.batch)
    work, _ = federation.clock.plain_timing(job.device, *federation.world.links.down(job.down), None)
    return work.flops / SLOW + steps * CALLS


def _measured(federation: Federation, jobs: Sequence[Job], clients: int) -> tuple[float, float, bool]:
    """Seconds a client, alone and in a stack, and whether a fork of this process can train; as it was the last time."""
    task, sizes = federation.task, [federation.population.size(job.device) for job in jobs]
    models = [task.model.module, *(each.module for each in task.ladder.values())]
    machine = platform.node(), torch.__version__, cores()
    named = machine, federation.method, task.train, task.selector, task.model.mixed, models, sizes, clients
    what = _NOWHERE.sub("", repr(named))
    known = recall(what)
    if known is not None and len(known) == 2:
        return known[0], known[1], _in_a_fork(_trained) is not None
    timed = _in_a_fork(lambda: _timed(federation, jobs, clients))
    if timed is None:
        return *_timed(federation, jobs, clients), False
    remember(what, timed)
    return *timed, True


def _trained() -> tuple[float, float]:
    """The least that training takes."""
    one = torch.ones((), requires_grad=True)
    torch.autograd.grad(one.exp(), [one])
    return 0.0, 0.0


def _in_a_fork(timed: Callable[[], tuple[float, float]]) -> tuple[float, float] | None:
    """Done where it leaves no trace: on a machine with a GPU, a process that has trained can start no workers.

    None: a fork of this process cannot train, for that reason or another.
    """
    if not hasattr(os, "fork") or current_process().daemon:
        return None
    ours, theirs = Pipe()

    def work() -> None:
        with suppress(Exception), open(os.devnull, "w") as hush, redirect_stdout(hush), redirect_stderr(hush):
            theirs.send(timed())

    process = get_context("fork").Process(target=work, daemon=True)
    with catch_warnings():
        # Python warns of other threads when it forks. What they hold is not used in the child.
        simplefilter("ignore", DeprecationWarning)
        process.start()
    theirs.close()
    try:
        if not ours.poll(PATIENCE):
            raise TimeoutError
        answer: tuple[float, float] = ours.recv()
        return answer
    except EOFError:
        return None
    finally:
        ours.close()
        process.kill()
        process.join()


def _timed(federation: Federation, jobs: Sequence[Job], clients: int) -> tuple[float, float]:
    """Seconds a client, alone and in a stack, on one thread: in a fork, more would wait for ever."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        return _tried(federation, jobs, clients)
    finally:
        torch.set_num_threads(threads)


def _tried(federation: Federation, jobs: Sequence[Job], clients: int) -> tuple[float, float]:
    """Where clients are long, few of them and their first steps tell."""
    middle = jobs[len(jobs) // 2]
    if not isinstance(federation.world.client, LoopClient | Updates):  # it can neither stop early nor be stacked
        alone = _seconds(Serial(), federation, [middle])
        return alone, alone
    step = max(1e-6, _seconds(Serial(), federation, [middle._replace(limit=1)]))
    steps, limit = _steps(federation, middle), max(2, int(SHORT / step))
    if step * steps * clients < BRIEF or step > HEAVY:
        return step * steps, step * steps
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
        while len(turns) <= TURNS and sum(turns[1:]) < LONG and sum(turns) < VERY_LONG:
            began = process_time()  # what others do on this machine must not decide
            list(engine.run(jobs))
            turns.append(process_time() - began)
        return min(turns[1:] or turns) / len(jobs)
    finally:
        world.states = states
