"""A run from start to end: rounds, evaluation, store, checkpoints, resume."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict
from math import isfinite
from os import PathLike
from typing import Any

import safetensors.torch
from torch import Tensor, nn

from undergrowth.core import InputError, Method, RoundEnd, RunError, Weights, moved
from undergrowth.data import Dataset, Population
from undergrowth.engines import set_torch, torch_restored
from undergrowth.engines.memory import garbage_waits
from undergrowth.runs.checkpoint import Checkpoints, replace_file
from undergrowth.runs.config import Experiment, experiment
from undergrowth.runs.ending import told
from undergrowth.runs.engine_choice import choose_engine
from undergrowth.runs.engine_facts import choose_workers, count_facts
from undergrowth.runs.evaluation import digest, fitted, score_all, score_devices
from undergrowth.runs.federation import Federation, engine_of, federate
from undergrowth.runs.fingerprint import changed, fingerprint
from undergrowth.runs.lock import held
from undergrowth.runs.outlook import check_deadline
from undergrowth.runs.result import MODEL_FILE, Result, result_of
from undergrowth.runs.store import Store

MOST_NOTES = 50  # a run that goes wrong in every round says so often enough

DIVERGED = "training has diverged; a smaller train.lr, or a smaller step of the server, may help"
OnRound = Callable[[Mapping[str, Any], "Execution"], None]


class Execution:
    """One run under way."""

    def __init__(self, store: Store, run: str, settings: Experiment, federation: Federation) -> None:
        self.store = store
        self.run = run
        self.settings = settings
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
        """Does the rounds that are left. Each is in the store, whole, before the next one starts."""
        simulation, noted = self.federation.simulation, 0
        done = simulation.jobs_done
        for ends in simulation.run():
            facts = simulation.engine.facts() if simulation.jobs_done > done else {}
            rows, done = [self._row(end, facts) for end in ends], simulation.jobs_done
            last = rows[-1]["round"]
            entries = simulation.ledger.take()
            self._note(ends)
            checkpoint = None
            if last % self.settings.run.checkpoint_every == 0 or simulation.root.done:
                kept = {"simulation": simulation.snapshot(), "scores": self.scores, "wall_seconds": self.wall_seconds}
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
        federation, simulation = self.federation, self.federation.simulation
        root, own = simulation.root, federation.world.states.all()
        weights = final_model(federation)
        path = self.store.folder / self.run / MODEL_FILE
        replace_file(path, safetensors.torch.save({k: v.detach().cpu().contiguous() for k, v in weights.items()}))
        accuracies = score_devices(
            federation.method, federation.task, root.state, own, federation.population, federation.world.device
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
        """For the history; facts: what the engine says of its work for this round, if it had any."""
        federation, simulation = self.federation, self.federation.simulation
        number = end.round + 1
        if number % self.settings.run.evaluate_every == 0 or simulation.root.done or not self.scores:
            own = federation.world.states.all()
            self.scores = score_all(federation.method, federation.task, simulation.root.state, own, federation.test)
        totals = simulation.ledger.totals
        return {
            "round": number,
            **self.scores,
            "simulated_seconds": totals.simulated_seconds,
            "wall_seconds": self.wall_seconds,
            "arrived": len(end.arrived),
            "lost": len(end.lost),
            "refused": len(end.refused),
            "late": len(end.dropped),
            "bytes_down": totals.bytes_down,
            "bytes_up": totals.bytes_up,
            "flops": totals.flops,
            "joules": totals.joules,
            **facts,
        }

    def _note(self, ends: list[RoundEnd]) -> None:
        notes = self.federation.notes
        for end in ends if len(notes) < MOST_NOTES else ():
            for device, problem in list(end.refused.items())[:1]:
                more = f" and {len(end.refused) - 1} more" if len(end.refused) > 1 else ""
                notes.append(f"round {end.round + 1}: refused the update of {device}{more}: {problem}")
            if end.abandoned:
                notes.append(f"round {end.round + 1}: abandoned, no usable update came back")
        if not isfinite(self.scores["loss"]) and not any(DIVERGED in note for note in notes):
            notes.append(f"round {ends[-1].round + 1}: the loss is {self.scores['loss']}: {DIVERGED}")

    def _summary(self, weights: Weights) -> dict[str, Any]:
        settings, simulation = self.settings, self.federation.simulation
        totals = asdict(simulation.ledger.totals)
        return {
            "run": self.run,
            "method": settings.method.name,
            "data": self.federation.population.name,
            "model": settings.model.name,
            "seed": settings.run.seed,
            "rounds": settings.train.rounds,
            "clients": len(self.federation.population.devices),
            "engine": settings.run.engine,
            "accuracy": self.scores["accuracy"],
            "loss": self.scores["loss"],
            **totals,
            "wall_seconds": self.wall_seconds,
            "clients_per_second": simulation.jobs_done / max(simulation.work_seconds, 1e-9),
            "model_digest": digest(weights),
        }


@torch_restored()
def start(
    tree: Mapping[str, Any],
    *,
    method: Method | None = None,
    data: Dataset | Population | None = None,
    model: Callable[[], nn.Module] | None = None,
    on_start: Callable[[Execution], None] | None = None,
    on_round: OnRound | None = None,
) -> Result:
    """A new run of the experiment that `tree` describes, with objects of the user's in place of names."""
    settings = experiment(tree)
    federation = federate(settings, method, data, model)
    check_deadline(federation)
    if settings.run.engine == "auto":
        choice = choose_engine(count_facts(federation))
        settings = settings.model_copy(update={"run": settings.run.model_copy(update=choice.settings)})
        federation.simulation.engine = engine_of(settings, federation.world)
        federation.notes.append(f"engine auto: {choice.reason}")
    # Settled now and written down, because a run that is resumed needs as many workers for the same bits.
    chosen, reasons = choose_workers(federation)
    settings = settings.model_copy(update={"run": settings.run.model_copy(update=chosen)})
    federation.notes.extend(reasons)
    store = Store(settings.run.out, create=True)
    try:
        given = {"method": method, "data": data, "model": model}
        objects = {part: used and getattr(used, "__name__", type(used).__name__) for part, used in given.items()}
        facts = {
            "method": settings.method.name,
            "data": federation.population.name,
            "model": settings.model.name,
            "seed": settings.run.seed,
            "rounds": settings.train.rounds,
            "clients": len(federation.population.devices),
            "engine": settings.run.engine,
        }
        population = federation.population
        kept = {
            "settings": json.loads(settings.model_dump_json()),
            "objects": objects,
            "shape": list(population.shape),
            "classes": population.classes,
            "fingerprint": None if isinstance(data, Population) else fingerprint(population),
        }
        run = store.create(facts, kept)
        with told(store, run, federation.notes), held(store.folder / run):
            return _carry_out(Execution(store, run, settings, federation), model, on_start, on_round)
    finally:
        store.close()


