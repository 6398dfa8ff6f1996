"""The engine `processes` returns the outcomes of the serial engine, and leaves nothing behind."""

from __future__ import annotations

import os
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch

from undergrowth.core import Collect, Context, Packet, Server, State
from undergrowth.engines import ENGINES, EngineSettings, Job, ProcessesEngine, SerialEngine, World
from undergrowth.engines.processes import arena as arena_module
from undergrowth.learning import AveragingServer

from ..simulation.federations import TASK, NoData, Nudge

MODEL = TASK.model.initial(0)
NAMES = [f"device-{number}" for number in range(8)]


class Sized(NoData):
    """Devices of different size, so that a placement changes their order."""

    def size(self, device: str) -> int:
        return 1 + int(device[-1]) * 40


def world(server: Server | None = None, bad: dict[str, Any] | None = None) -> World:
    return World(TASK, Nudge(bad or {}), {"server": server or AveragingServer(), "edge": AveragingServer()}, Sized())


def jobs(names: list[str], combine: bool = True, round: int = 0, node: str = "server") -> list[Job]:
    down = Packet(MODEL)
    return [Job(node, name, down, Context(1, name, round), combine) for name in names]


def by_serial(place: World, work: list[Job]) -> list[Any]:
    engine = SerialEngine()
    engine.open(place)
    return list(engine.run(work))


def assert_alike(ours: list[Any], serial: list[Any]) -> None:
    assert len(ours) == len(serial)
    for one, other in zip(ours, serial, strict=True):
        for name in ("node", "sent", "refused", "scalars", "combined"):
            assert getattr(one, name) == getattr(other, name), name
            assert str(getattr(one, name)) == str(getattr(other, name)), f"the order of {name}"
        assert (one.up is None) == (other.up is None)
        for name in other.up.tensors if other.up else ():
            torch.testing.assert_close(one.up.tensors[name], other.up.tensors[name])


def test_the_table_of_engines_has_it():
    assert ENGINES["processes"] is ProcessesEngine


def test_a_worker_computes_with_one_thread_however_many_its_parent_has(opened):
    def tell(up: Packet) -> Packet:
        return Packet(up.tensors, {**up.scalars, "threads": float(torch.get_num_threads())})

    before = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        (outcome,) = opened(world(bad={NAMES[0]: tell}), workers=1).run(jobs(NAMES[:1]))
    finally:
        torch.set_num_threads(before)
    assert outcome.scalars[NAMES[0]]["threads"] == 1


@pytest.mark.parametrize("workers", [1, 2, 3])
def test_outcomes_and_states_are_those_of_the_serial_engine_in_the_same_order(opened, workers):
    ours, serial = world(), world()
    engine = opened(ours, workers)
    mixed = [*jobs(NAMES[:3]), *jobs(NAMES[3:5], node="edge"), *jobs(NAMES[5:], combine=False)]
    for round in range(2):
        work = [job._replace(context=job.context._replace(round=round)) for job in mixed]
        assert_alike(list(engine.run(work)), by_serial(serial, work))
    assert ours.states.snapshot() == serial.states.snapshot()
    assert list(ours.states.all()) == list(serial.states.all())


def wrong_names(up: Packet) -> Packet:
    return Packet({f"odd.{name}": value for name, value in up.tensors.items()}, up.scalars)


@dataclass(frozen=True)
class Careless(AveragingServer):
    """Checks nothing, so that uploads that do not fit together are found only when they are combined."""

    def check(self, task: Any, up: Packet) -> str | None:
        return None


ODD = {
    "the first": {"device-0": wrong_names},
    "the last": {"device-7": wrong_names},
    "two": {"device-2": wrong_names, "device-5": wrong_names},
    "one that can never be combined": {"device-3": lambda up: Packet(up.tensors)},
    "all of a worker": dict.fromkeys(NAMES[::2], wrong_names),
}


@pytest.mark.parametrize("bad", ODD.values(), ids=ODD.keys())
def test_uploads_that_do_not_fit_together_are_refused_as_in_the_serial_engine(opened, bad):
    ours, serial = world(Careless(), bad), world(Careless(), bad)
    for round in range(2):
        work = jobs(NAMES, round=round)
        assert_alike(list(opened(ours, placement="rr").run(work)), by_serial(serial, work))
    assert ours.states.snapshot() == serial.states.snapshot()


