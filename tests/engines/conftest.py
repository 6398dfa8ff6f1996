"""Engines for tests: one with worker processes, and a vector engine that takes the CPU for a GPU."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from undergrowth.engines import EngineSettings, ProcessesEngine, VectorEngine, World
from undergrowth.engines.vector import recording, stack
from undergrowth.engines.vector.recording import Recording
from undergrowth.engines.vector.stacked_steps import StackedSteps

HELD = {name: {"all": {"current": 0}} for name in ("reserved_bytes", "allocated_bytes")}
FREE = 1 << 34


@pytest.fixture
def opened(request: pytest.FixtureRequest) -> Callable[..., ProcessesEngine]:
    """Opens an engine with worker processes, which end with the test."""

    def go(place: World, workers: int | None = 2, **settings: Any) -> ProcessesEngine:
        engine = ProcessesEngine(EngineSettings(workers=workers, **settings))
        engine.open(place)
        request.addfinalizer(engine.close)
        return engine

    return go


@pytest.fixture
def made():
    """The numbers of clients that steps were recorded for."""
    return []


@pytest.fixture
def as_on_a_gpu(monkeypatch, made):
    """A vector engine that takes the CPU for a GPU."""

    def record(self):
        made.append(self.weights.shape[1])
        return SimpleNamespace(replay=self._run)

    for name, answer in {
        "memory_allocated": 0, "max_memory_allocated": 1, "mem_get_info": (FREE, FREE),
        "memory_stats_as_nested_dict": HELD, "reset_peak_memory_stats": None,
    }.items():  # fmt: skip
        monkeypatch.setattr(torch.cuda, name, lambda *_, answer=answer: answer)
    monkeypatch.setattr(Recording, "_record", record)
    monkeypatch.setattr(recording.RecordingMemory, "pool", "of memory")
    monkeypatch.setattr(recording, "_synchronizes", lambda work: bool(work()))
    monkeypatch.setattr(recording, "STEPS_BEFORE_RECORDING", 2)
    monkeypatch.setattr(recording, "STEPS_BEFORE_RECORDING_NEW", 2)
    monkeypatch.setattr(stack, "FIRST_WAVE", 2)
    monkeypatch.setattr(stack, "LAST_PART", 2)
    plain = StackedSteps.__init__

    def on_a_gpu(self, *arguments):
        plain(self, *arguments)
        self.cuda = self._stack_size.cuda = True
        self._recordings.cuda = len(arguments) > 3  # it got memory for recordings

    monkeypatch.setattr(StackedSteps, "__init__", on_a_gpu)
    return VectorEngine(EngineSettings())
