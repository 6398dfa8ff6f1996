"""FedMD and FedKAD against plain loops of the thesis' equations (sections 5.5 and 5.6), with models of two sizes."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from tests.methods import tiny_federation as tiny
from undergrowth.core import Model, Shard
from undergrowth.methods import FedKAD, FedMD

LADDER = {"small": Model(partial(tiny.build, 3)), "large": Model(partial(tiny.build, 7))}
TWO_SIZES = replace(tiny.TASK, ladder=LADDER)
MODELS = {"a": LADDER["small"], "b": LADDER["large"], "c": LADDER["small"]}  # assigned in turn
SAMPLES, PRETRAIN_EPOCHS, DIGEST_EPOCHS = 10, 3, 2
SERVER = {"server_lr": 0.05, "server_epochs": 3, "server_batch": 5}  # ten public samples: two batches
OPTIONS = {"samples": SAMPLES, "pretrain_epochs": PRETRAIN_EPOCHS, **SERVER}
LOSSES = pytest.mark.parametrize("loss", ["l1", "l2", "ce"])


def distance(loss: str, z: Tensor, t: Tensor) -> Tensor:
    """The distance of logits z from the consensus t: a mean over samples and, for l1 and l2, over logits."""
    if loss == "ce":
        return -(t.softmax(1) * z.log_softmax(1)).sum(1).mean()
    return (z - t).abs().mean() if loss == "l1" else (z - t).square().mean()


def public_samples(number: int) -> Shard:
    """The public samples of a round, drawn anew by the server."""
    assert tiny.TASK.public is not None
    generator = torch.Generator().manual_seed(tiny.seed_from(tiny.server_context(number), "public"))
    return tiny.TASK.public.take(torch.randperm(len(tiny.TASK.public), generator=generator)[:SAMPLES])


def first_models() -> dict[str, nn.Module]:
    """The devices' models before the first round."""
    seed = tiny.seed_from(tiny.server_context(0), "device models")
    return {device: tiny.module_with(model.initial(seed), model) for device, model in MODELS.items()}


def logits_of(module: nn.Module, x: Tensor, statistics: str = "running") -> Tensor:
    before = tiny.weights_of(module)
    with torch.no_grad():
        parts = x.split(5) if statistics == "batch" else [x]  # ten samples in batches of four: two batches of five
        logits = torch.cat([module.train(statistics == "batch")(part) for part in parts])
    module.load_state_dict(before)
    module.train()
    return logits


def train_on_server(module: nn.Module, number: int, loss: tiny.Loss) -> None:
    orders = tiny.shuffles(tiny.server_context(number), SAMPLES, SERVER["server_epochs"])
    optimiser = torch.optim.SGD(module.parameters(), SERVER["server_lr"])
    tiny.descend(module, orders, loss, optimiser, batch=5)


@pytest.mark.parametrize("statistics", ["running", "batch"])
@pytest.mark.parametrize(("loss", "digest_batch"), [("l1", None), ("l2", None), ("ce", None), ("l1", 2), ("l1", 6)])
def test_fedmd(loss: str, digest_batch: int | None, statistics: str) -> None:
    """Digest: learn the last consensus. Revisit: train on the own data. Then send logits of new public samples."""
    devices, model = first_models(), tiny.module_with(tiny.initial())
    consensus = shown = None
    digested = {}
    for number in range(3):
        logits = []
        for device, shard in tiny.SHARDS.items():
            module, context = devices[device], tiny.device_context(device, number)
            optimiser = torch.optim.SGD(module.parameters(), tiny.LR, tiny.MOMENTUM)
            if consensus is not None and shown is not None:

                def digest(module: nn.Module, rows: Tensor, t: Tensor = consensus, x: Tensor = shown.x) -> Tensor:
                    return distance(loss, module(x[rows]), t[rows])

                # Batches of four: the last of ten samples has two.
                orders, batch = tiny.shuffles(context, SAMPLES, DIGEST_EPOCHS, "digest"), digest_batch or tiny.BATCH
                tiny.descend(module, orders, digest, optimiser, batch=batch)
                digested[device] = {name: value.clone() for name, value in tiny.weights_of(module).items()}
            epochs = tiny.EPOCHS if number else PRETRAIN_EPOCHS
            tiny.descend(module, tiny.shuffles(context, len(shard), epochs), tiny.cross_entropy(shard), optimiser)
            logits.append(logits_of(module, public_samples(number).x, statistics))
        shown, consensus = public_samples(number), sum(logits) / len(logits)

        def distil(module: nn.Module, rows: Tensor, t: Tensor = consensus, x: Tensor = shown.x) -> Tensor:
            return distance(loss, module(x[rows]), t[rows])

        train_on_server(model, number, distil)
    options = {"digest_epochs": DIGEST_EPOCHS, "digest_batch": digest_batch, "evaluated": "digested", **OPTIONS}
    method = FedMD(loss=loss, statistics=statistics, **options)
    state, own = tiny.simulate(method, 3, TWO_SIZES)
    tiny.assert_same(state["known"].tensors, {"consensus": consensus})
    tiny.assert_same(state["model"], tiny.weights_of(model))
    for device, module in devices.items():
        tiny.assert_same(own[device]["weights"], tiny.weights_of(module))
        tiny.assert_same(own[device]["kept"], digested[device])


