"""A run under way: rounds, evaluation, store, checkpoints."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict
from math import isfinite
from pathlib import Path
from typing import Any

import safetensors.torch

from undergrowth.core import InputError, Metric, ModelWeights, RoundEnd, RunError, Weights, move_to
from undergrowth.data import Population
from undergrowth.exchange import ROUND_COST_KEYS, Entry
from undergrowth.runs.atomic_files import replace_file
from undergrowth.runs.callback import Callbacks, Row
from undergrowth.runs.checkpoint import Checkpoints
from undergrowth.runs.config import Experiment
from undergrowth.runs.diagnosis import (
    DIVERGED,
    PERSONAL_DIVERGED,
    describe_dead_units,
    describe_guessing,
    describe_unstacked,
    note_rounds,
)
from undergrowth.runs.federation import Federation
from undergrowth.runs.final_models import FinalModels
from undergrowth.runs.opening import run_facts
from undergrowth.runs.personal_phase import personal_costs
from undergrowth.runs.run_inputs import digest
from undergrowth.runs.run_models import DeviceMetrics, some_devices, with_model
from undergrowth.runs.start_phase import FOLDER, start_costs
from undergrowth.runs.status import fail_run
from undergrowth.runs.stop_section import CALLBACK, ROUNDS
from undergrowth.runs.store import MODEL_FILE, Store
from undergrowth.runs.stream_scores import OWN_SAMPLES, WORST_TENTH, stream_scores, worst_mean
from undergrowth.runs.tree_evaluation import score_tree
from undergrowth.simulation.own_training import OWN_TRAINING

OnRound = Callable[[Mapping[str, Any], "Execution"], None]


class Execution:
    """One run under way. Callbacks see it as an `OngoingRun`."""

    def __init__(self, store: Store, run: str, experiment: Experiment, federation: Federation) -> None:
        self.store = store
        self.run = run
        self.experiment = experiment
        self.federation = federation
        self.checkpoints = Checkpoints(store.folder / run / "checkpoints")
        federation.world.states.folder = store.folder / run
        self.final_models: FinalModels | None = None  # of a step after the last round
        self.callbacks = Callbacks()
        self.history: list[dict[str, Any]] = []  # of the finished rounds, if there are callbacks
        self.stopped = ""  # why a callback has ended the run
        self.scores: dict[str, float] = {}
        self._evaluated = 0  # the round of `scores`
        self._by_device: dict[int, dict[str, float]] = {}  # rounds → scores of devices, if their samples change
        self._failure: InputError | RunError | None = None  # of a callback, raised when the round is stored
        self.wall_before = 0.0  # seconds before the run was resumed
        self.began = time.perf_counter()

    @property
    def folder(self) -> Path:
        """The folder of the run."""
        return self.store.folder / self.run

    @property
    def phase_folder(self) -> Path:
        """The folder of what is trained before the first round."""
        return self.folder / FOLDER

    @property
    def weights(self) -> Weights:
        """A copy of the weights of the model that the run is about, after the last finished round."""
        return {name: value.detach().clone() for name, value in final_model(self.federation).complete.items()}

    def is_evaluated(self, row: Row) -> bool:
        """Whether the model was evaluated in that round. Other rows repeat the figures of the last evaluation."""
        number = row["round"]
        return number in (1, self._evaluated) or number % self.experiment.run.evaluate_every == 0

    def stop(self, reason: str) -> None:
        """Ends the run after the round that has just finished (before the first round: after that one)."""
        self.stopped = self.stopped or reason or "a callback asked for it"

    @property
    def metric(self) -> Metric:
        """The metric that decides which model is better: the main one of the task."""
        return self.federation.task.kind.metric

    def metric_named(self, name: str) -> Metric:
        """A figure of the history, with the direction in which it is better."""
        return self.federation.task.kind.metric_named(name)

    @property
    def wall_seconds(self) -> float:
        return self.wall_before + time.perf_counter() - self.began

    def restore(self) -> None:
        """Takes up the newest checkpoint that can be read; with none, the run starts again from its seed."""
        federation, store, run = self.federation, self.store, self.run
        done = 0
        unread: list[str] = []
        for number, name, checksum in store.checkpoints(run):
            try:
                kept, order, written = self.checkpoints.load(name, checksum)
            except RunError as error:
                unread.append(str(error))
                continue
            federation.driver.restore(move_to(kept["simulation"], federation.world.torch_device))
            federation.world.states.restore(written, order)
            self.scores, self.wall_before = kept["scores"], kept["wall_seconds"]
            self.stopped = kept.get("stopped", "")
            done = number
            break
        after = "went back to the checkpoint before it" if done else "started again from the first round"
        federation.notes.extend(f"{problem}; {after}" for problem in unread)
        store.rewind(run, done)
        store.set_status(run, "running")

    def begin(self, callbacks: Callbacks) -> None:
        """Tells callbacks of the start. They are called in every round from now on."""
        self.callbacks = callbacks
        self.history = self.store.rounds(self.run) if callbacks.names else []
        callbacks.start(self)

    def go(self, on_round: OnRound | None = None) -> None:
        """Does the remaining rounds. Each is completely in the store before the next one starts."""
        driver, noted = self.federation.driver, 0
        self.folder.mkdir(parents=True, exist_ok=True)  # for the file of states that do not fit into memory
        driver.root.initialise()
        for ends in self._rounds():
            with fail_run():
                rows = self._rows(ends)
            last = rows[-1]["round"]
            entries = driver.ledger.take()
            note_rounds(self.federation.notes, ends[: len(rows)], self.scores["loss"])
            if unstacked := describe_unstacked(rows[-1], self.federation.method.client):
                self.federation.note(unstacked)
            checkpoint = None
            due = last % self.experiment.run.checkpoint_every == 0 or driver.root.done
            if due and self.final_models is None:
                kept = {"simulation": driver.snapshot(), "scores": self.scores, "wall_seconds": self.wall_seconds}
                kept |= {"stopped": self.stopped} if self.stopped else {}
                checkpoint = self.checkpoints.save(last, kept, self.federation.world.states)
            self.store.finish_round(self.run, rows, entries, checkpoint, self._by_device)
            self._by_device = {}
            if len(self.federation.notes) > noted:
                noted = len(self.federation.notes)
                self.store.set_status(self.run, "running", self.federation.notes)
            if checkpoint:
                self.store.forget_checkpoints(self.run, self.checkpoints.tidy())
            if on_round:
                for row in rows:
                    on_round(row, self)
            self._raise_problem(ends[: len(rows)], entries)

    def _rounds(self) -> Iterator[Sequence[RoundEnd]]:
        """The rounds of the driver, as they end."""
        with fail_run():
            yield from self.federation.driver.rounds()

    @fail_run()
    def finish(self) -> None:
        """Evaluates, writes the model and marks the run as done."""
        federation = self.federation
        self._note_at_end()
        self.write_model()
        population, others = federation.present, dict[str, DeviceMetrics]()
        if self.final_models is None:
            metrics = self.score_devices(population)
        else:
            others = dict(self.final_models.score())
            metrics = others.pop("")
        costs = self.store.costs_by_device(self.run)
        devices = [
            {
                "device": name,
                "tier": federation.fleet.profile(name).name,
                "samples": int(population.size(name)),  # numpy's cannot be stored
                **metrics.get(name, {self.metric.name: None}),
                **{part: found.get(name, {}).get(self.metric.name) for part, found in others.items()},
                **costs.get(name, {"rounds": 0}),
            }
            for name in population.devices
        ]
        tree = score_tree(federation) if self.final_models is None else None
        summary = self._summary(final_model(federation).complete) | ({"tree": tree} if tree else {})
        found = stream_scores(self.store, self.run, self.store.run(self.run), self.metric)
        summary |= {} if found is None else {"stream": found.summary()}
        self.store.finish_run(self.run, summary, devices, federation.notes)

    def write_model(self) -> Path:
        """Writes the weights of the run's model into its folder; returns the file."""
        path = self.folder / MODEL_FILE
        tensors = {
            name: value.detach().cpu().contiguous() for name, value in final_model(self.federation).complete.items()
        }
        replace_file(path, safetensors.torch.save(tensors))
        return path

    def score_devices(self, population: Population) -> DeviceMetrics:
        """The metrics of each device's model on its test samples in `population`; of many devices, of some."""
        devices = None if self.experiment.personal.evaluate else some_devices(population)
        return self.federation.models.score_devices(population, devices)

    def _rows(self, ends: Sequence[RoundEnd]) -> list[dict[str, Any]]:
        """The rows of the history for rounds that ended in the same instant, up to the one that ends the run."""
        driver, stop = self.federation.driver, self.experiment.stop
        facts, rows = driver.facts(), list[dict[str, Any]]()
        for end in ends:
            answers = {"arrived": end.arrived, "lost": end.lost, "refused": end.refused, "late": end.dropped}
            row = {"round": end.round + 1, **self._costs(), **{name: len(each) for name, each in answers.items()}}
            due = row["round"] % int(self.experiment.run.evaluate_every) == 0 or not self.scores
            if due or driver.root.done or stop.exhausted(row):
                self._evaluate(row["round"])
            rows.append({**row, **self.scores, "wall_seconds": self.wall_seconds, **facts})
            self._tell_callbacks(rows[-1])
            if self.stopped or stop.reason_to_end(rows[-1], self.metric):
                if not self.is_evaluated(row):
                    self._evaluate(row["round"])
                    rows[-1].update(self.scores)
                rows[-1]["late"] += driver.stop()
                rows[-1].update(self._costs())
                break
        return rows

    def _tell_callbacks(self, row: dict[str, Any]) -> None:
        if not self.callbacks.names or self._failure:
            return
        self.history.append(dict(row))  # copies: what a callback does with them does not change the run
        try:
            self.callbacks.round(dict(row), self)
        except (InputError, RunError) as error:
            self._failure = error

    def _raise_problem(self, ends: Sequence[RoundEnd], entries: Sequence[Entry]) -> None:
        """Raises what ends the run early: an exception in a callback, or a round in which every update was refused.

        That is, at least half of those asked sent an update, and none could be used.
        """
        if self._failure:
            raise self._failure
        entries = [entry for entry in entries if entry.outcome != OWN_TRAINING]
        refused = [entry for entry in entries if entry.outcome == "refused"]
        # A round in which most were lost and the one answer was of a broken device says nothing about the method.
        most = refused and 2 * len(refused) >= len(entries)
        if most and ends[-1].abandoned and self.experiment.run.if_all_refused == "stop":
            first, round = refused[0], ends[-1].round + 1
            advice = DIVERGED if self.final_models is None else PERSONAL_DIVERGED
            cause = f": {advice}" if not isfinite(self.scores["loss"]) or "finite" in first.reason else ""
            raise RunError(
                f"round {round}: every update was refused; that of {first.child}: {first.reason}{cause}. "
                f"run.if_all_refused=continue goes on with the model as it is"
            )

    def _evaluate(self, round: int) -> None:
        self._evaluated = round
        federation = self.federation
        self.scores = federation.models.score(federation.test, federation.test_groups)
        if federation.changes:
            self._evaluate_devices(round)

    def _evaluate_devices(self, round: int) -> None:
        """Evaluates each device's model on test samples of its distribution in `round`."""
        name = self.metric.name
        found = self.score_devices(self.federation.population_at(round - 1))
        scores = {device: each[name] for device, each in found.items()}
        known = {device: value for device, value in scores.items() if value is not None and isfinite(value)}
        if known:
            self._by_device[round] = known
            self.scores[f"{name}/{OWN_SAMPLES}"] = sum(known.values()) / len(known)
            self.scores[f"{name}/{WORST_TENTH}"] = worst_mean(self.metric, known.values())

    def _costs(self) -> dict[str, Any]:
        totals = self.federation.driver.ledger.totals
        return {name: getattr(totals, name) for name in ROUND_COST_KEYS}

    def fraction(self, row: Mapping[str, Any]) -> float:
        """How much of the run is done after a row of its history, by its rounds and budgets."""
        return self.experiment.stop.fraction_done(row, self.experiment.max_rounds)

    def _note_at_end(self) -> None:
        """Notes empty batteries, and that the final model is hardly better than guessing or has mostly dead units."""
        federation, empty = self.federation, len(self.federation.clock.empty)
        found = final_model(federation), federation.test, self.experiment
        notes = [describe_guessing(federation.task.kind, self.scores, *found) or describe_dead_units(*found)]
        if empty:
            devices = len(federation.population.devices)
            notes.append(f"devices of which the battery ran out, and which were not asked again: {empty} of {devices}")
        federation.note(*filter(None, notes))

    def _end(self) -> dict[str, Any]:
        """How many rounds were done and, if the experiment has limits, which one ended the run, with a note about it.

        This is found from the stored history, because a run may be resumed after its last round.
        """
        stop, last = self.experiment.stop, self.store.rounds(self.run)[-1]
        if not stop.given and not self.stopped:
            return {"rounds": last["round"]}
        reason = CALLBACK if self.stopped else stop.reason_to_end(last, self.metric) or ROUNDS
        stopped = f"stopped after round {last['round']}: {self.stopped}"
        self.federation.note(stopped if self.stopped else stop.describe(reason, last, self.metric))
        return {"rounds": last["round"], "stopped": reason}

    def _summary(self, weights: Weights) -> dict[str, Any]:
        driver, phase, after = self.federation.driver, start_costs(self.folder), personal_costs(self.folder)
        metrics = {name: value for name, value in self.scores.items() if name != "loss" and "/" not in name}
        return {
            "run": self.run,
            **run_facts(self.experiment, self.federation.population),
            **self._end(),
            "accuracy": self.scores.get("accuracy"),
            "loss": self.scores["loss"],
            **({} if metrics.keys() == {"accuracy"} else {"task": self.federation.task.kind.name, "metrics": metrics}),
            **asdict(driver.ledger.totals),
            "wall_seconds": self.wall_seconds,
            "clients_per_second": driver.clients_per_second,
            "model_digest": digest(weights),
            **({} if phase is None else {"start": asdict(phase)}),
            **({"personal": {step: asdict(each) for step, each in after.items()}} if after else {}),
        }


def final_model(federation: Federation) -> ModelWeights:
    """The global model; where every device has its own, that of the device with most samples, the first by name."""
    models = federation.models.named()
    population, devices = federation.population, set(federation.population.devices)
    owners = {name: name.removeprefix("devices/") for name in models}
    sizes = {name: population.size(owner) if owner in devices else 0 for name, owner in owners.items()}
    chosen = "global" if "global" in models else max(sorted(sizes), key=lambda name: sizes[name])
    return with_model(federation.task, models[chosen], chosen)
