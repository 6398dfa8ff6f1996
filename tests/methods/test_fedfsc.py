"""FedFSC, FedFSC+ and FSCProx: special cases, few-shot updates, what the server averages, costs and stragglers."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import undergrowth as ug
from tests.methods.test_fedft import deadline_of, digits, digits_task
from tests.methods.test_methods import play, same
from undergrowth.core import Context, Model, Packet, Shard, Task, Train
from undergrowth.devices import Tracer
from undergrowth.methods import FedAvg, FedFSC, FedFSCPlus, FedProx, FSCProx, Moon
from undergrowth.methods.fedfsc.client import FEW_SHOT
from undergrowth.models import builder

Run = Callable[..., ug.Result]
SMALL = {"clients": 6, "rounds": 3, "model": "mlp", "partition": "dirichlet:0.5", "progress": False}
SMALL["data_options"] = {"train_samples": 600, "test_samples": 100}
ONLY, BOTH = {"updates": FEW_SHOT}, {"updates": f"full+{FEW_SHOT}"}


@pytest.fixture
def run(tmp_path: Path) -> Run:
    def go(method: str, settings: dict[str, Any] | None = None, **options: Any) -> ug.Result:
        return ug.run(method, options=options, **{**SMALL, "out": str(tmp_path), **(settings or {})})

    return go


# What they must equal --------------------------------------------------------------------------------------


@pytest.mark.parametrize("base", ["fedavg", "fedprox", "moon"])
def test_fedfsc_without_few_shot_epochs_equals_its_baseline(run: Run, base: str) -> None:
    settings = {"fleet": "mixed-edge", "deadline": 0.9}
    mu = {} if base == "fedavg" else {"mu": 0.3}
    plain = run(base, settings, **mu)
    fsc = run("fedfsc", settings, base=base, base_mu=0.3, few_shot_epochs=0)
    assert fsc.summary["model_digest"] == plain.summary["model_digest"]
    assert sorted(fsc.ledger.rows()) == sorted(plain.ledger.rows())
    trained = run("fedfsc", settings, base=base, base_mu=0.3)
    assert trained.summary["model_digest"] != plain.summary["model_digest"]


@pytest.mark.parametrize(
    ("base", "baseline"), [("fedavg", FedAvg()), ("fedprox", FedProx(mu=0.5)), ("moon", Moon(mu=0.5))]
)
def test_few_shot_updates_do_not_change_the_base_model(base: str, baseline: Any) -> None:
    task, shards = digits_task("mlp", rounds=3), {name: digits(30, 30 * place) for place, name in enumerate("abc")}
    expected, _ = play(baseline, task, shards)
    found, own = play(FedFSC(base=base, base_mu=0.5, few_shot_epochs=2), task, shards)
    assert same(found["model"], expected["model"])
    assert not same(found["global"], expected["model"])
    assert all(kept.keys() == ({"model"} if base == "moon" else set()) for kept in own.values())


def test_fscprox_with_mu_zero_equals_fedfsc_plus(run: Run) -> None:
    four = {"rounds": 4}  # there is a few-shot classifier after two, a pull in the third and its effect in the fourth
    few_shot, plain = run("fscprox", four, mu=0.0, evaluate="few-shot"), run("fedfsc-plus", four)
    assert few_shot.summary["model_digest"] == plain.summary["model_digest"]
    pulled = run("fscprox", four, mu=1.0, evaluate="few-shot")
    assert pulled.summary["model_digest"] != plain.summary["model_digest"]
    assert run("fscprox", mu=0.0, towards="base").summary["model_digest"] == run("fedavg").summary["model_digest"]


# The few-shot update ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["wrn-10-1", "resnet-8"])
def test_a_few_shot_update_trains_the_last_layer_only(name: str) -> None:
    task, shard = digits_task(name), digits(60)
    warm = FedAvg().client.local(task, Packet(task.model.initial(3)), shard, {}, Context(0, "a", 0))[0]
    weights = {**warm.tensors}  # with BatchNorm statistics that are not those of a fresh model
    before = {key: value.clone() for key, value in weights.items()}
    method = FedFSC(shots=3, few_shot_epochs=2)
    up, _ = method.client.local(task, Packet(weights, tags=ONLY), shard, {}, Context(4, "a", 1))
    head = task.model.trainable("head")
    assert set(up.tensors) == {f"{FEW_SHOT}/{key}" for key in head} and same(weights, before)

    net = task.model.build()
    net.load_state_dict(weights)
    net.eval()
    layer = [module for module in net.modules() if isinstance(module, nn.Linear)][-1]
    optimiser = torch.optim.SGD(layer.parameters(), lr=0.01, momentum=0.9, weight_decay=1e-3)
    _, steps = method.client.few_shot.begin(task, Packet(weights), shard, {}, Context(4, "a", 1))
    assert steps.batch == 4
    for batch in steps:
        optimiser.zero_grad()
        nn.functional.cross_entropy(net(batch["x"]), batch["y"]).backward()
        optimiser.step()
    for key in head:
        moved = net.state_dict()[key] - weights[key]
        assert moved.abs().max() > 1e-4
        torch.testing.assert_close(up.tensors[f"{FEW_SHOT}/{key}"], moved, rtol=1e-3, atol=1e-6)


def test_every_epoch_draws_other_samples_and_as_many_of_every_class() -> None:
    task, shard = digits_task("mlp"), digits(300)
    few = (shard.y != 7) | (torch.arange(300) < 40)  # of the class 7 there are few
    shard = Shard(shard.x[few], shard.y[few])
    method = FedFSC(shots=10, few_shot_epochs=4)
    _, steps = method.client.few_shot.begin(task, Packet(task.model.initial(0)), shard, {}, Context(0, "a", 1))
    there = Counter(shard.y.tolist())
    assert len(steps.epochs) == 4 and 0 < there[7] < 10 < min(n for label, n in there.items() if label != 7)
    for order in steps.epochs:
        assert len(set(order.tolist())) == len(order)
        assert Counter(shard.y[order].tolist()) == {label: min(10, n) for label, n in there.items()}
    drawn = [frozenset(order.tolist()) for order in steps.epochs]
    assert len(set(drawn)) == 4


@pytest.mark.parametrize(("shard_size", "least", "most"), [(500, 0.05, 0.10), (5000, 0.005, 0.01)])
def test_a_few_shot_update_costs_at_most_a_tenth_of_a_full_update(shard_size: int, least: float, most: float) -> None:
    """The source measures less than 10 % of the time: CIFAR-10 on 100 devices, ten epochs of each, WRN-16-1."""
    task = Task(Model(builder("wrn-16-1", (3, 32, 32), 10)), 10, Train(epochs=10, batch=64))
    weights = task.model.initial(0)
    tracer = Tracer(task, FedFSCPlus().client, (3, 32, 32))
    full, few = (tracer.work(Packet(weights, tags=tags), shard_size) for tags in ({}, ONLY))
    assert least < few.flops / full.flops < most
    assert few.memory < full.memory / 8 and few.bytes_up < full.bytes_up / 100
    both = tracer.work(Packet(weights, tags=BOTH), shard_size)
    assert both.flops == full.flops + few.flops and both.memory == full.memory
    two_classes = tracer.work(Packet(weights, tags=ONLY), shard_size, labels=lambda: (shard_size - 50, 50))
    assert two_classes.samples == 10 * 2 * 10 and two_classes.flops == pytest.approx(few.flops / 5)


# The server ------------------------------------------------------------------------------------------------


def test_classifiers_are_averaged_with_equal_weights_and_joined_with_the_lower_part_they_were_trained_on() -> None:
    task, shards = digits_task("wrn-10-1", rounds=2), {"a": digits(50), "b": digits(20, 50)}
    method = FedFSC(shots=2, few_shot_epochs=1)
    after_one, _ = play(method, task, shards, rounds=1)
    assert "global" not in after_one and method.models(task, after_one, {})["global"] is after_one["model"]
    base, (after, _) = after_one["model"], play(method, task, shards, rounds=2)
    ups = [
        method.client.local(task, Packet(base, tags=BOTH), shard, {}, Context(9, name, 1, 1))[0]
        for name, shard in shards.items()
    ]
    assert [up.scalars["samples"] for up in ups] == [50.0, 20.0]
    head = set(task.model.trainable("head"))
    for key, value in after["global"].items():
        if key in head:
            mean = base[key] + (ups[0].tensors[f"{FEW_SHOT}/{key}"] + ups[1].tensors[f"{FEW_SHOT}/{key}"]) / 2
            torch.testing.assert_close(value, mean)
        else:
            assert torch.equal(value, base[key])  # φ of the base model before this round, statistics included
        if value.is_floating_point():
            weighed = (50 * ups[0].tensors[key] + 20 * ups[1].tensors[key]) / 70
            torch.testing.assert_close(after["model"][key], weighed)
    assert method.models(task, after, {}) == {"global": after["global"], "base": after["model"]}


def test_the_mixed_model_has_the_mean_of_both_classifiers(run: Run) -> None:
    """Table 4.8 of the source: {(θ_fs + θ)/2, φ}. Its accuracy is reported, and nothing else changes."""
    task = digits_task("mlp")
    few_shot, base = task.model.initial(1), task.model.initial(2)
    models = FedFSCPlus(mixed=True).models(task, {"global": few_shot, "model": base}, {})
    for name, value in models["mixed"].items():
        wanted = (few_shot[name] + base[name]) / 2 if name in task.model.trainable("head") else few_shot[name]
        assert torch.equal(value, wanted), name
    assert not same(models["mixed"], few_shot) and set(FedFSCPlus().models(task, {"model": base}, {})) == {
        "global",
        "base",
    }
    plain, mixed = run("fedfsc-plus"), run("fedfsc-plus", mixed=True)
    assert plain.summary["model_digest"] == mixed.summary["model_digest"]
    assert "accuracy/mixed" in mixed.history[-1] and "accuracy/mixed" not in plain.history[-1]


@pytest.mark.parametrize("towards", ["few-shot", "base"])
def test_fscprox_pulls_the_classifier_by_the_formula(towards: str) -> None:
    task, shard = digits_task("mlp"), digits(40)
    weights, few_shot = task.model.initial(0), task.model.initial(1)
    head = task.model.trainable("head")
    down = Packet({**weights, **{f"anchor/{key}": few_shot[key] for key in head}})
    client = FSCProx(mu=0.25, towards=towards).client.full
    carry, steps = client.begin(task, down, shard, {}, Context(0, "a", 2))
    first, second = list(steps)[:2]
    found = client.step(task, client.step(task, carry, first), second)["parameters"]
    net, anchor = task.model.build(), few_shot if towards == "few-shot" else weights
    net.load_state_dict(weights)
    named, optimiser = dict(net.named_parameters()), torch.optim.SGD(net.parameters(), lr=0.1)
    for batch in (first, second):
        optimiser.zero_grad()
        pull = sum((named[key] - anchor[key]).pow(2).sum() for key in head)
        (nn.functional.cross_entropy(net(batch["x"]), batch["y"]) + 0.25 * pull).backward()
        optimiser.step()
    torch.testing.assert_close(found, {key: value.detach() for key, value in named.items()})
    up, _ = FSCProx(mu=0.25).client.local(task, down, shard, {}, Context(0, "a", 2))
    assert up.tensors.keys() == weights.keys()


def test_the_ledger_books_full_and_few_shot_updates(run: Run) -> None:
    settings = {"clients": 10, "rounds": 3}
    whole = next(run("fedavg", {"clients": 10, "rounds": 1}).ledger.rows()).bytes_up
    for reduced, asked in ((0, [4, 7, 7]), (1, [7, 7, 7])):
        result = run("fedfsc-plus", settings, f_n=0.4, f_fs=0.3, reduced_epochs=reduced)
        assert [row["arrived"] for row in result.history] == asked
        rows = [row for row in result.ledger.rows() if row.round == 3]
        full = [row for row in rows if row.bytes_up >= whole]
        small = [row for row in rows if row.bytes_up < whole / 5]
        more = [row for row in full if row.bytes_up > whole]
        assert (len(full), len(small), len(more)) == ((4, 3, 0) if not reduced else (7, 0, 3))
    both = run("fedfsc", settings, f_n=0.4)
    assert [row["arrived"] for row in both.history] == [4, 4, 4]
    assert all(row.bytes_up > whole for row in both.ledger.rows() if row.round > 1)
    assert all(row.bytes_up == whole for row in both.ledger.rows() if row.round == 1)


def test_uploads_with_other_tensors_than_asked_for_are_refused() -> None:
    task = digits_task("mlp")
    server, weights = FedFSC().server, task.model.initial(0)
    head = task.model.trainable("head")[0]
    assert server.check(task, Packet(weights)) is None
    assert server.check(task, Packet({f"{FEW_SHOT}/{head}": weights[head]})) is None
    assert "above the split" in str(
        server.check(task, Packet({f"{FEW_SHOT}/{task.model.parameters[0]}": torch.ones(1)}))
    )
    assert "has shape" in str(server.check(task, Packet({f"{FEW_SHOT}/{head}": torch.ones(1)})))
    assert "no tensor" in str(server.check(task, Packet()))


def test_compressed_uplinks_carry_both_updates(run: Run) -> None:
    plain, coarse = (run("fedfsc", {"links": {"up": up}, "rounds": 4, "clients": 4}) for up in ("none", "topk:0.3"))
    assert coarse.ledger.bytes_up < 0.7 * plain.ledger.bytes_up
    assert coarse.accuracy > plain.accuracy - 0.15


# Stragglers ------------------------------------------------------------------------------------------------


def settings_of(seed: int, **more: Any) -> dict[str, Any]:
    return {
        "clients": 20, "rounds": 12, "epochs": 5, "partition": "dirichlet:0.1", "fleet": "mixed-edge", "seed": seed,
        "engine": "vector", "evaluate_every": 12, "deadline": deadline_of(seed, "mlp"),
        "data_options": None, **more,
    }  # fmt: skip


@pytest.mark.slow
def test_stragglers_that_train_the_classifier_give_more_accuracy_than_dropping_them(run: Run) -> None:
    """60 % of the devices miss the deadline with the full update.

    The options are the method's own. Model and number of rounds were chosen on these seeds, for speed: the mean gain
    is 0.05 here, 0.04 after 16 rounds, with the cnn of 64 hidden units −0.03 after 8 rounds and 0.04 after 16.
    """
    gains = []
    for seed in (0, 1, 2):
        dropped, kept = (run(name, settings_of(seed)) for name in ("fedavg", "fedfsc-plus"))
        assert dropped.history[-1]["late"] == 12 and kept.history[-1]["late"] <= 4
        assert kept.history[0]["arrived"] == 8 and kept.history[0]["late"] == 0  # nothing for stragglers to do yet
        assert kept.history[-1]["accuracy/base"] == dropped.accuracy
        gains.append(kept.accuracy - dropped.accuracy)
    assert sum(gains) / 3 > 0.02


def test_a_deadline_that_no_device_can_meet_is_refused(run: Run) -> None:
    with pytest.raises(ug.InputError, match=r"asks no device in its first round; with fleet\.deadline"):
        run("fedfsc-plus", settings_of(0, deadline=deadline_of(0, "mlp", able=0)))
