"""Interleaved adaptation against a plain loop of its formulas, its limits, and what it costs."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

import undergrowth as ug
from tests.methods.tiny_federation import (
    EPOCHS,
    SHARDS,
    TASK,
    Weights,
    assert_same,
    cross_entropy,
    descend,
    device_context,
    initial,
    loss_on,
    mean,
    module_with,
    parts,
    shuffles,
    simulate,
    weights_of,
)
from tests.stopping import stopped_and_resumed
from undergrowth.core import Context, InputError, Packet, View
from undergrowth.core.names import MODEL
from undergrowth.methods import FedAvg, Interleaved
from undergrowth.runs.execution import start

ROUNDS, EVERY, VALIDATION, ALONE_EPOCHS = 4, 2, 0.25, 3
OPTIONS: dict[str, Any] = {"every": EVERY, "validation": VALIDATION, "alone_epochs": ALONE_EPOCHS, "budget": 0.5}


def trained(weights: Weights, device: str, context: Context, epochs: int = EPOCHS, pull: float = 0.0) -> Weights:
    """The weights after training on the device's training part; `pull`: towards `weights`."""
    module, (training, _) = module_with(weights), parts(device, VALIDATION)

    def loss(module: torch.nn.Module, rows: Tensor) -> Tensor:
        distances = [(value - weights[name]).square().sum() for name, value in module.named_parameters()]
        return cross_entropy(training)(module, rows) + pull / 2 * torch.stack(distances).sum()

    descend(module, shuffles(context, len(training), epochs), loss)
    return weights_of(module)


def loss_of(weights: Weights, device: str) -> float:
    return loss_on(weights, parts(device, VALIDATION)[1])


@dataclass
class Reference:
    """The loop of the formulas. `adapted`: who adapted, in order; `better`: those of them who keep the result."""

    hand_back: bool
    epochs: int
    pull: float
    alone_every: int | None = None
    model: Weights = field(default_factory=initial)
    personal: dict[str, Weights] = field(default_factory=dict)
    adapted: list[str] = field(default_factory=list)
    better: list[str] = field(default_factory=list)
    alone: list[dict[str, float]] = field(default_factory=list)  # a_k in each comparison

    def run(self) -> Reference:
        first = {device: device_context(device, 0) for device in SHARDS}
        alone = {k: loss_of(trained(initial(), k, at, ALONE_EPOCHS), k) for k, at in first.items()}
        sizes = {device: len(parts(device, VALIDATION)[0]) for device in SHARDS}
        for number in range(ROUNDS):
            before = {device: loss_of(self.model, device) for device in SHARDS}
            models = [trained(self.model, device, device_context(device, number)) for device in SHARDS]
            self.model = mean(models, list(sizes.values()))
            if (number + 1) % EVERY == 0:
                if self.alone_every and (number + 1) // EVERY % self.alone_every == 0:
                    now = {device: device_context(device, number) for device in SHARDS}
                    alone = {k: loss_of(trained(initial(), k, at, ALONE_EPOCHS), k) for k, at in now.items()}
                self.alone.append(alone)
                self.personal = {k: v for k, v in self.personal.items() if loss_of(v, k) < before[k]}
                below = sorted((alone[k] - before[k], k) for k in SHARDS if before[k] > alone[k])
                self.adapt([device for _, device in below[:2]], number, sizes)
        return self

    def adapt(self, devices: list[str], number: int, sizes: dict[str, int]) -> None:
        contexts = {device: device_context(device, number, number + 1) for device in devices}
        found = {k: trained(self.model, k, at, self.epochs, self.pull) for k, at in contexts.items()}
        better = {k: v for k, v in found.items() if loss_of(v, k) < loss_of(self.model, k)}
        self.adapted += devices
        self.better += better
        kept = {k: v for k, v in self.personal.items() if k not in devices or loss_of(v, k) < loss_of(self.model, k)}
        self.personal = kept | better
        if self.hand_back:
            self.model = mean([better.get(k, self.model) for k in SHARDS], list(sizes.values()))


