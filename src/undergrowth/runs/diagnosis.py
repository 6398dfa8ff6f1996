"""Notes about what went wrong in a run, and about a model that has learned little, with the likely cause."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import inf, isfinite
from typing import Any

import torch
from torch import Tensor, nn

from undergrowth.core import Client, LoopClient, ModelWeights, RoundEnd, Shard, TaskKind, Updates
from undergrowth.runs.config import Experiment

DIVERGED = "training has diverged; a smaller train.lr, or a smaller step of the server, may help"
PERSONAL_DIVERGED = "training has diverged; a smaller personal.lr may help"

NOBODY_ASKED = "no device was asked any more"
MAX_NOTES = 50  # a run that goes wrong in every round need not say so every time
_SAMPLES = 512  # on which units are tried
_DEAD = 0.8  # a layer with more dead units than this fraction learns little


def note_rounds(notes: list[str], ends: Sequence[RoundEnd], loss: float) -> None:
    """Adds to `notes` what went wrong in rounds: refused updates, no usable update, a loss that is not finite."""
    for end in ends if len(notes) < MAX_NOTES else ():
        for device, problem in list(end.refused.items())[:1]:
            more = f" and {len(end.refused) - 1} more" if len(end.refused) > 1 else ""
            notes.append(f"round {end.round + 1}: refused the update of {device}{more}: {problem}")
        if end.abandoned and (end.lost or end.refused or end.dropped):  # a server may also ask no device
            notes.append(f"round {end.round + 1}: abandoned, no usable update came back")
        elif end.abandoned and not any(NOBODY_ASKED in note for note in notes):
            notes.append(f"round {end.round + 1}: {NOBODY_ASKED}")
    if not isfinite(loss) and not any(DIVERGED in note for note in notes):
        notes.append(f"round {ends[-1].round + 1}: the loss is {loss}: {DIVERGED}")


def describe_unstacked(row: Mapping[str, Any], client: Client) -> str | None:
    """A sentence about a round in which most devices with steps were not computed in stacks; None otherwise."""
    alone, stacked = row.get("not_stacked", 0.0), row.get("stacked", 0.0)
    if alone <= stacked or not isinstance(client, LoopClient | Updates):
        return None
    return (
        "most devices of a round were computed one by one instead of in a stack (not_stacked in the history): the "
        "model mixes the samples of a batch, decides by their values, or has a step that fails in a stack"
    )


def describe_guessing(
    kind: TaskKind, scores: Mapping[str, float], model: ModelWeights, test: Shard, experiment: Experiment
) -> str | None:
    """A sentence about a model that is not clearly better than guessing, with the likely cause; None if it is.

    Guessing means always naming the most common label of the test set, or its mean if labels are numbers. A model is
    clearly better if its accuracy is more than two standard errors above that.
    """
    guess = kind.guess(test.y)
    reached = scores[guess.metric]
    if reached > guess.value + guess.margin:
        return None
    compared = "not clearly" if reached > guess.value else "no"
    found = f"the {guess.metric} {reached:.3f} is {compared} better than {guess.words} ({guess.value:.3f})"
    # The loss of the user may have another scale.
    cause = _cause(scores["loss"], guess.loss if kind.loss is None else inf, model, test, experiment)
    return f"{found}: {cause}"


def _cause(loss: float, uniform: float, model: ModelWeights, test: Shard, experiment: Experiment) -> str:
    if not isfinite(loss):
        return f"the loss is {loss}; {DIVERGED}"
    rate = f"train.lr ({experiment.train.lr:g})"
    if dead := describe_dead_units(model, test, experiment):
        return dead
    if isfinite(uniform) and loss > 2 * uniform:
        return f"the loss {loss:.3g} is far above that of a uniform guess ({uniform:.3g}); {rate} may be too large"
    if isfinite(uniform) and loss > 0.95 * uniform:
        return (
            f"the loss {loss:.3g} is about that of a uniform guess ({uniform:.3g}); more rounds may help, or another "
            f"{rate}"
        )
    return f"more rounds may help, or another {rate}"


def describe_dead_units(model: ModelWeights, test: Shard, experiment: Experiment) -> str | None:
    """A sentence about the first layer of which most units are dead, also in a model that is better than guessing."""
    for layer, (dead, units) in count_dead_units(model, test).items():
        if dead > _DEAD * units:
            rate = f"a smaller train.lr ({experiment.train.lr:g})"
            dead_units = f"{dead} of {units} units of '{layer}' are dead (0 for every sample)"
            return f"{dead_units}; {rate} or another start of the weights (model.init) helps"
    return None


def count_dead_units(model: ModelWeights, test: Shard) -> dict[str, tuple[int, int]]:
    """For each ReLU layer, how many of its units are 0 for every one of some test samples, and how many it has.

    A unit is a channel of a feature map, or an output of a linear layer.
    """
    counted: dict[str, tuple[int, int]] = {}

    def counting(name: str) -> Any:
        def count(_module: nn.Module, _inputs: tuple[Tensor, ...], output: Tensor) -> None:
            if output.dim() > 1:
                alive = (output > 0).any(0).flatten(1).any(1) if output.dim() > 2 else (output > 0).any(0)
                dead = int((~alive).sum())
                # A layer that is used several times counts with its most alive use.
                counted[name] = min(counted.get(name, (dead, alive.numel())), (dead, alive.numel()))

        return count

    relus = [(name, each) for name, each in model.model.module.named_modules() if isinstance(each, nn.ReLU)]
    if not relus:
        return {}
    hooks = [module.register_forward_hook(counting(name)) for name, module in relus]
    try:
        with torch.no_grad():
            model.model(model.weights, test.x[:_SAMPLES])
    finally:
        for hook in hooks:
            hook.remove()
    return counted
