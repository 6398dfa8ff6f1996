"""FedFSC, FedFSC+ and FSCProx against plain loops of the thesis' equations (chapter 4)."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from tests.methods import tiny_federation as tiny
from undergrowth.core import Context
from undergrowth.methods import FedFSC, FedFSCPlus, FSCProx

HEAD = ("head.weight", "head.bias")
SHOTS, FEW_SHOT_EPOCHS = 2, 3
FEW_SHOT = {"shots": SHOTS, "few_shot_epochs": FEW_SHOT_EPOCHS}


def few_shot_classifier(
    base: tiny.Weights, device: str, context: Context, lr: float = 0.01, dampening: float = 0.0
) -> dict[str, Tensor]:
    """θ_fs,k: the last layer, trained on `SHOTS` samples of every class on frozen features."""
    shard, generator = tiny.SHARDS[device], context.generator("order")
    orders = []
    for _ in range(FEW_SHOT_EPOCHS):
        shuffled = torch.randperm(len(shard), generator=generator)
        drawn = torch.cat([shuffled[shard.y[shuffled] == label][:SHOTS] for label in range(3)]).sort().values
        orders.append(drawn[torch.randperm(len(drawn), generator=generator)])
    module = tiny.module_with(base).eval()
    optimiser = torch.optim.SGD(module.head.parameters(), lr, 0.9, dampening, weight_decay=1e-3)
    tiny.descend(module, orders, tiny.cross_entropy(shard), optimiser, batch=4)
    return {name: module.state_dict()[name].clone() for name in HEAD}


def able_devices(number: int, f_n: float) -> list[str]:
    """The devices that are not stragglers in this round, by the draw that all methods share."""
    drawn = sorted(tiny.SHARDS, key=lambda device: Context(tiny.SEED, device, number).key("straggler"))
    return drawn[: round(f_n * len(drawn))]


def assert_equals_loop(
    method: Any,
    rounds: int,
    *,
    everybody: bool,
    reduced: int = 0,
    mu: float = 0.0,
    towards: str = "",
    **few_shot: float,
) -> None:
    """Runs `method` and the loop. `everybody`: all devices do both updates; else stragglers do the few-shot update."""
    base, composed, anchor = tiny.initial(), tiny.initial(), None
    turns = dict.fromkeys(tiny.SHARDS, 0)
    for number in range(rounds):
        able = list(tiny.SHARDS) if everybody else able_devices(number, f_n=2 / 3)
        full, sizes, classifiers = [], [], []
        for device, shard in tiny.SHARDS.items():
            does_full = device in able or reduced > 0
            does_few_shot = number > 0 and towards != "base" and (everybody or device not in able)
            context = tiny.device_context(device, number, turns[device])
            turns[device] += does_full or does_few_shot
            if does_full:
                centre = base if towards == "base" else anchor

                def loss(module: nn.Module, rows: Tensor, shard: Any = shard, centre: Any = centre) -> Tensor:
                    named, plain = dict(module.named_parameters()), tiny.cross_entropy(shard)(module, rows)
                    pull = sum((named[name] - centre[name]).square().sum() for name in HEAD) if centre and mu else 0.0
                    return plain + mu * pull

                epochs = tiny.EPOCHS if device in able else reduced
                full.append(tiny.train(base, device, context, loss, epochs=epochs))
                sizes.append(len(shard))
            if does_few_shot:
                classifiers.append(few_shot_classifier(base, device, context, **few_shot))
        if classifiers:
            anchor = tiny.mean(classifiers)
            composed = {**base, **anchor}
        base = tiny.mean(full, sizes)
    state, own = tiny.simulate(method, rounds)
    models = method.models(None, state, own)
    tiny.assert_same(models["base"] if "base" in models else models["global"], base)
    if anchor is not None:
        tiny.assert_same(models["few-shot"] if "few-shot" in models else models["global"], composed)


@pytest.mark.parametrize(("lr", "dampening"), [(0.01, 0.0), (0.3, 0.9)])
def test_fedfsc(lr: float, dampening: float) -> None:
    """Global model {θ_fs, φ}: θ_fs has equal weights, and φ is that of the base model it was trained on."""
    method = FedFSC(**FEW_SHOT, few_shot_lr=lr, few_shot_dampening=dampening)
    assert_equals_loop(method, 3, everybody=True, lr=lr, dampening=dampening)


@pytest.mark.parametrize("reduced", [0, 1], ids=["few-shot only", "and one full epoch"])
def test_fedfsc_plus(reduced: int) -> None:
    assert_equals_loop(FedFSCPlus(**FEW_SHOT, f_n=2 / 3, reduced_epochs=reduced), 3, everybody=False, reduced=reduced)


@pytest.mark.parametrize("towards", ["few-shot", "base"])
def test_fscprox(towards: str) -> None:
    """mu·‖θ − θ_fs‖² towards the last few-shot classifier, or (baseProx) towards the received classifier."""
    method = FSCProx(**FEW_SHOT, f_n=2 / 3, mu=0.6, towards=towards)
    assert_equals_loop(method, 4, everybody=False, mu=0.6, towards=towards)
