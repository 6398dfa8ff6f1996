"""Federated learning that weak devices can take part in, and what each way of taking part costs.

import undergrowth as ug

result = ug.run(method="fedprox", data="digits", clients=20, rounds=10)
print(result.accuracy, result.ledger.bytes_up)
"""

from __future__ import annotations

import importlib
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

if TYPE_CHECKING:
    from undergrowth import (
        callbacks,
        core,
        data,
        devices,
        engines,
        learning,
        methods,
        models,
        report,
        reproduce,
        runs,
        serve,
        simulation,
        sweeps,
        topology,
    )
    from undergrowth.core import InputError, RunError, RunWarning
    from undergrowth.report import plan
    from undergrowth.runs import Result, adapt, list, load, resume, run
    from undergrowth.sweeps import SweepResult, sweep

# Names and packages are imported when they are first used, so that `undergrowth --help` does not wait for torch.
_NAMES = {
    "run": "undergrowth.runs",
    "resume": "undergrowth.runs",
    "load": "undergrowth.runs",
    "list": "undergrowth.runs",
    "adapt": "undergrowth.runs",
    "plan": "undergrowth.report",
    "sweep": "undergrowth.sweeps",
    "Result": "undergrowth.runs",
    "SweepResult": "undergrowth.sweeps",
    "InputError": "undergrowth.core",
    "RunError": "undergrowth.core",
    "RunWarning": "undergrowth.core",
}

__all__ = [
    "InputError", "Result", "RunError", "RunWarning", "SweepResult", "adapt", "callbacks", "core", "data", "devices",
    "engines", "learning", "list", "load", "methods", "models", "plan", "report", "reproduce", "resume", "run",
    "runs", "serve", "simulation", "sweep", "sweeps", "topology",
]  # fmt: skip


def __getattr__(name: str) -> Any:
    if name in _NAMES:
        return getattr(importlib.import_module(_NAMES[name]), name)
    if name in __all__:
        return importlib.import_module(f"undergrowth.{name}")
    raise AttributeError(f"module 'undergrowth' has no attribute '{name}'")


def __dir__() -> Iterable[str]:
    return sorted([*globals(), *__all__])
