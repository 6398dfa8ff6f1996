"""Notes about settings that have no effect in a run, because its method or its rounds do not use them."""

from __future__ import annotations

from typing import Any

from undergrowth.core import Method, Task
from undergrowth.runs.config import Experiment


def unused_settings(experiment: Experiment, method: Method, task: Task) -> list[str]:
    """Notes about shifts of a stream that never come, unused dropout, and changed settings that `method` ignores."""
    notes = []
    stream = experiment.stream
    if stream.shift != "none" and stream.every >= experiment.max_rounds:
        notes.append(
            f"stream.shift {stream.shift} has no effect: the first shift would be in round {stream.every + 1}, and the "
            f"run has {experiment.max_rounds}"
        )
    ignored = set(method.ignored_settings)
    if getattr(task.sampler, "deadline", None) is not None:
        ignored.discard("fleet.deadline")  # the sampler chooses devices by it, also where no round ends by it
    if "model.dropout" in ignored and task.model.has_dropout:  # of a model of the package, or of the user's
        notes.append(f"{experiment.method.name} does not use the dropout of the model; it has no effect")
    ignored.discard("model.dropout")
    defaults = Experiment()
    values = {path: _value_at(experiment, path) for path in sorted(ignored)}
    changed = [f"{path} {value}" for path, value in values.items() if value != _value_at(defaults, path)]
    if not changed:
        return notes
    *others, last = changed
    listed = f"{', '.join(others)} and {last}" if others else last
    return [*notes, f"{experiment.method.name} does not use {listed}; {'they have' if others else 'it has'} no effect"]


def _value_at(experiment: Experiment, path: str) -> Any:
    value: Any = experiment
    for step in path.split("."):
        value = getattr(value, step)
    return value