@pytest.mark.parametrize(
    ("how", "epochs", "hand_back"), [("fine-tune", 2, True), ("fine-tune", 12, False), ("ditto:0.9", 2, True)]
)
def test_interleaved(how: str, epochs: int, hand_back: bool) -> None:
    method = Interleaved(how, hand_back=hand_back, adapt_epochs=epochs, **OPTIONS)
    expected = Reference(hand_back, epochs, 0.9 if how == "ditto:0.9" else 0.0).run()
    state, own = simulate(method, ROUNDS)
    assert_same(state[MODEL], expected.model)
    for device in SHARDS:
        assert_same(method.personal(TASK, state, own[device], device), expected.personal.get(device, expected.model))
    # Not a trivial case: the budget leaves one out, and after many epochs some do not keep the result.
    assert len(expected.adapted) == 4 and expected.better and (epochs == 2 or len(expected.better) < 4)


@pytest.mark.parametrize("alone_every", [1, 2])
def test_devices_train_alone_again(alone_every: int) -> None:
    """In every comparison, or only in the second one; the order of the batches differs, and so does a_k."""
    method = Interleaved(adapt_epochs=2, alone_every=alone_every, **OPTIONS)
    expected = Reference(True, 2, 0.0, alone_every).run()
    state, own = simulate(method, ROUNDS)
    assert_same(state[MODEL], expected.model)
    assert {device: each["alone"] for device, each in own.items()} == pytest.approx(expected.alone[-1])
    assert expected.alone[0] != expected.alone[1]


@pytest.mark.parametrize("loss", [0.0, 9.0])
def test_a_model_of_the_device_is_measured_on_the_samples_of_now(loss: float) -> None:
    """The loss of v_k from earlier samples decides only in a round in which devices do not train alone again."""
    earlier = trained(initial(), "b", device_context("b", 7), 20)
    assert loss_of(earlier, "b") < loss_of(initial(), "b")
    own = {"alone": 0.1, MODEL: earlier, "loss": loss}
    for alone_every, tags, known in ((1, {"seed": "1"}, loss_of(earlier, "b")), (1, {}, loss), (None, {}, loss)):
        method = Interleaved(alone_every=alone_every, **OPTIONS)
        down = Packet(initial(), tags={"phase": "compare", **tags})
        _, after = method.client.local(TASK, down, SHARDS["b"], own, device_context("b", 3))
        assert after["loss"] == pytest.approx(known) and bool(after[MODEL]) == (known < loss_of(initial(), "b"))


def test_training_alone_again_is_booked_in_a_star_and_in_a_tree(tmp_path: Path) -> None:
    settings: dict[str, Any] = {
        "data_options": {"train_samples": 200}, "clients": 4, "model": "logistic", "rounds": 4, "out": tmp_path,
        "stream": {"memory": 20, "arrive": 10, "shift": "sudden", "every": 2}, "progress": False, "partition": "iid",
    }  # fmt: skip
    for topology in ("star", "tree:2x2"):
        options = {"every": 1, "budget": 0.5, "alone_every": 2}
        result = ug.run("interleaved", options=options, topology=topology, **settings)
        rows = [row for row in result.ledger.rows() if row.child.startswith("device")]
        work = [max(row.flops for row in rows if row.round == number) for number in range(1, 5)]
        assert [flops > 1.5 * min(work) for flops in work] == [True, True, False, True], "also in the first job"


def test_without_a_budget_it_is_fedavg_bit_for_bit() -> None:
    found, expected = (simulate(method, 3)[0][MODEL] for method in (Interleaved(budget=0.0, every=1), FedAvg()))
    assert all(torch.equal(found[name], value) for name, value in expected.items())


def test_without_handing_back_adaptation_changes_nothing_but_the_devices_models() -> None:
    """The federated model is that of the same rounds without an adaptation, bit for bit."""
    never = {**OPTIONS, "every": ROUNDS + 1}
    (found, own), (expected, _) = (
        simulate(Interleaved(hand_back=False, **options), ROUNDS) for options in (OPTIONS, never)
    )
    assert any(each.get(MODEL) for each in own.values())
    assert all(torch.equal(found[MODEL][name], value) for name, value in expected[MODEL].items())


