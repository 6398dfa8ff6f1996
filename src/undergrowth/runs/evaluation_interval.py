"""`run.evaluate_every: auto`: so few evaluations that they take at most a fifth of the computing.

The interval is a function of counted FLOPs. Nothing is timed, so the same experiment always has the same interval.
"""

from __future__ import annotations

import math

import torch

from undergrowth.core import InputError, ModelWeights, move_to
from undergrowth.devices.meter import Meter
from undergrowth.runs.config import Experiment
from undergrowth.runs.engine_facts import count_facts
from undergrowth.runs.federation import Federation
from undergrowth.runs.run_models import with_model

MAX_FRACTION = 0.2  # of all FLOPs
_BATCH = 2


def choose_interval(experiment: Experiment, federation: Federation) -> tuple[int, str]:
    """The rounds from one evaluation to the next, and the reason."""
    if experiment.run.engine == "processes" and torch.cuda.is_available():
        # Counting starts torch's autograd threads. Beside a GPU, workers must be forked before that.
        raise InputError("run.evaluate_every 'auto' does not go with run.engine processes beside a GPU; give a number")
    facts = count_facts(federation)
    training, evaluation = facts.clients * facts.flops, evaluation_flops(federation)
    every = interval(training, evaluation, experiment.train.rounds)
    rounds = "every round" if every == 1 else f"every {every} rounds"
    return every, (
        f"evaluate_every auto: {rounds}, so that evaluation is at most {MAX_FRACTION:.0%} of the computing: "
        f"{evaluation:.3g} FLOPs an evaluation, {training:.3g} FLOPs a round of training"
    )


def interval(training: float, evaluation: float, rounds: int) -> int:
    """The fewest rounds of `training` FLOPs after which `evaluation` FLOPs are at most `MAX_FRACTION` of all."""
    if not evaluation:
        return 1
    if not training:
        return rounds
    return max(1, min(rounds, math.ceil(evaluation * (1 - MAX_FRACTION) / (MAX_FRACTION * training))))


def evaluation_flops(federation: Federation) -> float:
    """FLOPs of one pass of every model that the method evaluates over the central test set.

    If the samples of devices change, their own test samples are evaluated too; the price is that of the first model.
    """
    task, root, population = federation.task, federation.driver.root, federation.population
    root.initialise()
    method, state = federation.method, root.state
    named = [*method.models(task, state, {}).values(), *method.ensemble(task, state).values()]
    models = [with_model(task, each) for each in named]
    if not models:  # every device has its own model, once it has trained
        models = [ModelWeights(task.model, task.model.initial(0))] * len(population.devices)
    x = federation.test.x[:_BATCH].to("meta")
    known: dict[int, int] = {}
    for model, weights in models:
        if id(model) not in known:
            with torch.no_grad(), Meter() as meter:
                model.to("meta")(move_to(weights, "meta"), x)
            known[id(model)] = meter.flops
    own = sum(len(population.test(device)) for device in population.devices) if federation.changes else 0
    total = sum(known[id(model)] for model, _ in models) * len(federation.test) + known[id(models[0].model)] * own
    return total / len(x)
