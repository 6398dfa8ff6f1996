"""The phase after the last round: every device alone, and the federated model adapted on it.

The local-only model and each adaptation are a run of the method `adapt`, in a store in the folder `personal` of the
run, as are the steps before the first round. So each has a ledger of its own, which is not part of the run's costs. A
step that was interrupted starts again; its devices' models are not kept after it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import torch

from undergrowth.core import InputError
from undergrowth.data import Population, fixed_at
from undergrowth.exchange import Totals
from undergrowth.learning.adaptation import ALONE
from undergrowth.runs.config import Experiment, MethodSection
from undergrowth.runs.engine_choice import AUTO
from undergrowth.runs.federation import Federation
from undergrowth.runs.federation_builder import federate
from undergrowth.runs.model_section import ModelSection
from undergrowth.runs.own_task import TaskFunctions
from undergrowth.runs.personal_populations import PartOfPopulation, ValidationPopulation, tested_population
from undergrowth.runs.personal_section import PersonalSection
from undergrowth.runs.relative_accuracy import LOCAL
from undergrowth.runs.start_phase import Step, training_given, with_all_devices
from undergrowth.runs.store import Store

FOLDER = "personal"
ACCURACY = "accuracy"


@dataclass(frozen=True)
class PersonalPhase:
    """The steps of the phase. `initial`: the file with the weights that the federation started from, if any."""

    experiment: Experiment
    population: Population
    seed: int  # of all steps, so that a device has the same validation samples and batches in each
    initial: Path | None
    final: Path

    @property
    def section(self) -> PersonalSection:
        return self.experiment.personal

    @cached_property
    def validation(self) -> Population:
        return ValidationPopulation(self.population, self.section.validation, self.seed)

    def local(self) -> Step:
        """Every device trains a model of its own from the weights that the federation started from."""
        parts = {"validation": self.validation} if self.section.only == "below" else {}
        return Step(LOCAL, step_experiment(self.experiment, ALONE, self.initial), self.population, parts)

    def adaptation(self, how: str, chosen: Sequence[str] | None) -> Step:
        """The devices in `chosen`, by default all, adapt the final model."""
        population: Any = self.population if chosen is None else PartOfPopulation(self.population, frozenset(chosen))
        return Step(how, step_experiment(self.experiment, how, self.final), population, {})

    def choose(self, local: Mapping[str, float], federated: Mapping[str, float]) -> list[str]:
        """The devices that adapt, by accuracies on validation samples.

        Those whose federated model is below their local one, the lowest first, as many as the budget allows.
        """
        below = [device for device in local if device in federated and federated[device] < local[device]]
        below.sort(key=lambda device: (federated[device] - local[device], device))
        return below[: self.section.limit(len(self.population.devices))]


def step_experiment(experiment: Experiment, how: str, weights: Path | None) -> Experiment:
    """The experiment of one step: all devices take part, and are always available.

    With validation, an epoch is a round, after which devices compare models and may stop early. Without, all epochs are
    one round.
    """
    section = experiment.personal
    rounds, epochs = (section.epochs, 1) if section.validation else (1, section.epochs)
    model = {key: value for key, value in experiment.model.model_dump().items() if key != "ladder"}
    if weights is not None:
        model = {key: value for key, value in model.items() if key not in ("weights", "skip_head")}
    options = {key: getattr(section, key) for key in ("validation", "patience", "form")}
    method = MethodSection.model_validate({"name": "adapt", "how": how, **options})
    step = experiment.for_step(weights).with_run(evaluate_every=rounds)
    step = with_all_devices(step, **training_given(section), rounds=rounds, epochs=epochs)
    return step.model_copy(update={"method": method, "model": ModelSection(**model)})


def check_personal(experiment: Experiment, federation: Federation, model: Any, functions: TaskFunctions | None) -> None:
    """Raises `InputError` if the phase after the last round of an open federation is not possible."""
    section, name = experiment.personal, experiment.method.name
    if not section.evaluate:
        return
    if federation.method.pooled:
        raise InputError(f"personal: {name} trains one model on the samples of all; choose a federated method")
    if federation.task.kind.metric.name != ACCURACY:
        raise InputError(f"personal compares accuracies, and this task is about {federation.task.kind.metric.name}")
    if federation.task.ladder:
        raise InputError("personal: the devices have models of several shapes; leave out model.ladder")
    setting = "train.batch" if section.batch is None else "personal.batch"
    federation.task.model.check_batch(setting, section.batch or experiment.train.batch)
    if experiment.run.engine == "processes" and torch.cuda.is_available() and not chosen_by_auto(federation):
        # Torch refuses to train in processes that are forked after their parent has traced a backward pass.
        raise InputError(
            "run.engine 'processes': on a machine with a GPU its workers cannot start after the last round; "
            "with personal, write auto, vector or serial"
        )
    # As the phase has them: the samples of a stream stay, and devices do not train between rounds.
    population = tested_population(section, fixed_at(federation.population, 0))
    if not any(len(population.test(device)) for device in population.devices if population.size(device)):
        by_class = "personal.test by-class: no device has a class of the central test set; write own"
        holdout = f"personal: data.holdout {experiment.data.holdout} leaves no device a test sample; give a larger one"
        raise InputError(holdout if section.test == "own" else by_class)
    if "global" not in federation.models.named() and section.adapt:
        raise InputError(f"personal.adapt: {name} has no model of all devices to adapt; write personal.adapt=[]")
    for how in section.adapt:
        step = federate(step_experiment(experiment, how, None), None, population, model, functions)
        if how == "freeze":
            step.task.model.trainable("head")


def chosen_by_auto(federation: Federation) -> bool:
    """Whether the run's engine was left to `auto`."""
    return any(note.startswith(AUTO) for note in federation.notes)


def personal_costs(folder: Path) -> dict[str, Totals]:
    """The costs of each step so far of the phase of the run in `folder`; empty without a phase."""
    if not (folder / FOLDER).exists():
        return {}
    with Store(folder / FOLDER) as store:
        return {step_name(row): store.totals(row["id"]) for row in store.runs()}


def step_name(row: Mapping[str, Any]) -> str:
    """The model that a row in the store of a phase is about."""
    how = str(row["experiment"]["settings"]["method"]["how"])
    return LOCAL if how == ALONE else how
