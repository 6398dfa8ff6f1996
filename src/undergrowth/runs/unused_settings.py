"""Notes about settings that have no effect in a run, because its method or its rounds do not use them."""

from __future__ import annotations

from typing import Any

from undergrowth.core import Method, Task
from undergrowth.methods import METHODS
from undergrowth.runs.config import Experiment


def unused_settings(experiment: Experiment, method: Method, task: Task) -> list[str]:
    """Notes about shifts of a stream that never come, and about settings and data that are not used."""
    notes = []
    stream = experiment.stream
    if stream.shift != "none" and stream.every >= experiment.max_rounds:
        notes.append(
            f"stream.shift {stream.shift} has no effect: the first shift would be in round {stream.every + 1}, and the "
            f"run has {experiment.max_rounds}"
        )
    train, public = experiment.train, experiment.public
    if train.momentum and train.optimiser != "sgd" and "train.momentum" not in method.ignored_settings:
        notes.append(f"train.momentum {train.momentum} has no effect: it is for train.optimiser sgd")
    if public.given and type(method) in METHODS.values() and not (method.needs_public or method.may_use_public):
        taken = "; its samples are taken from the devices all the same" if public.of_the_devices else ""
        notes.append(f"{experiment.method.name} uses no public data, so the section public has no effect{taken}")
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
