"""A fixture of the tests of sweeps and of published tables."""

from __future__ import annotations

from typing import Any

import pytest

from undergrowth.sweeps import worker


@pytest.fixture
def executed(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, Any]]:
    """Records every run that is started or resumed in this process."""
    calls: list[tuple[str, Any]] = []
    start, resume = worker.start, worker.resume
    monkeypatch.setattr(worker, "start", lambda raw, **hooks: (calls.append(("start", raw)), start(raw, **hooks))[1])
    monkeypatch.setattr(
        worker, "resume", lambda run, out, **hooks: (calls.append(("resume", run)), resume(run, out, **hooks))[1]
    )
    return calls
