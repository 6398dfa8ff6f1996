"""Workers of `processes` that die, clients that fail, parents that are stopped: what is lost, and what is left."""

from __future__ import annotations

import mmap
import os
import random
import signal
import threading
import time
from itertools import product
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import pytest
import torch

from undergrowth.core import InputError, Packet, RunError
from undergrowth.engines import Processes, Settings
from undergrowth.engines.processes.engine import MOST_DEATHS
from undergrowth.learning import Averaging
from undergrowth.runs.run import start

from ..runs.objects import Own, digest, linear
from ..warm import begin
from .dying import Countdown, die, killed_in
from .test_processes_jobs import NAMES, Keeping, assert_alike, by_serial, jobs, world


def alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def wait_until(true: Any, seconds: float = 40.0) -> bool:
    deadline = time.monotonic() + seconds
    while not true() and time.monotonic() < deadline:
        time.sleep(0.01)
    return bool(true())


def opened(place: Any, request: Any, workers: int = 2, **settings: Any) -> Processes:
    engine = Processes(Settings(workers=workers, **settings))
    engine.open(place)
    request.addfinalizer(engine.close)
    return engine


@pytest.mark.parametrize("server", [Averaging(), Keeping()], ids=["mean", "growing totals"])
@pytest.mark.parametrize("fold", [True, False])
def test_a_worker_killed_at_any_step_changes_no_bit(fold, server, request, monkeypatch):
    whole = world(server)
    expected = list(opened(whole, request).run(jobs(NAMES, fold)))
    for step, number in product(("before", "after", "tensors", "words"), (1, 2, 5, 8)):
        with monkeypatch.context() as patched:
            when = Countdown(number)
            killed_in(step, when, patched)
            place = world(server)
            engine = opened(place, request)
            outcomes = list(engine.run(jobs(NAMES, fold)))
        engine.close()
        assert when.left[0] <= 0, f"nobody was killed: {step}, {number}"
        assert len(outcomes) == len(expected)
        for one, other in zip(outcomes, expected):
            assert str(one.sent) == str(other.sent)
            assert one.scalars == other.scalars
            assert one.up.scalars == other.up.scalars
            assert all(torch.equal(one.up.tensors[name], value) for name, value in other.up.tensors.items())
        assert place.states.snapshot() == whole.states.snapshot()


def test_only_the_job_that_was_under_way_is_done_again(request, monkeypatch):
    done = memoryview(mmap.mmap(-1, 8)).cast("q")

    def count(up: Packet) -> Packet:
        done[0] += 1
        return up

    killed_in("before", Countdown(5), monkeypatch)
    place = world(bad=dict.fromkeys(NAMES, count))
    list(opened(place, request, workers=1).run(jobs(NAMES)))
    assert done[0] == len(NAMES) + 1


def test_idle_workers_and_the_nursery_may_be_killed_too(request):
    place, serial = world(), world()
    engine = opened(place, request)
    for round in range(6):
        assert_alike(list(engine.run(jobs(NAMES, round=round))), by_serial(serial, jobs(NAMES, round=round)))
        nursery = engine._crew._nursery.pid
        victim = [engine.pids[0], engine.pids[1], nursery][round % 3]
        os.kill(victim, signal.SIGKILL)
    assert place.states.snapshot() == serial.states.snapshot()


@pytest.mark.parametrize("method", ["fedavg", "local", "fedbuff"])
def test_a_run_whose_workers_are_killed_at_random_moments_gives_the_same_bits(method, tmp_path):
    begun = memoryview(mmap.mmap(-1, 8)).cast("q")

    def slowly(shard: Any) -> Any:
        begun[0] += 1
        time.sleep(0.004)
        return shard

    sizes = (8, 12, 16, 20, 40, 30, 9, 25)
    data = Own(sizes=sizes, changes={f"phone-{number}": slowly for number in range(len(sizes))})
    engines: list[Processes] = []
    kills = 0

    def go(name: str) -> str:
        tree = {
            "method": method,
            "train": {"rounds": 5},
            "links": {"up": "int8"},
            "run": {"engine": "processes", "workers": 2, "out": str(tmp_path / name)},
        }
        keep = engines.append
        return digest(
            start(tree, data=data, model=linear, on_start=lambda execution: keep(execution.federation.engine))
        )

    whole = go("whole")
    stop = threading.Event()

    def kill() -> None:
        nonlocal kills
        generator = random.Random(1)
        while not stop.wait(generator.uniform(0.002, 0.02)):
            before = begun[0]
            # Whoever was killed goes to the end of the list, so it can finish something before its next turn.
            wait_until(lambda seen=before: stop.is_set() or begun[0] >= seen + 3, 60)
            for pid in list(engines[-1].pids.values())[:1] if len(engines) > 1 else ():
                try:
                    os.kill(pid, signal.SIGKILL)
                    kills += 1
                except ProcessLookupError:
                    pass

    killer = threading.Thread(target=kill)
    killer.start()
    try:
        assert go("killed") == whole
    finally:
        stop.set()
        killer.join()
    assert kills > 2


