"""Opens a federation for a new run, and enters the run in the store."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from undergrowth.core import TaskKind, check_state
from undergrowth.data import Population, is_population
from undergrowth.runs.config import Experiment
from undergrowth.runs.engine_builder import build_engine
from undergrowth.runs.engine_choice import AUTO, choose_engine
from undergrowth.runs.engine_facts import choose_workers, count_facts
from undergrowth.runs.federation import Federation
from undergrowth.runs.new_device_data import describe_data
from undergrowth.runs.own_code import code_hashes
from undergrowth.runs.own_objects import source_records
from undergrowth.runs.preview import check_deadline, describe_guess
from undergrowth.runs.run_inputs import fingerprint, frozen_digest, hash_files, shapes_of_models
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
        experiment = experiment.with_run(**choice.settings)
        federation.use(build_engine(experiment))
        federation.driver.start()
    # The number of workers is stored, because a resumed run needs as many for the same bits.
    chosen, reasons = choose_workers(federation)
    federation.notes.extend(reasons)
    return experiment.with_run(**chosen)


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
        "code": code_hashes(given, federation.task),
        "callbacks": list(callbacks),
        "shape": list(population.shape),
        "classes": population.classes,
        **describe_data(federation.device_data),
        "task": _task_facts(federation.task.kind),
        "fingerprint": None if is_population(given["data"]) else fingerprint(population),
        "frozen": frozen_digest(federation.task),
        "shapes": shapes_of_models(federation.task),
        "files": hash_files(experiment),
    }
    facts = {**run_facts(experiment, population), "notes": json.dumps(federation.notes)}
    return store.create(facts, kept)


def _object_name(used: Any) -> str:
    if isinstance(used, Mapping):
        return ", ".join(used)
    return str(getattr(used, "__name__", type(used).__name__))


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
