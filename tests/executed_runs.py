"""What the tests of sweeps and of published tables do with the runs in their process: record them, let some fail."""

from __future__ import annotations

from collections.abc import Callable
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


def fail_runs(monkeypatch: pytest.MonkeyPatch, fails: Callable[[Any], bool]) -> None:
    """From now on, the runs fail whose dictionary `fails` is true of."""
    start = worker.start

    def start_or_fail(raw: Any, **hooks: Any) -> Any:
        if fails(raw):
            raise RuntimeError("no luck")
        return start(raw, **hooks)

    monkeypatch.setattr(worker, "start", start_or_fail)
