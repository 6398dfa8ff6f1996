"""Runs that are stopped after some rounds, as by Ctrl-C, and resumed."""

from __future__ import annotations

from typing import Any

import pytest

import undergrowth as ug
from undergrowth.runs.execution import start

from .runs.objects import digest, without_wall


def interrupt(raw: dict[str, Any], after: int, out: str, **objects: Any) -> None:
    """Starts a run in the folder `out` and stops it after `after` rounds."""

    def stop(row: Any, execution: Any) -> None:
        if row["round"] == after:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        start({**raw, "run": {"out": out, **raw.get("run", {})}}, on_round=stop, **objects)


def stopped_and_resumed(raw: dict[str, Any], after: int, out: str, **objects: Any) -> ug.Result:
    """The result of a run that was stopped after `after` rounds and resumed."""
    interrupt(raw, after, out, **objects)
    return ug.resume("last", out, **objects)


def facts(result: ug.Result) -> tuple[Any, ...]:
    """Everything in a result that does not depend on the machine."""
    return digest(result), without_wall(result.history), list(result.ledger.rows()), result.clients
