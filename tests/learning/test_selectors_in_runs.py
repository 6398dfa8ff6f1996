"""The run's selector of samples in whole runs: every method takes it, and its price is in the ledger."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

import undergrowth as ug
from undergrowth.core import Context, Packet, Task, Train
from undergrowth.learning import FewShotSelector, GradientClient, KMeansSelector, RandomSelector, build_selector
from undergrowth.learning.gradient_client import shuffled_steps
from undergrowth.methods import METHODS
from undergrowth.runs.config import parse_experiment
from undergrowth.runs.execution import start

from .. import conformance
from ..methods.test_fedft import digits, digits_task

Run = Callable[..., ug.Result]
SMALL = {"clients": 4, "rounds": 2, "epochs": 2, "model": "mlp", "partition": "dirichlet:1"}
SMALL["data_options"] = {"train_samples": 400, "test_samples": 100}
SELECTORS = ["random:0.5", "entropy:0.5", "entropy:0.5:1", "loss:0.5", "kmeans:0.5", "few-shot:3"]
# Methods that say themselves on which samples a device trains.
OWN = {
    "fedft-rds": "a random share is what it is",
    "fedft-eds": "entropy is what it is",
    "fedncm": "class means are those of all samples",
    "fedmezo": "slopes are those of all samples",
    "distmezo": "slopes are those of all samples",
}


@pytest.fixture
def run(tmp_path: Path) -> Run:
    def go(**settings: Any) -> ug.Result:
        return ug.run(**{**SMALL, "out": str(tmp_path), **settings})

    return go


@pytest.mark.parametrize("method", METHODS)
def test_every_method_takes_it_and_its_costs_fall(tmp_path: Path, method: str) -> None:
    def go(selector: str) -> ug.Result:
        tree = conformance.experiment(method, tmp_path)
        tree["data"] |= {"clients": 2}
        # FedSplit's model shows what devices trained a round later. Where most of a model is frozen, a step costs
        # little more than the forward pass that chooses the samples; with three epochs the choice pays off.
        train = {"rounds": 2 if method == "fedsplit" else 1, "epochs": 3, "lr": 0.05, "batch": 64}
        return start({**tree, "train": {**train, "selector": selector}})

    every, half = go("all"), go("entropy:0.5")
    assert half.history[-1]["arrived"]
    if method in OWN:
        assert half.ledger.flops == every.ledger.flops
        assert half.summary["model_digest"] == every.summary["model_digest"]
    else:
        assert half.ledger.flops < every.ledger.flops
        # The server of `adapt` learns nothing.
        assert (half.summary["model_digest"] == every.summary["model_digest"]) == (method == "adapt")


@pytest.mark.parametrize("text", SELECTORS)
def test_a_device_trains_on_what_the_runs_selector_picks_and_counts_for_that(text: str) -> None:
    task, shard, context = replace(digits_task("mlp"), selector=build_selector(text)), digits(80), Context(4, "a", 0)
    down = Packet(task.model.initial(0))
    _, steps = GradientClient().begin(task, down, shard, {}, context)
    picks = shuffled_steps(task, down.tensors, shard, build_selector(text), 1, 16, context.generator("order"))
    assert [order.tolist() for order in steps.epochs] == [order.tolist() for order in picks.epochs]
    up, _ = GradientClient().local(task, down, shard, {}, context)
    assert up.scalars["samples"] == len(picks.epochs[0]) < 80
    own, _ = GradientClient(selector=RandomSelector(0.1)).local(task, down, shard, {}, context)
    assert own.scalars["samples"] == 8, "a client's own goes before the run's"


def test_all_is_the_default_bit_for_bit(run: Run) -> None:
    assert parse_experiment({}).train.selector == "all"
    assert run().summary["model_digest"] == run(selector="all").summary["model_digest"]


@pytest.mark.parametrize("text", SELECTORS)
def test_looking_at_the_samples_costs_a_pass(run: Run, text: str) -> None:
    """Half of the samples for two epochs, and where the model is asked first, one pass over all of them."""
    small = {"rounds": 1, "model": "cnn", "model_options": {"hidden": 16}}
    rows = {each: list(run(selector=each, **small).ledger.rows()) for each in ("all", text)}
    for whole, some in zip(rows["all"], rows[text], strict=False):
        assert some.flops < whole.flops and some.bytes_up == whole.bytes_up
    if text not in ("random:0.5", "few-shot:3"):
        random = list(run(selector="random:0.5", **small).ledger.rows())
        forward = sum(row.flops for row in rows["all"]) / 2 / 3  # training is about three passes, and there are two
        more = sum(row.flops for row in rows[text]) - sum(row.flops for row in random)
        assert 0.9 * forward < more < 1.6 * forward


@pytest.mark.parametrize("engine", ["processes", "vector"])
@pytest.mark.parametrize("text", ["entropy:0.5", "kmeans:0.5"])
def test_the_engine_does_not_matter(run: Run, engine: str, text: str) -> None:
    serial, other = (run(selector=text, engine=each, workers=2, topology="tree:2x2") for each in ("serial", engine))
    torch.testing.assert_close(other.model.state_dict(), serial.model.state_dict(), rtol=1e-3, atol=1e-4)
    assert sorted(other.ledger.rows()) == sorted(serial.ledger.rows())


@pytest.mark.parametrize("text", ["entropy:0.5", "kmeans:0.5"])
@pytest.mark.parametrize("method", ["heterofl", "fjord", "fedft"])
def test_parts_of_a_model_can_be_asked_too(run: Run, method: str, text: str) -> None:
    """Slices of a model with GroupNorm have fewer groups; cached features start in the middle of the model."""
    small = {"model": "resnet-8", "model_options": {"norm": "group"}, "rounds": 1, "epochs": 1, "batch": 64}
    options = {"cache_features": True, "split": "up", "epochs": 1} if method == "fedft" else {"ratios": [1.0, 0.25]}
    result = run(method=method, options=options, selector=text, **small)
    assert result.history[-1]["arrived"] == 4


def test_a_selector_that_needs_maps_says_so_to_a_model_without(run: Run) -> None:
    class Scale(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = torch.nn.Parameter(torch.ones(10))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x.flatten(1)[:, :10] * self.weight

    with pytest.raises(ug.InputError, match="split 'head' is not a level of this model; it has none"):
        run(model=Scale, selector="kmeans:0.5")


def test_a_wrong_one_is_refused_before_anything_starts(tmp_path: Path, run: Run) -> None:
    with pytest.raises(ug.InputError, match=r"train.selector 'entropy:2' must be entropy:FRACTION"):
        run(selector="entropy:2")
    assert not list(tmp_path.iterdir())


def test_few_samples_stand_for_all_better_than_chance_has_them() -> None:
    """With one sample a class, those nearest to the middle of their class make a better model than random ones."""
    task, shard, test = digits_task("mlp"), digits(500), digits(500, 1000)
    train = Train(epochs=60, batch=10, lr=0.1)
    scores: dict[str, float] = {}
    for name, chosen in {"few-shot": FewShotSelector(1, again=False), "kmeans": KMeansSelector(0.02)}.items():
        correct = 0.0
        for seed in range(4):
            weights = task.model.initial(seed)
            client = GradientClient(selector=chosen)
            up, _ = client.local(Task(task.model, 10, train), Packet(weights), shard, {}, Context(seed, "a", 0))
            assert up.scalars["samples"] == 10
            correct += float((task.model(up.tensors, test.x).argmax(1) == test.y).float().mean())
        scores[name] = correct / 4
    assert scores["kmeans"] > scores["few-shot"] + 0.02
