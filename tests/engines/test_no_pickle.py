"""Nothing is pickled between the engine `processes` and its workers, whatever the jobs are."""

from __future__ import annotations

import _pickle
import pickle
from collections.abc import Callable
from multiprocessing import Pipe
from multiprocessing.reduction import ForkingPickler
from typing import Any

import pytest

from undergrowth.core import Context, Model, Packet, RunError, Task, Train
from undergrowth.engines import EngineSettings, Job, ProcessesEngine, World
from undergrowth.engines.processes.worker_pool import WorkerPool
from undergrowth.methods import FedAvg

from ..double_precision import double_model
from .test_processes_jobs import NAMES, Careless, assert_alike, by_serial, jobs, world, wrong_names
from .test_vector import DATA, POPULATION


class Pickled(Exception):
    """Something was pickled or unpickled."""


def refuse(*_: object, **__: object) -> Any:
    raise Pickled("pickle was used")


@pytest.fixture(autouse=True)
def no_pickle(monkeypatch: pytest.MonkeyPatch) -> None:
    """Makes all of pickle raise, also in the workers, because they are forked from this process."""
    for module in (pickle, _pickle):
        for name in ("Pickler", "Unpickler", "dump", "dumps", "load", "loads"):
            monkeypatch.setattr(module, name, refuse)
    for name in ("dumps", "loads"):
        monkeypatch.setattr(ForkingPickler, name, refuse)


@pytest.fixture
def open_engine(request: pytest.FixtureRequest) -> Callable[..., ProcessesEngine]:
    def go(place: Any, **settings: Any) -> ProcessesEngine:
        engine = ProcessesEngine(EngineSettings(workers=2, **settings))
        request.addfinalizer(engine.close)
        engine.open(place)
        return engine

    return go


@pytest.mark.parametrize("stack", [False, True])
def test_training_needs_no_pickle(open_engine, stack):
    task = Task(Model(double_model(DATA, "mlp")), DATA.classes, Train(batch=16, lr=0.05))
    engine = open_engine(World(task, FedAvg().client, {"server": FedAvg().server}, POPULATION), stack=stack)
    down = Packet(task.model.initial(3))
    work = [Job("server", name, down, Context(1, name, 0), True) for name in POPULATION.devices]
    (outcome,) = engine.run(work)
    assert list(outcome.sent) == list(POPULATION.devices)


def test_jobs_with_states_need_no_pickle(open_engine):
    ours, serial = world(), world()
    engine = open_engine(ours)
    for round in range(2):
        work = [*jobs(NAMES[:4], round=round), *jobs(NAMES[4:], combine=False, round=round)]
        assert_alike(list(engine.run(work)), by_serial(serial, work))
    assert ours.states.snapshot() == serial.states.snapshot()


def test_dead_workers_and_refused_uploads_need_no_pickle(open_engine):
    place = world(Careless(), bad={NAMES[1]: wrong_names})
    engine = open_engine(place, placement="rr")
    assert list(next(iter(engine.run(jobs(NAMES)))).refused) == [NAMES[1]]
    for number in list(engine.pids):
        engine._pool.end(number)
    assert len(list(engine.run(jobs(NAMES, round=1)))) == 1


def test_the_patch_raises_in_this_process():
    with pytest.raises(Pickled):
        pickle.dumps(1)
    ours, theirs = Pipe()
    with ours, theirs:
        with pytest.raises(Pickled):
            ours.send(object())
        theirs.send_bytes(b"\x80\x04N.")
        with pytest.raises(Pickled):
            ours.recv()


def test_the_patch_raises_in_a_worker(open_engine):
    def pickled(up: Packet) -> Packet:
        pickle.dumps(up.scalars)
        return up

    with pytest.raises(RunError, match="pickle was used"):
        list(open_engine(world(bad={NAMES[0]: pickled})).run(jobs(NAMES)))


def test_a_pool_that_pickled_its_messages_would_be_found(open_engine, monkeypatch):
    def send(self: WorkerPool, number: int, message: bytes) -> None:
        self._workers.setdefault(number, self._spawn(number))[1].send(message)

    monkeypatch.setattr(WorkerPool, "send", send)
    with pytest.raises(Pickled):
        list(open_engine(world()).run(jobs(NAMES)))
