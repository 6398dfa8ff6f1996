"""Opens a federation for a new run, and enters the run in the store."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import is_dataclass
from typing import Any
from zlib import crc32

from undergrowth.core import InputError, Method, Task, TaskKind, check_state
from undergrowth.data import Population, is_population
from undergrowth.runs.config import Experiment
from undergrowth.runs.engine_builder import build_engine
from undergrowth.runs.engine_choice import AUTO, choose_engine
from undergrowth.runs.engine_facts import choose_workers, count_facts
from undergrowth.runs.evaluation import frozen_digest
from undergrowth.runs.federation import Federation
from undergrowth.runs.fingerprint import differ, fingerprint
from undergrowth.runs.method_builder import method_class
from undergrowth.runs.new_device_data import describe_data
from undergrowth.runs.own_objects import source_records
from undergrowth.runs.preview import check_deadline, describe_guess
from undergrowth.runs.setting_files import changed_files, hash_files
from undergrowth.runs.store import Store
from undergrowth.runs.stored_experiment import object_options, option_defaults
from undergrowth.runs.tree_price import check_server_deadlines


def open_federation(experiment: Experiment, federation: Federation) -> Experiment:
    """Starts the driver and checks the deadline; returns the experiment with the engine that `auto` chose."""
    is_auto = experiment.run.engine == "auto"
    if not is_auto:
        # Pricing starts torch's autograd threads. On a machine with a GPU, workers must be forked before that.
        federation.driver.start()
    check_deadline(federation)
    check_server_deadlines(federation)
    check_state(federation.method, federation.driver.root.state)
    federation.notes.extend(describe_guess(federation.task.model))
    if is_auto:
        choice = choose_engine(count_facts(federation))
        federation.notes.append(f"{AUTO}: {choice.reason}")
        experiment = _with_run(experiment, choice.settings)
        federation.use(build_engine(experiment))
        federation.driver.start()
    # The number of workers is stored, because a resumed run needs as many for the same bits.
    chosen, reasons = choose_workers(federation)
    federation.notes.extend(reasons)
    return _with_run(experiment, chosen)


def _with_run(experiment: Experiment, chosen: Mapping[str, Any]) -> Experiment:
    return experiment.model_copy(update={"run": experiment.run.model_copy(update=chosen)})


def enter_run(
    store: Store,
    experiment: Experiment,
    federation: Federation,
    given: Mapping[str, Any],
    callbacks: Sequence[str] = (),
) -> str:
    """Enters the run in the store, with the names of its callbacks; returns its id."""
    population = federation.population
    settings = json.loads(experiment.model_dump_json())
    if given["method"] is not None:
        settings["method"] |= object_options(given["method"])
    kept = {
        "settings": settings,
        "defaults": option_defaults(experiment),
        "objects": {part: used and _object_name(used) for part, used in given.items()},
        "sources": source_records(experiment, given),
        "callbacks": list(callbacks),
        "shape": list(population.shape),
        "classes": population.classes,
        **describe_data(federation.device_data),
        "task": _task_facts(federation.task.kind),
        "fingerprint": None if is_population(given["data"]) else fingerprint(population),
        "frozen": frozen_digest(federation.task),
        "shapes": _shapes_of_models(federation.task),
        "files": hash_files(experiment),
    }
    facts = {**run_facts(experiment, population), "notes": json.dumps(federation.notes)}
    return store.create(facts, kept)


def _object_name(used: Any) -> str:
    if isinstance(used, Mapping):
        return ", ".join(used)
    return str(getattr(used, "__name__", type(used).__name__))


def _shapes_of_models(task: Task) -> int:
    """A checksum of the names and shapes of all weights."""
    models = {"": task.model, **task.ladder}
    return crc32(repr([(key, *sorted(model.shapes.items())) for key, model in models.items()]).encode())


def _task_facts(kind: TaskKind) -> dict[str, Any]:
    """What readers of the run need to know about its task: its metrics, and the one that decides."""
    metrics = [*(each.name for each in kind.metrics), *kind.own_metrics]
    return {"name": kind.name, "main": list(kind.metric), "metrics": metrics}


def run_facts(experiment: Experiment, population: Population) -> dict[str, Any]:
    """What the store and the summary say about a run before its first round."""
    return {
        "method": experiment.method.name,
        "data": population.name,
        "model": experiment.model.name,
        "seed": experiment.run.seed,
        "rounds": experiment.max_rounds,
        "clients": len(population.devices),
        "engine": experiment.run.engine,
    }


def check_same_method(row: Mapping[str, Any], method: Method) -> None:
    """Refuses to continue the run in a row of the store with another method, or other options of it.

    Rules among the fields of a method, such as its client, are not compared: a user may mend one and go on.
    """
    named = row["experiment"]["objects"].get("method") or getattr(method_class(row["method"]), "__name__", None)
    if named and named != type(method).__name__:
        raise InputError(
            f"method: {type(method).__name__} is not that of run '{row['id']}', {named}; resume it with the same "
            "method, or start a new run"
        )
    before, now = row["experiment"]["settings"]["method"], object_options(method)
    for key in before.keys() & now.keys():
        if before[key] != now[key] and not is_dataclass(getattr(method, key)):
            raise InputError(
                f"method.{key} {now[key]!r} of the object is not that of run '{row['id']}', {before[key]!r}; "
                f"resume it with the same object, or start a new run"
            )


def check_same_files(row: Mapping[str, Any], experiment: Experiment) -> None:
    """Refuses to continue the run in a row of the store if a file of its fleet or topology has changed."""
    for setting in changed_files(row["experiment"].get("files"), experiment):
        raise InputError(
            f"{setting}: its file has changed since run '{row['id']}' began; restore it, or start a new run"
        )


def check_same_data(row: Mapping[str, Any], federation: Federation) -> None:
    """Refuses to continue the run in a row of the store with other data, models or frozen weights than at its start."""
    before = row["experiment"].get("fingerprint")
    if before is not None and differ(before, fingerprint(federation.population)):
        raise InputError(f"data: it is not the data of run '{row['id']}'; restore that data, or start a new run")
    shapes = row["experiment"].get("shapes")
    if shapes is not None and shapes != _shapes_of_models(federation.task):
        raise InputError(
            f"model: its weights have other names or shapes than those of run '{row['id']}'; resume it with the same "
            "model, or start a new run"
        )
    frozen = row["experiment"].get("frozen")
    if frozen is not None and frozen != frozen_digest(federation.task):
        raise InputError(
            f"model: its frozen weights are not those of run '{row['id']}'; restore them, or start a new run"
        )
