"""The engine `processes` when workers die, clients fail and parents are stopped: no result and no process is lost."""

from __future__ import annotations

import mmap
import os
import signal
import socket
import time
from itertools import product
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import pytest
import torch

from undergrowth.core import InputError, Packet, RunError
from undergrowth.engines import EngineSettings, ProcessesEngine
from undergrowth.engines.processes.engine import MAX_DEATHS
from undergrowth.engines.processes.fork_server import _REQUEST, ForkServer
from undergrowth.learning import AveragingServer
from undergrowth.runs.execution import start

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


STEPS, COUNTS = ("before", "after", "tensors", "words"), (1, 2, 5)
DEATHS = list(product(STEPS, COUNTS))


@pytest.mark.parametrize("server", [AveragingServer(), Keeping()], ids=["mean", "growing totals"])
@pytest.mark.parametrize(
    ("combine", "deaths"),
    [
        (True, list(zip(STEPS, (1, 2, 5, 1), strict=True))),
        (False, list(zip(STEPS, (5, 1, 2, 5), strict=True))),
        pytest.param(True, DEATHS, marks=pytest.mark.slow),
        pytest.param(False, DEATHS, marks=pytest.mark.slow),
    ],
    ids=["combined", "single", "combined, any step", "single, any step"],
)
def test_a_worker_killed_at_any_step_changes_no_bit(combine, deaths, server, opened, monkeypatch):
    """`deaths`: where the worker is killed, and at which of the times that workers come there."""
    whole = world(server)
    expected = list(opened(whole).run(jobs(NAMES, combine)))
    for step, number in deaths:
        with monkeypatch.context() as patched:
            when = Countdown(number)
            killed_in(step, when, patched)
            place = world(server)
            engine = opened(place)
            outcomes = list(engine.run(jobs(NAMES, combine)))
        engine.close()
        assert when.left[0] <= 0, f"nobody was killed: {step}, {number}"
        assert len(outcomes) == len(expected)
        for one, other in zip(outcomes, expected, strict=True):
            assert str(one.sent) == str(other.sent)
            assert one.scalars == other.scalars
            assert one.up.scalars == other.up.scalars
            assert all(torch.equal(one.up.tensors[name], value) for name, value in other.up.tensors.items())
        assert place.states.snapshot() == whole.states.snapshot()


def test_only_the_current_job_is_repeated(opened, monkeypatch):
    done = memoryview(mmap.mmap(-1, 8)).cast("q")

    def count(up: Packet) -> Packet:
        done[0] += 1
        return up

    killed_in("before", Countdown(5), monkeypatch)
    place = world(bad=dict.fromkeys(NAMES, count))
    list(opened(place, workers=1).run(jobs(NAMES)))
    assert done[0] == len(NAMES) + 1


def test_idle_workers_and_the_fork_server_may_be_killed(opened):
    place, serial = world(), world()
    engine = opened(place)
    for round in range(4):
        assert_alike(list(engine.run(jobs(NAMES, round=round))), by_serial(serial, jobs(NAMES, round=round)))
        victim = [engine.pids[0], engine.pids[1], engine._pool.fork_server_pid][round % 3]
        os.kill(victim, signal.SIGKILL)
    assert place.states.snapshot() == serial.states.snapshot()


@pytest.mark.parametrize("method", ["fedavg", "fedbuff"])
def test_a_run_whose_workers_are_killed_gives_the_same_bits(method, tmp_path):
    """Workers kill themselves at every fifth job that begins; a job never sees that twice in a row."""
    begun = memoryview(mmap.mmap(-1, 8)).cast("q")
    deadly = False

    def read(shard: Any) -> Any:
        begun[0] += 1  # two workers may count at the same moment, which only moves the next death
        if deadly and begun[0] % 5 == 0:
            die()
        return shard

    sizes = (8, 12, 16, 20, 40, 30, 9, 25)
    data = Own(sizes=sizes, changes={f"phone-{number}": read for number in range(len(sizes))})

    def go(name: str) -> str:
        raw = {
            "method": method,
            "train": {"rounds": 4},
            "links": {"up": "int8"},
            "run": {"engine": "processes", "workers": 2, "out": str(tmp_path / name)},
        }
        return digest(start(raw, data=data, model=linear))

    whole, jobs_of_run = go("whole"), begun[0]
    begun[0], deadly = 0, True
    assert go("killed") == whole
    assert begun[0] > jobs_of_run, "no worker was killed"


def test_a_job_that_kills_every_worker_ends_the_run_and_is_named(opened):
    place = world(bad={"device-3": lambda up: die()})
    engine = opened(place)
    with pytest.raises(RunError, match=rf"device-3 ended its worker process {MAX_DEATHS} times in a row in round 3"):
        list(engine.run(jobs(NAMES, round=2)))


