"""A run from start to end: rounds, evaluation, store, checkpoints, resume."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from dataclasses import asdict
from math import isfinite
from os import PathLike
from typing import Any

import safetensors.torch
from torch import Tensor, nn

from undergrowth.core import InputError, Method, RoundEnd, RunError, Weights, move_to
from undergrowth.data import Dataset, Population
from undergrowth.engines import restore_torch_settings, set_torch
from undergrowth.engines.memory import collect_garbage_less_often
from undergrowth.runs.atomic_files import replace_file
from undergrowth.runs.checkpoint import Checkpoints
from undergrowth.runs.config import Experiment, parse_experiment
from undergrowth.runs.engine_choice import choose_engine
from undergrowth.runs.engine_facts import choose_workers, count_facts
from undergrowth.runs.evaluation import digest, frozen_digest, score_all, score_devices, with_model
from undergrowth.runs.federation import Federation, build_engine, federate
from undergrowth.runs.fingerprint import differ, fingerprint
from undergrowth.runs.lock import lock_run
from undergrowth.runs.preview import check_deadline, describe_guess
from undergrowth.runs.result import MODEL_FILE, Result, result_of
from undergrowth.runs.status import record_status
from undergrowth.runs.store import Store
from undergrowth.runs.stored_experiment import option_defaults, stored_experiment

MAX_NOTES = 50  # a run that goes wrong in every round need not say so every time

DIVERGED = "training has diverged; a smaller train.lr, or a smaller step of the server, may help"
OnRound = Callable[[Mapping[str, Any], "Execution"], None]


class Execution:
    """One run under way."""

    def __init__(self, store: Store, run: str, experiment: Experiment, federation: Federation) -> None:
        self.store = store
        self.run = run
        self.experiment = experiment
        self.federation = federation
        self.checkpoints = Checkpoints(store.folder / run / "checkpoints")
        federation.world.states.folder = store.folder / run
        self.scores: dict[str, float] = {}
        self.wall_before = 0.0  # seconds of earlier sittings
        self.began = time.perf_counter()

    @property
    def wall_seconds(self) -> float:
        return self.wall_before + time.perf_counter() - self.began

    def go(self, on_round: OnRound | None = None) -> None:
        """Does the remaining rounds. Each is completely in the store before the next one starts."""
        driver, noted = self.federation.driver, 0
        for ends in driver.rounds():
            facts = driver.facts()
            rows = [self._row(end, facts) for end in ends]
            last = rows[-1]["round"]
            entries = driver.ledger.take()
            self._note(ends)
            checkpoint = None
            if last % self.experiment.run.checkpoint_every == 0 or driver.root.done:
                kept = {"simulation": driver.snapshot(), "scores": self.scores, "wall_seconds": self.wall_seconds}
                checkpoint = self.checkpoints.save(last, kept, self.federation.world.states)
            self.store.finish_round(self.run, rows, entries, checkpoint)
            if len(self.federation.notes) > noted:
                noted = len(self.federation.notes)
                self.store.set_status(self.run, "running", self.federation.notes)
            if checkpoint:
                self.store.forget_checkpoints(self.run, self.checkpoints.tidy())
            if on_round:
                for row in rows:
                    on_round(row, self)

    def finish(self) -> None:
        """Evaluates, writes the model and marks the run as done."""
        federation = self.federation
        root, own = federation.driver.root, federation.world.states.all()
        weights = final_model(federation)
        path = self.store.folder / self.run / MODEL_FILE
        replace_file(path, safetensors.torch.save({k: v.detach().cpu().contiguous() for k, v in weights.items()}))
        accuracies = score_devices(
            federation.method, federation.task, root.state, own, federation.population, federation.world.torch_device
        )
        costs = self.store.costs_by_device(self.run)
        devices = [
            {
                "device": name,
                "tier": federation.fleet.profile(name).name,
                "samples": federation.population.size(name),
                "accuracy": accuracies.get(name),
                **costs.get(name, {"rounds": 0}),
            }
            for name in federation.population.devices
        ]
        self.store.finish_run(self.run, self._summary(weights), devices)
        self.store.set_status(self.run, "done", federation.notes)

    def _row(self, end: RoundEnd, facts: Mapping[str, float]) -> dict[str, Any]:
        """The round's row of the history. `facts`: figures about the engine's work."""
        federation, driver = self.federation, self.federation.driver
        number = end.round + 1
        if number % self.experiment.run.evaluate_every == 0 or driver.root.done or not self.scores:
            own = federation.world.states.all()
            self.scores = score_all(federation.method, federation.task, driver.root.state, own, federation.test)
        totals = driver.ledger.totals
        return {
            "round": number,
            **self.scores,
            "simulated_seconds": totals.simulated_seconds,
            "wall_seconds": self.wall_seconds,
            "arrived": len(end.arrived),
            "lost": len(end.lost),
            "refused": len(end.refused),
            "late": len(end.dropped),
            **{name: getattr(totals, name) for name in ("bytes_down", "bytes_up", "flops", "joules")},
            **facts,
        }

    def _note(self, ends: Sequence[RoundEnd]) -> None:
        notes = self.federation.notes
        for end in ends if len(notes) < MAX_NOTES else ():
            for device, problem in list(end.refused.items())[:1]:
                more = f" and {len(end.refused) - 1} more" if len(end.refused) > 1 else ""
                notes.append(f"round {end.round + 1}: refused the update of {device}{more}: {problem}")
            if end.abandoned:
                notes.append(f"round {end.round + 1}: abandoned, no usable update came back")
        if not isfinite(self.scores["loss"]) and not any(DIVERGED in note for note in notes):
            notes.append(f"round {ends[-1].round + 1}: the loss is {self.scores['loss']}: {DIVERGED}")

    def _summary(self, weights: Weights) -> dict[str, Any]:
        driver = self.federation.driver
        return {
            "run": self.run,
            **_run_facts(self.experiment, self.federation.population),
            "accuracy": self.scores["accuracy"],
            "loss": self.scores["loss"],
            **asdict(driver.ledger.totals),
            "wall_seconds": self.wall_seconds,
            "clients_per_second": driver.clients_per_second,
            "model_digest": digest(weights),
        }


@restore_torch_settings()
def start(
    raw: Mapping[str, Any],
    *,
    method: Method | None = None,
    data: Dataset | Population | None = None,
    model: Callable[[], nn.Module] | None = None,
    on_start: Callable[[Execution], None] | None = None,
    on_round: OnRound | None = None,
) -> Result:
    """The result of a new run of the experiment that `raw` describes; objects stand in for names."""
    experiment = parse_experiment(raw)
    federation = federate(experiment, method, data, model)
    try:
        experiment = _open(experiment, federation)
        with closing(Store(experiment.run.out, create=True)) as store:
            run = _enter(store, experiment, federation, {"method": method, "data": data, "model": model})
            with record_status(store, run, federation.notes), lock_run(store.folder / run):
                return _carry_out(Execution(store, run, experiment, federation), model, on_start, on_round)
    finally:
        federation.driver.close()


def _open(experiment: Experiment, federation: Federation) -> Experiment:
    """Starts the driver and checks the deadline; returns the experiment with the engine that `auto` chose."""
    is_auto = experiment.run.engine == "auto"
    if not is_auto:
        # Pricing starts torch's autograd threads. On a machine with a GPU, workers must be forked before that.
        federation.driver.start()
    check_deadline(federation)
    federation.notes.extend(describe_guess(federation.task.model))
    if is_auto:
        choice = choose_engine(count_facts(federation))
        federation.notes.append(f"engine auto: {choice.reason}")
        experiment = _with_run(experiment, choice.settings)
        federation.use(build_engine(experiment))
        federation.driver.start()
    # The number of workers is stored, because a resumed run needs as many for the same bits.
    chosen, reasons = choose_workers(federation)
    federation.notes.extend(reasons)
    return _with_run(experiment, chosen)


def _with_run(experiment: Experiment, chosen: Mapping[str, Any]) -> Experiment:
    return experiment.model_copy(update={"run": experiment.run.model_copy(update=chosen)})


def _enter(store: Store, experiment: Experiment, federation: Federation, given: Mapping[str, Any]) -> str:
    """Enters the run in the store; returns its id."""
    population = federation.population
    kept = {
        "settings": json.loads(experiment.model_dump_json()),
        "defaults": option_defaults(experiment),
        "objects": {part: used and getattr(used, "__name__", type(used).__name__) for part, used in given.items()},
        "shape": list(population.shape),
        "classes": population.classes,
        "fingerprint": None if isinstance(given["data"], Population) else fingerprint(population),
        "frozen": frozen_digest(federation.task),
    }
    return store.create(_run_facts(experiment, population), kept)


def _run_facts(experiment: Experiment, population: Population) -> dict[str, Any]:
    """What the store and the summary say about a run before its first round."""
    return {
        "method": experiment.method.name,
        "data": population.name,
        "model": experiment.model.name,
        "seed": experiment.run.seed,
        "rounds": experiment.train.rounds,
        "clients": len(population.devices),
        "engine": experiment.run.engine,
    }


@restore_torch_settings()
def resume(
    run: str = "last",
    out: str | PathLike[str] = "runs",
    *,
    method: Method | None = None,
    data: Dataset | Population | None = None,
    model: Callable[[], nn.Module] | None = None,
    on_start: Callable[[Execution], None] | None = None,
    on_round: OnRound | None = None,
) -> Result:
    """The result of a run that continues after its last finished round. It needs the same objects as at its start."""
    with closing(Store(out, write=True)) as store:
        name = store.find(run)
        row = store.run(name)
        if row["status"] == "done" and (store.folder / name / MODEL_FILE).exists():
            return result_of(store, name, model)
        given = {"method": method, "data": data, "model": model}
        for part, used in row["experiment"]["objects"].items():
            if used and given[part] is None:
                raise InputError(
                    f"run '{name}' was given a {part} object ({used}); resume it from Python: "
                    f"ug.resume('{name}', {part}=...)"
                )
        experiment = stored_experiment(row)
        federation = federate(experiment, method, data, model)
        before = row["experiment"].get("fingerprint")
        if before is not None and differ(before, fingerprint(federation.population)):
            raise InputError(f"data: it is not the data of run '{name}'; restore that data, or start a new run")
        frozen = row["experiment"].get("frozen")
        if frozen is not None and frozen != frozen_digest(federation.task):
            raise InputError(
                f"model: its frozen weights are not those of run '{name}'; restore them, or start a new run"
            )
        with lock_run(store.folder / name), record_status(store, name, federation.notes):
            execution = Execution(store, name, experiment, federation)
            federation.driver.start()
            try:
                _restore(execution)
                federation.notes[:] = list(dict.fromkeys([*row["notes"], *federation.notes]))
                return _carry_out(execution, model, on_start, on_round)
            finally:
                federation.driver.close()


def _restore(execution: Execution) -> None:
    """Takes up the newest checkpoint that can be read; with none, the run starts again from its seed."""
    federation, store, run = execution.federation, execution.store, execution.run
    done = 0
    unread: list[str] = []
    for number, name, checksum in store.checkpoints(run):
        try:
            kept, order, written = execution.checkpoints.load(name, checksum)
        except RunError as error:
            unread.append(str(error))
            continue
        federation.driver.restore(move_to(kept["simulation"], federation.world.torch_device))
        federation.world.states.restore(written, order)
        execution.scores, execution.wall_before = kept["scores"], kept["wall_seconds"]
        done = number
        break
    after = "went back to the checkpoint before it" if done else "started again from the first round"
    federation.notes.extend(f"{problem}; {after}" for problem in unread)
    store.rewind(run, done)
    store.set_status(run, "running")


@collect_garbage_less_often()
def _carry_out(
    execution: Execution,
    model: Callable[[], nn.Module] | None,
    on_start: Callable[[Execution], None] | None,
    on_round: OnRound | None,
) -> Result:
    set_torch(execution.experiment.run.precision != "float32", execution.experiment.run.threads)
    try:
        if on_start:
            on_start(execution)
        execution.go(on_round)
        execution.finish()
    finally:
        execution.federation.world.states.close()
    return result_of(execution.store, execution.run, model)


def final_model(federation: Federation) -> Mapping[str, Tensor]:
    """The model that the run is about; where every device has its own, that of the device with most samples."""
    root, own = federation.driver.root, federation.world.states.all()
    models = federation.method.models(federation.task, root.state, own)
    population = federation.population
    chosen = "global" if "global" in models else max(models, key=lambda n: population.size(n) if n in own else 0)
    model, weights = with_model(federation.task, models[chosen])
    return model.complete(weights)