@dataclass(frozen=True)
class Keeping(AveragingServer):
    """Its partial results grow with every upload."""

    reducer = Collect()


def test_growing_partial_results_come_back_complete(opened):
    assert_alike(list(opened(world(Keeping())).run(jobs(NAMES))), by_serial(world(Keeping()), jobs(NAMES)))


@pytest.mark.parametrize("server", [AveragingServer(), Keeping()])
@pytest.mark.parametrize("combine", [True, False])
def test_a_crowded_arena_is_emptied_during_a_round(opened, monkeypatch, server, combine):
    monkeypatch.setattr(arena_module, "machine_memory", lambda: 1 << 24)
    monkeypatch.setattr(arena_module, "CROWDED_DIVISOR", 1 << 13)  # 2 kB for the parent, 1 kB for a worker
    ours, serial = world(server), world(server)
    work = jobs(NAMES, combine)
    packets = {name: Packet({k: v.clone() for k, v in MODEL.items()}) for name in NAMES}
    work = [job._replace(down=packets[job.device]) for job in work]
    outcomes, reference = list(opened(ours).run(work)), by_serial(serial, work)
    assert_alike(outcomes, reference)
    assert ours.states.snapshot() == serial.states.snapshot()


def test_outcomes_do_not_change_in_later_rounds(opened):
    engine = opened(world())
    first = [*engine.run(jobs(NAMES)), *engine.run(jobs(NAMES[:2], combine=False, round=1))]
    before = [{name: value.clone() for name, value in one.up.tensors.items()} for one in first]
    for round in range(2, 5):
        list(engine.run(jobs(NAMES, round=round)))
    for one, kept in zip(first, before, strict=True):
        assert all(torch.equal(one.up.tensors[name], kept[name]) for name in kept)


@dataclass
class Lazy(Nudge):
    """Returns the state of its device unchanged."""

    def local(self, task: Any, down: Packet, shard: Any, own: State, context: Context) -> tuple[Packet, State]:
        return super().local(task, down, shard, own, context)[0], own


def test_an_unchanged_state_is_not_stored_again(opened):
    place = world()
    place.client = Lazy()
    place.states.put("device-1", {"model": torch.ones(3)})
    place.states.take_changed()
    list(opened(place).run(jobs(NAMES)))
    assert not place.states.take_changed()


def test_no_jobs_are_no_outcomes(opened):
    assert list(opened(world()).run([])) == []


def children() -> set[int]:
    """Child processes of this process, also those that have ended but were not waited for."""
    found = set()
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError):  # it has ended meanwhile
            if int(stat.read_text().rpartition(")")[2].split()[1]) == os.getpid():
                found.add(int(stat.parent.name))
    return found


def test_after_many_rounds_and_close_nothing_is_left(opened):
    def descriptors() -> int:
        return len(os.listdir("/proc/self/fd"))

    before, others = descriptors(), children()
    engine = opened(world())
    list(engine.run(jobs(NAMES)))
    warm, pids = descriptors(), list(engine.pids.values())
    assert children() > others
    for round in range(50):
        list(engine.run(jobs(NAMES[:3], round=round)))
    assert descriptors() == warm
    assert list(engine.pids.values()) == pids
    engine.close()
    engine.close()
    assert descriptors() == before
    assert not [pid for pid in pids if os.path.exists(f"/proc/{pid}")]
    assert children() == others  # no zombie is left


def test_an_engine_that_is_deleted_ends_its_workers():
    engine = ProcessesEngine(EngineSettings(workers=2))
    engine.open(world())
    list(engine.run(jobs(NAMES)))
    pids = list(engine.pids.values())
    assert all(os.path.exists(f"/proc/{pid}") for pid in pids)
    del engine
    assert not [pid for pid in pids if os.path.exists(f"/proc/{pid}")]


def test_a_closed_engine_can_be_used_again(opened):
    engine = opened(world())
    list(engine.run(jobs(NAMES)))
    engine.close()
    assert_alike(list(engine.run(jobs(NAMES, round=1))), by_serial(world(), jobs(NAMES, round=1)))
