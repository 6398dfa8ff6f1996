"""A run under way: rounds, evaluation, store, checkpoints."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from math import isfinite
from pathlib import Path
from typing import Any

import safetensors.torch
from torch import Tensor

from undergrowth.core import RoundEnd, RunError, Weights, move_to
from undergrowth.runs.atomic_files import replace_file
from undergrowth.runs.checkpoint import Checkpoints
from undergrowth.runs.config import Experiment
from undergrowth.runs.evaluation import digest, score_all, score_devices, with_model
from undergrowth.runs.federation import Federation
from undergrowth.runs.opening import run_facts
from undergrowth.runs.result import MODEL_FILE
from undergrowth.runs.start_phase import FOLDER, start_costs
from undergrowth.runs.store import Store

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
    def phase_folder(self) -> Path:
        """The folder of what is trained before the first round."""
        return self.store.folder / self.run / FOLDER

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
            done = number
            break
        after = "went back to the checkpoint before it" if done else "started again from the first round"
        federation.notes.extend(f"{problem}; {after}" for problem in unread)
        store.rewind(run, done)
        store.set_status(run, "running")

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
        if federation.task.train.is_evaluated(end.round) or driver.root.done or not self.scores:
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
        driver, phase = self.federation.driver, start_costs(self.store.folder / self.run)
        return {
            "run": self.run,
            **run_facts(self.experiment, self.federation.population),
            "accuracy": self.scores["accuracy"],
            "loss": self.scores["loss"],
            **asdict(driver.ledger.totals),
            "wall_seconds": self.wall_seconds,
            "clients_per_second": driver.clients_per_second,
            "model_digest": digest(weights),
            **({} if phase is None else {"start": asdict(phase)}),
        }


def final_model(federation: Federation) -> Mapping[str, Tensor]:
    """The model that the run is about; where every device has its own, that of the device with most samples."""
    root, own = federation.driver.root, federation.world.states.all()
    models = federation.method.models(federation.task, root.state, own)
    population = federation.population
    chosen = "global" if "global" in models else max(models, key=lambda n: population.size(n) if n in own else 0)
    model, weights = with_model(federation.task, models[chosen])
    return model.complete(weights)