@pytest.mark.parametrize(("budget", "chosen"), [(0.1, ["b"]), (0.5, ["b", "d"]), (1.0, ["b", "d", "a"])])
def test_those_that_are_furthest_below_adapt_within_the_budget(budget: float, chosen: list[str]) -> None:
    """c is not below, e trained in an earlier round only, and a and d are equally far below b."""
    method = Interleaved(budget=budget)
    losses = {"a": (1.5, 1.0), "b": (3.0, 1.0), "c": (1.0, 1.0), "d": (2.0, 1.0), "e": (9.0, 1.0)}
    heard = {device: {"federated": f, "alone": a} for device, (f, a) in losses.items()}
    view = View(tuple(losses), heard=heard, phase="adapt", answered=("a", "b", "c", "d"))
    state = {MODEL: initial(), "seed": "1"}
    plan = method.server.plan(TASK, state, view, Context(0, "root", 4))
    assert list(plan.packets) == chosen


def test_a_device_without_validation_samples_never_adapts() -> None:
    method = Interleaved(validation=0.1, every=1)
    one = SHARDS["a"].take(torch.arange(2))
    down = Packet(initial(), tags={"phase": "compare", "seed": "1"})
    task = replace(TASK, train=replace(TASK.train, batch=2))
    up, own = method.client.local(task, down, one, {}, device_context("a", 0))
    assert up.scalars["federated"] == up.scalars["alone"] == own["alone"] == 0.0


@pytest.mark.parametrize(("loss", "keeps"), [(0.0, True), (9.0, False)])
def test_an_adaptation_that_failed_leaves_an_earlier_model_that_is_better(loss: float, keeps: bool) -> None:
    method, shard = Interleaved(every=1), SHARDS["b"]
    earlier = {name: value + 1 for name, value in initial().items()}
    own = {"alone": 0.1, MODEL: earlier, "loss": loss}
    task = replace(TASK, train=replace(TASK.train, lr=1e3))  # the adaptation makes it worse
    up, after = method.client.local(
        task, Packet(initial(), tags={"phase": "adapt"}), shard, own, device_context("b", 0)
    )
    assert up.scalars["adapted"] == 0.0 and bool(after[MODEL]) == keeps
    if keeps:
        assert_same(after[MODEL], earlier)


def test_the_work_of_an_adaptation_is_booked(tmp_path: Path) -> None:
    """Up to the second round all runs do the same work; then one adapts, and one of these sends the result."""
    settings: dict[str, Any] = {
        "data_options": {"train_samples": 200}, "partition": "dirichlet:0.3", "clients": 4, "model": "logistic",
        "rounds": 2, "lr": 0.01, "engine": "serial", "out": tmp_path, "progress": False,
    }  # fmt: skip
    never, kept, back = (
        ug.run("interleaved", options={"every": every, "budget": 1.0, "hand_back": hand_back}, **settings)
        for every, hand_back in ((3, False), (2, False), (2, True))
    )
    model = 4 * (64 * 10 + 10)
    devices, tags = divmod(kept.ledger.bytes_down - never.ledger.bytes_down, model)
    assert 0 < devices <= 4 and tags < 100  # the model once more for each device that adapts
    assert kept.ledger.flops > never.ledger.flops and back.ledger.flops == kept.ledger.flops
    assert back.ledger.bytes_up - kept.ledger.bytes_up == devices * model


def test_a_wrong_adaptation_is_refused() -> None:
    with pytest.raises(InputError, match=r"method\.how 'fine' is not known; did you mean 'fine-tune'"):
        ug.run("interleaved", options={"how": "fine"})
    with pytest.raises(InputError, match=r"method\.how 'alone' is not known"):
        ug.run("interleaved", options={"how": "alone"})


@pytest.mark.parametrize("after", [1, 3])
def test_the_ledger_of_a_resumed_run_is_that_of_a_whole_one(after: int, tmp_path: Path) -> None:
    """Also the memory of jobs: a price does not depend on those that were counted before."""
    raw = {
        "method": {"name": "interleaved", "every": 2, "budget": 0.5}, "model": "logistic", "fleet": "mixed-edge",
        "data": {"name": "digits", "clients": 8, "train_samples": 200, "partition": "quantity:1"},
        "train": {"rounds": 5, "sample": 0.3}, "run": {"out": str(tmp_path), "engine": "serial"},
    }  # fmt: skip
    resumed = stopped_and_resumed(raw, after, str(tmp_path))
    assert list(resumed.ledger.rows()) == list(start(raw).ledger.rows())
