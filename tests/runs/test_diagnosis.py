"""A run that has learned nothing says so, and why; a run whose updates are all refused stops."""

from __future__ import annotations

import math
import warnings
from typing import Any

import pytest
import torch
from torch import nn

import undergrowth as ug
from tests.runs.conftest import Run
from undergrowth.core import Classification, Model, ModelWeights, RunError, RunWarning, Shard
from undergrowth.runs import execution
from undergrowth.runs.config import parse_experiment
from undergrowth.runs.diagnosis import count_dead_units, describe_dead_units, describe_guessing

TEST = Shard(torch.linspace(-1, 1, 40).reshape(20, 2), torch.arange(20) % 4)


def model(dead: int) -> ModelWeights:
    """A hidden layer of 10 units, of which the first `dead` are 0 for every sample."""

    def build() -> nn.Module:
        return nn.Sequential(nn.Linear(2, 10), nn.ReLU(), nn.Linear(10, 4))

    built = Model(build)
    weights = built.initial(0)
    weights["0.bias"] = torch.where(torch.arange(10) < dead, -100.0, 100.0)
    return ModelWeights(built, weights)


def describe(accuracy: float, loss: float, dead: int = 0, **raw: Any) -> str | None:
    scores = {"accuracy": accuracy, "loss": loss}
    return describe_guessing(Classification(), scores, model(dead), TEST, parse_experiment(raw))


def test_dead_units_are_counted() -> None:
    assert count_dead_units(model(3), TEST) == {"1": (3, 10)}
    assert not any(module._forward_hooks for module in model(3).model.module.modules())


def test_dead_units_are_told_also_if_the_model_has_learned() -> None:
    described = [describe_dead_units(model(dead), TEST, parse_experiment({})) for dead in (8, 9)]
    assert described[0] is None and described[1] is not None and "9 of 10 units of '1' are dead" in described[1]


def test_dead_channels_are_counted() -> None:
    built = Model(lambda: nn.Sequential(nn.Conv2d(1, 3, 1), nn.ReLU(), nn.Flatten(), nn.Linear(12, 4)))
    weights = {**built.initial(0), "0.bias": torch.tensor([100.0, -100.0, -100.0])}
    assert count_dead_units(ModelWeights(built, weights), Shard(torch.rand(5, 1, 2, 2), torch.zeros(5))) == {
        "1": (2, 3)
    }


def test_a_model_that_learned_gets_no_note() -> None:
    # Always naming one of four classes is right for 0.25 of 20 samples, with a standard error of 0.097.
    assert describe(0.45, 1.0) is None
    uncertain = describe(0.44, 1.0)
    assert uncertain is not None and "the accuracy 0.440 is not clearly better than guessing (0.250): " in uncertain


@pytest.mark.parametrize(
    ("loss", "dead", "cause"),
    [
        (math.nan, 0, "the loss is nan; training has diverged; a smaller train.lr"),
        (math.log(4), 10, r"10 of 10 units of '1' are dead \(0 for every sample\); a smaller train.lr \(0.1\)"),
        (math.log(4), 5, r"the loss 1.39 is about that of a uniform guess \(1.39\); more rounds may help"),
        (30.0, 0, r"the loss 30 is far above that of a uniform guess \(1.39\); train.lr \(0.1\) may be too large"),
        (1.0, 0, r"more rounds may help, or another train.lr \(0.1\)"),
    ],
)
def test_the_likely_cause_is_named(loss: float, dead: int, cause: str) -> None:
    with pytest.raises(ValueError, match=rf"the accuracy 0.250 is no better than guessing \(0.250\): {cause}"):
        raise ValueError(describe(0.25, loss, dead))


def test_a_run_says_that_it_has_learned_nothing_and_python_warns_of_it(run: Run) -> None:
    with pytest.warns(RunWarning, match="is no better than guessing") as caught:
        result = run(lr=1e-9, rounds=1)
    assert any("more rounds may help" in note for note in result.notes)
    assert caught[0].filename.endswith(("test_diagnosis.py", "conftest.py"))  # not a file of the package


def test_a_run_that_learns_says_nothing_and_the_choice_of_an_engine_is_no_warning(run: Run) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        result = run(rounds=3, engine="auto")
    assert result.notes and not any("guessing" in note for note in result.notes)


# Updates that are all refused -------------------------------------------------------------------------------------

DATA = {"name": "digits", "clients": 4, "train_samples": 200}
DIVERGING = {"model": "mlp", "data": DATA, "train": {"lr": 1e30, "epochs": 3}}


@pytest.mark.parametrize("topology", ["star", "tree:2x2"])
@pytest.mark.parametrize("engine", ["serial", "vector"])
def test_a_run_whose_updates_are_all_refused_stops_after_the_first_such_round(
    topology: str, engine: str, tmp_path: Any
) -> None:
    raw = {**DIVERGING, "topology": topology, "run": {"out": str(tmp_path), "engine": engine}}
    words = (
        "round 1: every update was refused; that of device-00.: .* not finite: training has diverged.*if_all_refused=c"
    )
    with pytest.raises(RunError, match=words):
        execution.start(raw)
    with pytest.raises(RunError, match="round 2: every update was refused"):  # the round before is finished
        ug.resume("last", tmp_path)


def test_a_run_can_go_on_although_all_updates_are_refused(tmp_path: Any) -> None:
    raw = {**DIVERGING, "run": {"out": str(tmp_path), "engine": "serial", "if_all_refused": "continue"}}
    result = execution.start({**raw, "train": {"lr": 1e30, "epochs": 3, "rounds": 2}})
    assert [row["refused"] for row in result.history] == [4, 4]


def test_the_option_is_an_argument_too(run: Run) -> None:
    assert len(run(lr=1e30, epochs=3, model="mlp", rounds=2, if_all_refused="continue").history) == 2
    with pytest.raises(ug.InputError, match=r"run.if_all_refused 'ignore' should be 'stop' or 'continue'"):
        run(if_all_refused="ignore")