def test_a_job_that_kills_every_worker_ends_the_run_and_is_named(request):
    place = world(bad={"device-3": lambda up: die()})
    engine = opened(place, request)
    with pytest.raises(RunError, match=rf"device-3 ended its worker process {MOST_DEATHS} times in a row in round 3"):
        list(engine.run(jobs(NAMES, round=2)))


def test_a_job_that_kills_fewer_workers_does_not(request):
    when = Countdown(1, often=MOST_DEATHS - 1)
    place = world(bad={"device-3": lambda up: die() if when() else up})
    assert_alike(list(opened(place, request).run(jobs(NAMES))), by_serial(world(), jobs(NAMES)))


@pytest.mark.parametrize("error", [ValueError, ZeroDivisionError, MemoryError, InputError, RunError])
def test_what_a_client_raises_is_raised_here_as_in_the_serial_engine(error, request):
    def fail(up: Packet) -> Packet:
        raise error("no luck")

    place = world(bad={"device-1": fail})
    with pytest.raises((RunError, InputError)) as serial:
        by_serial(place, jobs(NAMES, round=2))
    engine = opened(place, request)
    with pytest.raises(serial.type) as ours:
        list(engine.run(jobs(NAMES, round=2)))
    assert str(ours.value) == str(serial.value)
    assert "no luck" in ours.value.__notes__[0]
    assert engine.pids == {}
    place.client.bad.clear()
    assert len(list(engine.run(jobs(NAMES, round=2)))) == 1


def test_an_upload_that_no_packet_can_hold_is_a_sentence(request):
    place = world(bad={"device-1": lambda up: Packet(up.tensors, {**up.scalars, "odd": {1, 2}})})
    place.servers["server"] = Keeping()
    with pytest.raises(RunError, match="device-1 failed in round 1"):
        list(opened(place, request).run(jobs(NAMES, fold=False)))


def test_shards_that_cannot_be_made_are_a_sentence_with_the_device(request):
    place = world()
    place.shards.train = lambda device: {}[device]  # type: ignore[method-assign]
    with pytest.raises(RunError, match=r"device-\d failed in round 1: KeyError"):
        list(opened(place, request).run(jobs(NAMES)))


def parent_of_workers(said: Connection, errors: str, busy: str) -> None:
    """In a session of its own, with what it complains of in a file."""
    os.setsid()
    os.dup2(os.open(errors, os.O_WRONLY | os.O_CREAT), 2)
    engine = Processes(Settings(workers=2))
    place = world(bad=dict.fromkeys(["device-7", "device-6"], lambda up: time.sleep(60)))
    engine.open(place)
    list(engine.run(jobs(NAMES[:4])))
    said.send([engine._crew._nursery.pid, *engine.pids.values()])
    if busy == "idle":
        time.sleep(60)
    list(engine.run(jobs(NAMES)))


@pytest.mark.parametrize(
    ("how", "busy"),
    [
        (signal.SIGKILL, "busy"),
        (signal.SIGKILL, "idle"),
        (signal.SIGTERM, "busy"),
        (signal.SIGINT, "busy"),
        ("group", "busy"),
    ],
)
def test_workers_end_with_their_parent(how, busy, tmp_path):
    errors = tmp_path / "errors"
    parent, said = begin(parent_of_workers, str(errors), busy)
    pids = said.recv()
    assert len(pids) == 3, errors.read_text()
    time.sleep(0.2)
    assert all(alive(pid) for pid in pids)
    if how == "group":  # what a terminal does on Ctrl-C
        os.killpg(parent.pid, signal.SIGINT)
    else:
        os.kill(parent.pid, how)
    assert wait_until(lambda: not any(alive(pid) for pid in pids))
    parent.join(10)
    assert parent.exitcode  # it did not just come to its end
    assert errors.read_text().count("Traceback") <= 1  # the parent's own


def test_workers_ignore_the_interrupt_that_is_meant_for_their_parent(request):
    engine = opened(world(), request)
    list(engine.run(jobs(NAMES)))
    before = engine.pids
    for pid in (*before.values(), engine._crew._nursery.pid):
        os.kill(pid, signal.SIGINT)
    time.sleep(0.05)
    list(engine.run(jobs(NAMES, round=1)))
    assert engine.pids == before
