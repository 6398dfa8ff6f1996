"""The phase before the first round: training on other data, another method, warm rounds; see the section `start`.

Each step of the phase is a run of its own, in a store in the folder `start` of the run. So it has a history, a ledger,
checkpoints and a final model, and is resumed like any run. Its model is the file that the next step starts from, and
at last the method.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from pydantic import ValidationError
from torch import nn

from undergrowth.core import InputError, Method
from undergrowth.core.notation import parse
from undergrowth.data import Population, fixed_at
from undergrowth.exchange import Totals
from undergrowth.learning.optimisers import SCHEDULES
from undergrowth.models import check_tensors
from undergrowth.runs.config import DataSection, Experiment, MethodSection, PublicSection
from undergrowth.runs.data_builder import device_normalisation
from undergrowth.runs.federation import Federation
from undergrowth.runs.federation_builder import federate
from undergrowth.runs.own_objects import is_reference
from undergrowth.runs.own_task import TaskFunctions
from undergrowth.runs.personal_section import PersonalSection
from undergrowth.runs.preview import check_deadline
from undergrowth.runs.start_section import TRAINING_KEYS, FirstMethodSection, StartSection
from undergrowth.runs.store import MODEL_FILE, Store
from undergrowth.runs.validation_errors import explain

FOLDER = "start"
PRETRAINING, WARM_ROUNDS = "pretraining", "warm rounds"  # a step of another method has its name
_PLACES = {PRETRAINING: "start.data", WARM_ROUNDS: "start.warm_rounds"}
_NAMES = {"central": PRETRAINING, "fedavg": WARM_ROUNDS}
_EVERYBODY = {"sample": 1.0, "sampler": "uniform", "selector": "all", "over_select": 1.0, "quorum": 1.0}
_ALWAYS_AVAILABLE: dict[str, Any] = {
    "deadline": None, "node_deadlines": {}, "availability": "always", "dropout": 0.0, "failure": 0.0,
}  # fmt: skip


@dataclass(frozen=True)
class Step:
    """One part of the phase: an experiment, and its data if that is built already.

    device_scores: names of further test sets of the devices, with a population that has them. None: devices are
    evaluated as in any run. Otherwise every device is, and no checkpoint is written.
    """

    name: str
    experiment: Experiment
    data: Population | None = None
    device_scores: Mapping[str, Population] | None = None

    def functions(self, given: TaskFunctions | None) -> TaskFunctions | None:
        """The user's loss and metrics, if they are for the data of this step."""
        return given if self.name == WARM_ROUNDS or self.device_scores is not None else None

    def after(self, weights: Path | None) -> Step:
        """The step when the one before it has written its model to `weights`; None: it is the first."""
        return self if weights is None else replace(self, experiment=self.experiment.starting_from(weights))


def phase_steps(experiment: Experiment, population: Population) -> list[Step]:
    """The steps of the experiment's phase. `population`: the data of its devices; if it changes, as it begins."""
    steps = []
    population = fixed_at(population, 0)
    if experiment.start.data is not None:
        steps.append(Step(PRETRAINING, _pretraining(experiment, population)))
    if experiment.start.method is not None:
        steps.append(Step(experiment.start.method.name, _first_method(experiment), population))
    if experiment.start.warm_rounds:
        steps.append(Step(WARM_ROUNDS, _warm_rounds(experiment), population))
    return steps


def _pretraining(experiment: Experiment, population: Population) -> Experiment:
    """Central training on the source data set. An epoch is a round, so that each ends with a checkpoint.

    The source is normalised and augmented like the devices' data, unless `start.data` says otherwise. Statistics that
    are frozen in the rounds are measured here.
    """
    start, train, run = experiment.start, experiment.train, experiment.run
    assert start.data is not None
    figures = None if is_reference(start.data.name) else device_normalisation(experiment, population)
    same = {"augment": experiment.data.augment, **({} if figures is None else {"normalise": figures})}
    try:
        source = DataSection(**{**same, **start.data.model_dump()}, partition="iid", clients=1, holdout=0.0)
    except ValidationError as error:
        raise InputError(explain(error, DataSection, "start.data")) from None
    return Experiment(
        method=MethodSection(name="central"),
        data=source,
        model=experiment.model.without_options_of_rounds().model_copy(update={"statistics": "running"}),
        train=train.model_copy(update={**_EVERYBODY, **training_given(start), "rounds": start.epochs, "epochs": 1}),
        # Worker processes have nothing to share: there is one job at a time.
        run=run.model_copy(update={"engine": "auto", "workers": None, "device": run.device.split(",")[0]}),
    )


def training_given(section: StartSection | PersonalSection) -> dict[str, Any]:
    """The settings of training in a section of a phase, which replace those in `train`."""
    return {key: value for key in TRAINING_KEYS if (value := getattr(section, key, None)) is not None}