def prototypes(module: nn.Module, shard: Shard) -> dict[int, Tensor]:
    """F_k,c: the mean map of every class that the device has."""
    with torch.no_grad():
        maps = module.eval().lower(shard.x)
    module.train()
    return {label: maps[shard.y == label].mean(0) for label in shard.y.unique().tolist()}


def fedkad(
    rounds: int, loss: str, beta: float, device_beta: float, classes: str
) -> tuple[tiny.Weights, dict[str, tiny.Weights]]:
    """The global model and the devices' models; `classes`: the cross-entropy is the mean over classes or their sum."""
    devices, model = first_models(), tiny.module_with(tiny.initial())
    for number in range(rounds):
        sent, logits, public = [], [], public_samples(number)
        for device, shard in tiny.SHARDS.items():
            orders = tiny.shuffles(
                tiny.device_context(device, number), len(shard), tiny.EPOCHS if number else PRETRAIN_EPOCHS
            )
            tiny.descend(devices[device], orders, tiny.cross_entropy(shard))
            sent.append(prototypes(devices[device], shard))
            logits.append(logits_of(devices[device], public.x))
        consensus = sum(logits) / len(logits)
        held = sorted(set().union(*sent))
        means = [[each[label] for each in sent if label in each] for label in held]
        maps = torch.stack([sum(each) / len(each) for each in means])

        def teach(
            module: nn.Module, rows: Tensor, t: Tensor = consensus, public: Shard = public, maps: Tensor = maps,
            held: list[int] = held, weight: float = 0.0,
        ) -> Tensor:  # fmt: skip
            distilled = distance(loss, module(public.x[rows]), t[rows])
            module.eval()  # the prototypes do not change BatchNorm's statistics
            refined = functional.cross_entropy(module.head(module.upper(maps)), torch.tensor(held), reduction="none")
            module.train()
            return distilled + weight * (refined.sum() if classes == "sum" else refined.sum() / len(held))

        train_on_server(model, number, partial(teach, weight=beta))
        for module in devices.values():
            train_on_server(module, number, partial(teach, weight=device_beta))
    return tiny.weights_of(model), {device: tiny.weights_of(module) for device, module in devices.items()}


def assert_equals_loop(method: FedKAD, expected: tuple[tiny.Weights, dict[str, tiny.Weights]]) -> None:
    state, _ = tiny.simulate(method, 2, TWO_SIZES)
    tiny.assert_same(state["model"], expected[0])
    for device, weights in expected[1].items():
        tiny.assert_same(state["devices"][device]["weights"], weights)


@LOSSES
def test_fedkad(loss: str) -> None:
    """Device c does not hold class 2: it has no part in that prototype."""
    assert 2 not in tiny.SHARDS["c"].y and 2 in tiny.SHARDS["a"].y
    method = FedKAD(beta=0.7, loss=loss, level="mid", **OPTIONS)
    assert_equals_loop(method, fedkad(2, loss, 0.7, 0.7, "mean"))


def test_fedkad_with_the_sum_over_classes_and_another_beta_for_devices() -> None:
    method = FedKAD(beta=0.7, device_beta=0.2, prototype_reduction="sum", level="mid", **OPTIONS)
    assert_equals_loop(method, fedkad(2, "l1", 0.7, 0.2, "sum"))


def test_a_class_that_no_device_holds_has_no_prototype(monkeypatch: pytest.MonkeyPatch) -> None:
    for device, shard in list(tiny.SHARDS.items()):
        monkeypatch.setitem(tiny.SHARDS, device, replace(shard, y=shard.y.clamp_max(1)))
    method = FedKAD(beta=0.7, prototype_reduction="sum", level="mid", **OPTIONS)
    assert_equals_loop(method, fedkad(2, "l1", 0.7, 0.7, "sum"))
