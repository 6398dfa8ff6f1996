"""Constructing an engine starts nothing: no process, thread, file or socket."""

from __future__ import annotations

import os
import sys
import threading

import pytest

from undergrowth.engines import ENGINES, EngineSettings, ProcessesEngine

from .test_processes_jobs import children, world

SETTINGS = [
    EngineSettings(),
    EngineSettings(workers=3, stack=True, placement="lpt", address="127.0.0.1:1"),
    EngineSettings(torch_devices=("cpu", "cuda:0", "cuda:1")),
]


def resources() -> tuple[set[str], set[int], set[threading.Thread]]:
    """Open file descriptors, child processes and threads of this process."""
    # Listing the folder opens a descriptor, which is closed again.
    descriptors = {name for name in os.listdir("/proc/self/fd") if os.path.exists(f"/proc/self/fd/{name}")}
    return descriptors, children(), set(threading.enumerate())


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
@pytest.mark.parametrize("settings", SETTINGS, ids=["defaults", "workers", "gpus"])
@pytest.mark.parametrize("name", ENGINES)
def test_constructing_and_closing_an_engine_starts_nothing(name, settings):
    if name == "ray":
        pytest.importorskip("ray")
    before = resources()
    engine = ENGINES[name](settings)
    assert resources() == before
    engine.close()
    assert resources() == before


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_opening_the_engine_processes_starts_its_fork_server():
    before = resources()
    engine = ProcessesEngine(EngineSettings(workers=2))
    engine.open(world())
    assert len(children() - before[1]) == 1
    engine.close()
    assert resources() == before