def with_all_devices(experiment: Experiment, **training: Any) -> Experiment:
    """The experiment with `training`, in which all devices take part in every round and are always available.

    The server holds no data, and the learning rate is constant.
    """
    fleet = experiment.fleet.model_copy(update=_ALWAYS_AVAILABLE)
    train = experiment.train.model_copy(update={**_EVERYBODY, "schedule": "constant", **training})
    return experiment.model_copy(update={"public": PublicSection(), "fleet": fleet, "train": train})


def _first_method(experiment: Experiment) -> Experiment:
    """The rounds of another method, with the fleet, the links and the topology of the run."""
    start = experiment.start
    assert start.method is not None
    given = {} if start.data is not None else training_given(start)
    update = {
        "method": MethodSection(**start.method.model_dump()),
        "model": experiment.model.without_options_of_rounds(),
        "train": experiment.train.model_copy(update={"schedule": "constant", **given, "rounds": start.rounds}),
    }
    return experiment.for_step(start.weights).model_copy(update=update)


def with_first_method(experiment: Experiment, method: Method) -> Experiment:
    """The experiment with the phase that `method` begins with, if it has one and the section names no other."""
    if not method.begins_with or experiment.start.method is not None:
        return experiment
    first = {"method": FirstMethodSection(name=method.begins_with)}
    return experiment.model_copy(update={"start": experiment.start.model_copy(update=first)})


def _warm_rounds(experiment: Experiment) -> Experiment:
    """FedAvg by all devices, which are always available, do not fail and have no deadline."""
    start, step = experiment.start, experiment.for_step(experiment.start.weights)
    update = {"method": MethodSection(name="fedavg"), "model": experiment.model.without_options_of_rounds()}
    return with_all_devices(step, rounds=start.warm_rounds, epochs=start.warm_epochs).model_copy(update=update)


def prepare_phase(
    experiment: Experiment,
    federation: Federation,
    model: Callable[[], nn.Module] | None,
    functions: TaskFunctions | None = None,
) -> list[Step]:
    """The steps of the experiment's phase, with their data. Raises `InputError` if one of them is not possible."""
    start = experiment.start
    if not start.trains:
        return []
    if experiment.run.engine == "processes" and torch.cuda.is_available():
        # Torch refuses to train in processes that are forked after their parent has traced a backward pass.
        raise InputError(
            "run.engine 'processes': on a machine with a GPU its workers cannot start after the phase `start`; "
            "write auto, vector or serial"
        )
    if start.schedule is not None:
        parse("start.schedule", start.schedule, SCHEDULES)
    return [_check_step(step, federation, model, functions) for step in phase_steps(experiment, federation.device_data)]


def _check_step(
    step: Step, federation: Federation, model: Callable[[], nn.Module] | None, functions: TaskFunctions | None
) -> Step:
    try:
        built = federate(step.experiment, None, step.data, model, step.functions(functions))
        if step.name not in _PLACES:
            _check_first_method(step.name, built.method)
        source, devices = built.population, federation.population
        if tuple(source.shape) != tuple(devices.shape):
            raise InputError(
                f"the samples of data set '{source.name}' have shape {source.shape} and those of the devices "
                f"{devices.shape}; they must be equal"
            )
        tensors = built.task.model.module.state_dict()
        check_tensors(federation.task.model.module, tensors, "the model for this data", skip_head=None)
        check_deadline(built)
    except InputError as error:
        raise InputError(f"{_PLACES.get(step.name, 'start.method')}: {error}") from None
    return replace(step, data=built.device_data)


def _check_first_method(name: str, method: Method) -> None:
    if name == "fedavg":
        raise InputError("rounds of fedavg before the first round are start.warm_rounds; write that")
    if type(method).models is not Method.models or method.begins_with or is_reference(name):
        raise InputError(f"'{name}' must be a method of the catalogue that trains one model, such as fedncm or lp")


def step_name(row: Mapping[str, Any]) -> str:
    """The name of the step that a row in the store of a phase belongs to."""
    return _NAMES.get(row["method"], str(row["method"]))


def initial_weights(folder: Path, experiment: Experiment) -> Path | None:
    """The file with the weights that the run in `folder` started from; None if it drew them."""
    if (folder / FOLDER).exists():
        with Store(folder / FOLDER) as store:
            return folder / FOLDER / str(store.runs()[-1]["id"]) / MODEL_FILE
    return None if experiment.start.weights is None else Path(experiment.start.weights)


@dataclass
class StartCosts(Totals):
    """What a phase cost: the totals of the devices, by a method or in warm rounds, and the FLOPs of the server."""

    server_flops: float = 0.0
    wall_seconds: float = 0.0


def start_costs(folder: Path) -> StartCosts | None:
    """The costs of the phase of the run in `folder` so far; None if it has no phase."""
    if not (folder / FOLDER).exists():
        return None
    costs = StartCosts()
    with Store(folder / FOLDER) as store:
        for row in store.runs():
            last = store.last_round(row["id"])
            costs.wall_seconds += last.get("wall_seconds", 0.0)
            if step_name(row) == PRETRAINING:
                costs.server_flops += last.get("flops", 0.0)
            else:
                costs.merge(store.totals(row["id"]))
    return costs
