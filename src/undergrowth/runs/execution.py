"""Starts and resumes runs, with the phase before their first round."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import zip_longest
from os import PathLike
from pathlib import Path
from typing import Any

from torch import nn

from undergrowth.core import Method
from undergrowth.data import Dataset, Population
from undergrowth.engines import restore_torch_settings, set_torch
from undergrowth.engines.memory import collect_garbage_less_often
from undergrowth.runs.callback import Callbacks
from undergrowth.runs.config import Experiment, parse_experiment
from undergrowth.runs.engine_choice import AUTO
from undergrowth.runs.evaluation_interval import choose_interval
from undergrowth.runs.federation import Federation
from undergrowth.runs.federation_builder import federate
from undergrowth.runs.final_models import FinalModels
from undergrowth.runs.lock import lock_run
from undergrowth.runs.model_builder import with_model_settings
from undergrowth.runs.ongoing_run import Execution, OnRound
from undergrowth.runs.opening import enter_run, open_federation
from undergrowth.runs.own_task import TaskFunctions
from undergrowth.runs.personal_evaluation import evaluate_personal
from undergrowth.runs.personal_phase import FOLDER, check_personal, chosen_by_auto
from undergrowth.runs.result import Result, result_of
from undergrowth.runs.run_inputs import check_same_code, check_same_data, check_same_inputs
from undergrowth.runs.start_phase import PRETRAINING, Step, phase_steps, prepare_phase, with_first_method
from undergrowth.runs.status import record_status
from undergrowth.runs.store import MODEL_FILE, Store
from undergrowth.runs.stored_experiment import stored_experiment
from undergrowth.runs.unused_settings import unused_engine_settings

__all__ = ["Execution", "resume", "start"]

OnPhase = Callable[[str, int, int], None]  # gets the name of a step, the number of its finished rounds, and of all


@restore_torch_settings()
def start(
    raw: Mapping[str, Any],
    *,
    method: Method | None = None,
    data: Dataset | Population | None = None,
    model: Callable[[], nn.Module] | None = None,
    functions: TaskFunctions | None = None,
    on_start: Callable[[Execution], None] | None = None,
    on_round: OnRound | None = None,
    on_phase: OnPhase | None = None,
    callbacks: Iterable[Any] | None = None,
) -> Result:
    """The result of a new run of the experiment that `raw` describes; objects stand in for names.

    `on_start` is called when the run exists in the store; `on_phase` and `on_round` when a round of the phase before
    the first round, or of the method, is stored. `callbacks`: objects of the user, see `Callback`.
    """
    executor = _Executor(model, functions, on_start, on_round, on_phase, Callbacks(callbacks))
    experiment = parse_experiment(raw)
    federation = federate(experiment, method, data, model, functions)
    experiment = with_model_settings(with_first_method(experiment, federation.method), federation.method)
    if experiment.run.evaluate_every == "auto":
        experiment, federation = executor.choose_interval(experiment, federation)
    try:
        steps = prepare_phase(experiment, federation, model, functions)
        given, experiment = experiment, open_federation(experiment, federation)
        federation.notes.extend(unused_engine_settings(given, experiment.run))
        check_personal(experiment, federation, model, functions)
        with Store(experiment.run.out, create=True) as store:
            objects = _given(method, data, model, functions)
            run = enter_run(store, experiment, federation, objects, executor.callbacks.names)
            with record_status(store, run, federation.notes), lock_run(store.folder / run):
                execution = Execution(store, run, experiment, federation)
                if steps:
                    execution = executor.do_phase(execution, steps)
                    federation = execution.federation
                result = executor.carry_out(execution)
    finally:
        federation.driver.close()
    executor.callbacks.end(result)
    return result


def _given(
    method: Method | None,
    data: Dataset | Population | None,
    model: Callable[[], nn.Module] | None,
    functions: TaskFunctions | None,
) -> dict[str, Any]:
    """The objects of the user, by the argument of `run` that they came with."""
    given: dict[str, Any] = {"method": method, "data": data, "model": model}
    return given if functions is None else {**given, "loss": functions.loss, "metrics": functions.metrics or None}


@restore_torch_settings()
def resume(
    run: str = "last",
    out: str | PathLike[str] = "runs",
    *,
    method: Method | None = None,
    data: Dataset | Population | None = None,
    model: Callable[[], nn.Module] | None = None,
    functions: TaskFunctions | None = None,
    allow_changed_source: bool = False,
    on_start: Callable[[Execution], None] | None = None,
    on_round: OnRound | None = None,
    on_phase: OnPhase | None = None,
    callbacks: Iterable[Any] | None = None,
) -> Result:
    """The result of a run that continues after its last finished round. It needs the same objects as at its start.

    A run that names objects of the user is refused if their source has changed, unless `allow_changed_source` is set.
    """
    executor = _Executor(model, functions, on_start, on_round, on_phase, Callbacks(callbacks))
    with Store(out, write=True) as store:
        name = store.find(run)
        row = store.run(name)
        if row["status"] == "done" and (store.folder / name / MODEL_FILE).exists():
            return result_of(store, name, model)
        experiment = stored_experiment(row)
        given = _given(method, data, model, functions)
        notes = check_same_inputs(row, experiment, given, allow_changed_source)
        federation = federate(experiment, method, data, model, functions)
        federation.notes.extend(notes)
        if missing := [each for each in row["experiment"].get("callbacks", ()) if each not in executor.callbacks.names]:
            federation.notes.append(f"resumed without callbacks that the run began with: {', '.join(missing)}")
        check_same_data(row, federation)
        federation.notes.extend(check_same_code(row, federation, given, allow_changed_source))
        # Whatever stops the run from here on, its notes so far stay.
        federation.notes[:] = list(dict.fromkeys([*row["notes"], *federation.notes]))
        with lock_run(store.folder / name), record_status(store, name, federation.notes):
            execution = Execution(store, name, experiment, federation)
            try:
                # A run of an older version has done its warm rounds without a folder for them.
                if experiment.start.trains and (execution.phase_folder.exists() or not store.checkpoints(name)):
                    # As it began: `auto` chooses an engine again for every step of the phase.
                    begun = experiment.with_run(engine="auto") if chosen_by_auto(federation) else experiment
                    steps = phase_steps(begun, federation.device_data)
                    execution = executor.do_phase(execution, steps)
                else:
                    federation.driver.start()
                execution.restore()
                result = executor.carry_out(execution)
            finally:
                execution.federation.driver.close()
    executor.callbacks.end(result)
    return result


@dataclass(frozen=True)
class _Executor:
    """Carries out a run and the steps of its phases, with what the user gave to `start` or `resume`."""

    model: Callable[[], nn.Module] | None
    functions: TaskFunctions | None
    on_start: Callable[[Execution], None] | None
    on_round: OnRound | None
    on_phase: OnPhase | None
    callbacks: Callbacks

    def choose_interval(self, experiment: Experiment, federation: Federation) -> tuple[Experiment, Federation]:
        """The experiment with the number that `evaluate_every: auto` stands for, and its federation."""
        every, reason = choose_interval(experiment, federation)
        experiment = experiment.with_run(evaluate_every=every)
        # The nodes know the interval, too: some methods do more in a round that is evaluated.
        chosen = self._federate_again(experiment.with_population(), federation)
        chosen.notes = [*federation.notes, reason]
        return experiment, chosen

    def _federate_again(self, experiment: Experiment, before: Federation) -> Federation:
        """The federation of `experiment` with the method and the data of the one before."""
        return federate(experiment, before.method, before.device_data, self.model, self.functions)

    def do_phase(self, execution: Execution, steps: Sequence[Step]) -> Execution:
        """Does the steps before the first round that are not done yet; returns the run with the model they trained."""
        if self.on_start:
            self.on_start(execution)
        federation = execution.federation
        federation.driver.close()
        weights: Path | None = None
        with Store(execution.phase_folder, create=True, in_run=True) as store:
            for step, row in zip_longest(steps, store.runs()):
                run = self.do_step(store, row, step.after(weights))
                weights = store.folder / run / MODEL_FILE
                own = [note for note in store.run(run)["notes"] if note not in federation.notes]
                federation.note(*(f"{step.name}: {note}" for note in own if not note.startswith(AUTO)))
        started = self._federate_again(execution.experiment.with_population().starting_from(weights), federation)
        started.notes = federation.notes
        started.driver.start()
        return Execution(execution.store, execution.run, execution.experiment, started)

    def do_step(self, store: Store, row: Mapping[str, Any] | None, step: Step) -> str:
        """Does a step as a run in `store`, or continues the run in `row`; returns the id of the run."""
        if row and row["status"] == "done" and (store.folder / row["id"] / MODEL_FILE).exists():
            return str(row["id"])
        experiment = step.experiment
        if row is not None:  # with the engine that `auto` chose
            experiment = stored_experiment(row).model_copy(update={"start": experiment.start})
        federation = federate(experiment, None, step.data, self.model, step.functions(self.functions))
        try:
            if row is None:
                experiment = open_federation(experiment, federation)
                devices = None if step.name == PRETRAINING else step.data  # their data is checked by the run itself
                run = enter_run(store, experiment, federation, {"method": None, "data": devices, "model": self.model})
            else:
                run = row["id"]
                check_same_data(row, federation)
                federation.driver.start()
            federation.reseed(step.name if step.device_scores is None else FOLDER)
            execution = Execution(store, run, experiment, federation)
            if step.device_scores is not None:
                parts = {"": federation.present, **step.device_scores}
                execution.final_models = FinalModels(federation, experiment.train.rounds, parts)
            if row is not None:
                federation.notes[:] = list(dict.fromkeys([*row["notes"], *federation.notes]))
                execution.restore()

            def report(*_: Any) -> None:
                if self.on_phase:
                    self.on_phase(step.name, federation.driver.root.round, experiment.train.rounds)

            replace(self, on_start=report, on_round=report, callbacks=Callbacks()).carry_out(execution)
            return run
        finally:
            federation.driver.close()

    @collect_garbage_less_often()
    def carry_out(self, execution: Execution) -> Result:
        """Does the remaining rounds and the phase after the last one."""
        run = execution.experiment.run
        set_torch(run.precision != "float32", run.threads, execution.federation.world.torch_device)
        try:
            if self.on_start:
                self.on_start(execution)
            execution.begin(self.callbacks)
            execution.go(self.on_round)
            if execution.experiment.personal.evaluate:
                evaluate_personal(execution, self.do_step)
            execution.finish()
        finally:
            execution.federation.world.states.close()
        return result_of(execution.store, execution.run, self.model)
