"""Notes about settings that have no effect in a run, because its method or its rounds do not use them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import chain
from typing import Any

from undergrowth.core import Method, Task
from undergrowth.engines import ENGINE_SETTINGS
from undergrowth.learning import StragglerOptions
from undergrowth.methods import METHODS
from undergrowth.runs.config import Experiment, RunSection
from undergrowth.runs.personal_section import PersonalSection


def unused_settings(experiment: Experiment, method: Method, task: Task) -> list[str]:
    """Notes about shifts of a stream that never come, and about settings and data that are not used."""
    name, public = experiment.method.name, experiment.public
    found = chain(_without_effect(experiment, method), _without_effect_on_devices(experiment, method))
    notes = [f"{setting} has no effect: {why}" for setting, why in found]
    if public.given and type(method) in METHODS.values() and not (method.needs_public or method.may_use_public):
        taken = "; its samples are taken from the devices all the same" if public.of_the_devices else ""
        notes.append(f"{name} uses no public data, so the section public has no effect{taken}")
    ignored = set(method.ignored_settings)
    if getattr(task.sampler, "deadline", None) is not None:
        ignored.discard("fleet.deadline")  # the sampler chooses devices by it, also where no round ends by it
    if "model.dropout" in ignored and task.model.has_dropout:  # of a model of the package, or of the user's
        notes.append(f"{name} does not use the dropout of the model; it has no effect")
    ignored.discard("model.dropout")
    return notes + _not_used(name, experiment, ignored)


def unused_engine_settings(given: Experiment, run: RunSection) -> list[str]:
    """A note about settings of the section `run` that the run's engine does not use. `run`: with what `auto` chose."""
    engine = run.engine
    used = {*ENGINE_SETTINGS[engine]}
    if engine == "processes" and not run.stack:
        used -= {"stack", "chunk"}
    unused = {key for keys in ENGINE_SETTINGS.values() for key in keys} - used
    return _not_used(f"run.engine {engine}", given, {f"run.{key}" for key in unused})


def _without_effect(experiment: Experiment, method: Method) -> Iterator[tuple[str, str]]:
    """Settings that other settings leave without an effect, and why. Those that the method ignores are left out."""
    stream, train, rounds, ignored = experiment.stream, experiment.train, experiment.max_rounds, method.ignored_settings
    links, personal, default = experiment.links, experiment.personal, PersonalSection()
    if stream.shift != "none" and stream.every >= rounds:
        first = f"the first shift would be in round {stream.every + 1}, and the run has {rounds}"
        yield f"stream.shift {stream.shift}", first
    if train.momentum and train.optimiser != "sgd" and "train.momentum" not in ignored:
        yield f"train.momentum {train.momentum}", "it is for train.optimiser sgd"
    every = int(float(train.schedule.split(":")[1])) if train.schedule.startswith("step:") else 0
    if every >= rounds and "train.schedule" not in ignored:
        first = f"the learning rate would first fall in round {every + 1}, and the run has {rounds}"
        yield f"train.schedule {train.schedule}", first
    if experiment.stop.rounds is not None and experiment.stop.rounds > train.rounds:
        yield f"stop.rounds {experiment.stop.rounds}", f"the run ends after train.rounds {train.rounds}"
    if not links.feedback and links.up == "none" and "links.feedback" not in ignored:
        yield "links.feedback False", "it is for a lossy links.up"
    if experiment.run.precision == "tf32" and "cuda" not in experiment.run.device:
        yield "run.precision tf32", "it is for a GPU"
    if personal.momentum and train.optimiser != "sgd":
        yield f"personal.momentum {personal.momentum}", "it is for train.optimiser sgd"
    if personal.patience != default.patience and not personal.validation:
        yield f"personal.patience {personal.patience}", "without personal.validation nothing stops early"
    if personal.form != default.form and "kd" not in personal.adapt:
        yield f"personal.form {personal.form}", "it is for personal.adapt kd"


def _without_effect_on_devices(experiment: Experiment, method: Method) -> Iterator[tuple[str, str]]:
    """The same for settings that choose devices: which are asked, and which do less than others."""
    train, star = experiment.train, experiment.topology == "star"  # in a tree, servers have settings of their own
    if train.over_select > 1 and train.sample == 1 and star and "train.over_select" not in method.ignored_settings:
        yield f"train.over_select {train.over_select}", "train.sample is 1, so all devices are asked and needed"
    if isinstance(method, StragglerOptions):
        if method.stragglers == "fixed" and method.f_n is None:
            yield "method.stragglers fixed", "it is for stragglers that method.f_n draws"
        if method.reduced_epochs and not method.chosen and star and experiment.fleet.deadline is None:
            why = "without fleet.deadline, method.f_n or method.able no device is a straggler"
            yield f"method.reduced_epochs {method.reduced_epochs}", why


def _not_used(by: str, experiment: Experiment, paths: Iterable[str]) -> list[str]:
    """A note about the settings at `paths` that are not as they are by default; none if all are."""
    defaults = Experiment()
    values = {path: _value_at(experiment, path) for path in sorted(paths)}
    changed = [f"{path} {value}" for path, value in values.items() if value != _value_at(defaults, path)]
    if not changed:
        return []
    *others, last = changed
    listed = f"{', '.join(others)} and {last}" if others else last
    return [f"{by} does not use {listed}; {'they have' if others else 'it has'} no effect"]


def _value_at(experiment: Experiment, path: str) -> Any:
    value: Any = experiment
    for step in path.split("."):
        value = getattr(value, step)
    return value