def test_a_job_that_kills_fewer_workers_does_not(opened):
    when = Countdown(1, often=MAX_DEATHS - 1)
    place = world(bad={"device-3": lambda up: die() if when() else up})
    assert_alike(list(opened(place).run(jobs(NAMES))), by_serial(world(), jobs(NAMES)))


@pytest.mark.parametrize("error", [ValueError, ZeroDivisionError, MemoryError, InputError, RunError])
def test_an_error_of_a_client_is_raised_as_in_the_serial_engine(error, opened):
    def fail(up: Packet) -> Packet:
        raise error("no luck")

    place = world(bad={"device-1": fail})
    with pytest.raises((RunError, InputError)) as serial:
        by_serial(place, jobs(NAMES, round=2))
    engine = opened(place)
    with pytest.raises(serial.type) as ours:
        list(engine.run(jobs(NAMES, round=2)))
    assert str(ours.value) == str(serial.value)
    assert "no luck" in ours.value.__notes__[0]
    assert engine.pids == {}
    place.client.bad.clear()
    assert len(list(engine.run(jobs(NAMES, round=2)))) == 1


def test_an_upload_that_cannot_be_packed_is_an_error_with_the_device(opened):
    place = world(bad={"device-1": lambda up: Packet(up.tensors, {**up.scalars, "odd": {1, 2}})})
    place.servers["server"] = Keeping()
    with pytest.raises(RunError, match="device-1 failed in round 1"):
        list(opened(place).run(jobs(NAMES, combine=False)))


def test_shards_that_cannot_be_read_are_an_error_with_the_device(opened):
    place = world()
    place.shards.train = lambda device: {}[device]  # type: ignore[method-assign]
    with pytest.raises(RunError, match=r"device-\d failed in round 1: KeyError"):
        list(opened(place).run(jobs(NAMES)))


def parent_of_workers(said: Connection, errors: str, busy: str) -> None:
    """Runs an engine in its own session, with standard error in a file. `busy`: a file that marks running jobs."""
    os.setsid()
    os.dup2(os.open(errors, os.O_WRONLY | os.O_CREAT), 2)
    engine = ProcessesEngine(EngineSettings(workers=2))

    def hang(up: Packet) -> None:
        Path(busy).touch()
        signal.pause()

    place = world(bad=dict.fromkeys(["device-7", "device-6"], hang))
    engine.open(place)
    list(engine.run(jobs(NAMES[:4])))
    said.send([engine._pool.fork_server_pid, *engine.pids.values()])
    if not busy:
        signal.pause()
    list(engine.run(jobs(NAMES)))


@pytest.mark.parametrize(
    ("how", "busy"), [(signal.SIGKILL, True), (signal.SIGKILL, False), (signal.SIGTERM, True), ("group", True)]
)
def test_workers_end_with_their_parent(how, busy, tmp_path):
    errors = tmp_path / "errors"
    running = tmp_path / "running"
    parent, said = begin(parent_of_workers, str(errors), str(running) if busy else "")
    pids = said.recv()
    assert len(pids) == 3, errors.read_text()
    assert not busy or wait_until(running.exists)
    assert all(alive(pid) for pid in pids)
    if how == "group":  # as a terminal does on Ctrl-C
        os.killpg(parent.pid, signal.SIGINT)
    else:
        os.kill(parent.pid, how)
    assert wait_until(lambda: not any(alive(pid) for pid in pids))
    parent.join(10)
    assert parent.exitcode  # it did not end normally
    assert errors.read_text().count("Traceback") <= 1  # the parent's own


def test_workers_ignore_ctrl_c(opened):
    engine = opened(world())
    list(engine.run(jobs(NAMES)))
    before = engine.pids
    for pid in (*before.values(), engine._pool.fork_server_pid):
        os.kill(pid, signal.SIGINT)
    list(engine.run(jobs(NAMES, round=1)))
    assert engine.pids == before


def test_a_fork_server_ends_without_a_word_if_its_parent_dies_during_a_request(capfd):
    server = ForkServer(lambda number, connection: None)
    os.kill(server.pid, signal.SIGSTOP)
    os.waitpid(server.pid, os.WUNTRACED)
    ours, theirs = socket.socketpair()
    socket.send_fds(server._socket, [_REQUEST.pack(b"+", 0)], [theirs.fileno()])
    for end in (ours, theirs, server._socket):  # as the death of the process would
        end.close()
    os.kill(server.pid, signal.SIGCONT)
    assert os.waitpid(server.pid, 0)[1] == 0
    assert capfd.readouterr().err == ""
