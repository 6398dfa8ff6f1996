"""Stops a run as Ctrl-C would, for tests of what goes on afterwards."""

from __future__ import annotations

from typing import Any

import pytest

import undergrowth as ug
from undergrowth.runs.execution import start


def stopped_and_resumed(tree: dict[str, Any], after: int, out: str, **objects: Any) -> ug.Result:
    """The result of a run that was stopped after so many rounds and resumed."""

    def stop(row: Any, execution: Any) -> None:
        if row["round"] == after:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        start({**tree, "run": {"out": out, **tree.get("run", {})}}, on_round=stop, **objects)
    return ug.resume("last", out, **objects)


def facts(result: ug.Result) -> tuple[Any, ...]:
    """All of a result that does not depend on the machine."""
    history = [{name: value for name, value in row.items() if name != "wall_seconds"} for row in result.history]
    return result.summary["model_digest"], history, list(result.ledger.rows()), result.clients
