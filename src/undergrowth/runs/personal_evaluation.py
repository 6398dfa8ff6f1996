"""Carries out the phase after the last round: trains and scores every model that is compared on the devices."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from time import perf_counter
from typing import Any

import torch

from undergrowth.core import Context, Method, RunError
from undergrowth.data import Population, fixed_at
from undergrowth.runs.diagnosis import NOBODY_ASKED
from undergrowth.runs.federation import Federation
from undergrowth.runs.ongoing_run import Execution
from undergrowth.runs.personal_phase import ACCURACY, FOLDER, PersonalPhase, chosen_by_auto, step_name
from undergrowth.runs.personal_populations import tested_population
from undergrowth.runs.relative_accuracy import FEDERATED, LOCAL, PERSONAL
from undergrowth.runs.run_models import score_on_devices, with_model
from undergrowth.runs.start_phase import Step, initial_weights
from undergrowth.runs.store import Store

# Does a step as a run in the store, or continues the run in the row; returns the id of the run.
DoStep = Callable[[Store, Mapping[str, Any] | None, Step], str]
Accuracies = dict[str, float]  # by device


def evaluate_personal(execution: Execution, do_step: DoStep) -> None:
    """Does the steps that are not done yet, and stores the accuracy of each model on every device.

    Devices without training or test samples are left out, because they have nothing to compare.
    """
    federation, began = execution.federation, perf_counter()
    federation.driver.close()  # the steps have engines of their own
    phase = _phase(execution)
    with Store(execution.folder / FOLDER, create=True, in_run=True) as store:
        found = _compare(execution, phase, _Steps(federation, store, do_step))
    population = phase.population
    devices = [
        name for name in population.devices if population.size(name) and all(name in each for each in found.values())
    ]
    total = len(population.devices)
    if len(devices) < total:
        federation.note(f"personal: {total - len(devices)} of {total} devices have no test samples and are left out")
    execution.store.put_personal(
        execution.run, {model: {name: each[name] for name in devices} for model, each in found.items()}
    )
    execution.began += perf_counter() - began  # the run's wall time is that of its rounds


def _phase(execution: Execution) -> PersonalPhase:
    """The steps for the devices' data of the last round and the final model, which is written."""
    experiment, federation = execution.experiment, execution.federation
    seed = Context(experiment.run.seed, federation.driver.root.name, 0).key(FOLDER)
    if chosen_by_auto(federation):  # another engine may suit the steps better
        engine = "vector" if torch.cuda.is_available() else "auto"  # see `check_personal`
        experiment = experiment.with_run(engine=engine)
    last = max(0, federation.driver.root.round - 1)
    population = tested_population(experiment.personal, fixed_at(federation.device_data, last))
    initial = initial_weights(execution.folder, experiment)
    return PersonalPhase(experiment, population, seed, initial, execution.write_model())


def _compare(execution: Execution, phase: PersonalPhase, steps: _Steps) -> dict[str, Accuracies]:
    """Trains the local-only and the adapted models; returns the accuracy of every model on every device."""
    local = steps.do(phase.local())
    found = {LOCAL: steps.accuracies(local), **_method_models(execution, phase.population)}
    chosen: list[str] | None = None  # None: all adapt
    if phase.section.only == "below":
        on_validation = _score_federated(execution.federation, phase.validation)
        chosen = phase.choose(steps.accuracies(local, "validation"), on_validation)
        devices = len(phase.population.devices)
        execution.federation.note(f"personal: {len(chosen)} of {devices} devices adapt")
    for how in phase.section.adapt:
        adapted = {} if chosen == [] else steps.accuracies(steps.do(phase.adaptation(how, chosen)))
        federated = {} if chosen is None else {d: each for d, each in found[FEDERATED].items() if d not in chosen}
        found[how] = {**adapted, **federated}  # a device that does not adapt uses the federated model
    return found


class _Steps:
    """The steps of the phase, and what their runs say about devices."""

    def __init__(self, federation: Federation, store: Store, do_step: DoStep) -> None:
        self.federation = federation
        self.store = store
        self.do_step = do_step
        self.rows = {step_name(row): row for row in store.runs()}

    def do(self, step: Step) -> str:
        """Does a step, if it is not done yet, and returns the id of its run."""
        try:
            run = self.do_step(self.store, self.rows.get(step.name), step)
        except RunError as error:
            raise RunError(f"personal, {step.name}: {error}") from error
        for note in self.store.run(run)["notes"]:
            if note.startswith("round ") and NOBODY_ASKED not in note:  # refused updates
                self.federation.note(f"personal, {step.name}: {note}")
        trained = [each for each in self.store.devices(run) if each["samples"]]
        idle = sum(not each["rounds"] for each in trained)
        if idle:
            self.federation.note(f"personal, {step.name}: {idle} of {len(trained)} devices could not train")
        return run

    def accuracies(self, run: str, key: str = ACCURACY) -> Accuracies:
        """Those of the devices in a run of the phase; `key`: on which of their samples."""
        return {each["device"]: each[key] for each in self.store.devices(run) if each[key] is not None}


def _method_models(execution: Execution, population: Population) -> dict[str, Accuracies]:
    """The accuracies of the run's model and, if the method has a model for every device, of these."""
    method = execution.federation.method
    models = execution.federation.models.named()
    if "global" not in models:
        return {FEDERATED: _accuracies(execution.score_devices(population))}
    found = {FEDERATED: _score_federated(execution.federation, population)}
    if type(method).personal is not Method.personal or any(name.startswith("devices/") for name in models):
        found[PERSONAL] = _accuracies(execution.score_devices(population))
    return found


def _score_federated(federation: Federation, population: Population) -> Accuracies:
    found = with_model(federation.task, federation.models.named()["global"])
    return _accuracies(score_on_devices(federation.task.kind, found, population.devices, population))


def _accuracies(metrics: Mapping[str, Mapping[str, float | None]]) -> Accuracies:
    found = {device: each[ACCURACY] for device, each in metrics.items()}
    return {device: accuracy for device, accuracy in found.items() if accuracy is not None}