@torch_restored()
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
    """Goes on after the last finished round. A run that used objects needs the same objects again."""
    store = Store(out)
    try:
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
        settings = experiment(row["experiment"]["settings"])
        federation = federate(settings, method, data, model)
        before = row["experiment"].get("fingerprint")
        if before is not None and changed(before, fingerprint(federation.population)):
            raise InputError(f"data: it is not what run '{name}' began with; bring that back, or start a new run")
        with held(store.folder / name), told(store, name, federation.notes):
            execution = Execution(store, name, settings, federation)
            _restore(execution)
            federation.notes[:] = list(dict.fromkeys([*row["notes"], *federation.notes]))
            return _carry_out(execution, model, on_start, on_round)
    finally:
        store.close()


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
        federation.simulation.restore(moved(kept["simulation"], federation.world.device))
        federation.world.states.restore(written, order)
        execution.scores, execution.wall_before = kept["scores"], kept["wall_seconds"]
        done = number
        break
    after = "went back to the checkpoint before it" if done else "started again from the first round"
    federation.notes.extend(f"{problem}; {after}" for problem in unread)
    store.rewind(run, done)
    store.set_status(run, "running")


@garbage_waits()
def _carry_out(
    execution: Execution,
    model: Callable[[], nn.Module] | None,
    on_start: Callable[[Execution], None] | None,
    on_round: OnRound | None,
) -> Result:
    set_torch(execution.settings.run.precision != "float32", execution.settings.run.threads)
    try:
        if on_start:
            on_start(execution)
        execution.go(on_round)
        execution.finish()
    finally:
        execution.federation.simulation.engine.close()
        execution.federation.world.states.close()
    return result_of(execution.store, execution.run, model)


def final_model(federation: Federation) -> Mapping[str, Tensor]:
    """The model that the run is about; where every device has its own, that of the device with most samples."""
    root, own = federation.simulation.root, federation.world.states.all()
    models = federation.method.models(federation.task, root.state, own)
    population = federation.population
    chosen = "global" if "global" in models else max(models, key=lambda n: population.size(n) if n in own else 0)
    return fitted(federation.task, models[chosen]).weights
