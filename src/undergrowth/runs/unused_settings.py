"""Notes about settings that have no effect in a run, because its method does not use them."""

from __future__ import annotations

from typing import Any

from undergrowth.core import Method, Task
from undergrowth.runs.config import Experiment


def unused_settings(experiment: Experiment, method: Method, task: Task) -> list[str]:
    """A note that names the settings that differ from their defaults and that `method` does not use; or no note."""
    ignored = set(method.ignored_settings)
    if getattr(task.sampler, "deadline", None) is not None:
        ignored.discard("fleet.deadline")  # the sampler chooses devices by it, also where no round ends by it
    defaults = Experiment()
    values = {path: _value_at(experiment, path) for path in sorted(ignored)}
    changed = [f"{path} {value}" for path, value in values.items() if value != _value_at(defaults, path)]
    if not changed:
        return []
    *others, last = changed
    listed = f"{', '.join(others)} and {last}" if others else last
    return [f"{experiment.method.name} does not use {listed}; {'they have' if others else 'it has'} no effect"]


def _value_at(experiment: Experiment, path: str) -> Any:
    value: Any = experiment
    for step in path.split("."):
        value = getattr(value, step)
    return value
