"""FedAsync and FedBuff against plain loops over the events of three devices of known pace."""

from __future__ import annotations

from collections import Counter

import pytest
import torch
from torch import Tensor

from tests.methods.tiny_federation import SHARDS, TASK, assert_same, device_context, initial, simulate, train
from undergrowth.methods import FedAsync, FedBuff

PACES = {"a": 1.0, "b": 2.5, "c": 4.0}
# Who arrives at each instant, and the version it was sent: a at 1, 2, 3, 4, 5; b at 2.5 and 5; c at 4.
ONE_BY_ONE = [[("a", 0)], [("a", 1)], [("b", 0)], [("a", 2)], [("a", 4), ("c", 0)], [("a", 5), ("b", 3)]]
IN_PAIRS = [[("a", 0), ("a", 0)], [("b", 0), ("a", 1)], [("c", 0), ("a", 2)], [("b", 1), ("a", 3)]]


def staleness(kind: str, age: int) -> float:
    return {"constant": 1.0, "polynomial:0.5": (1 + age) ** -0.5, "hinge:2:1": 1.0 if age <= 1 else 1 / (2 * age - 1)}[
        kind
    ]


STALENESS = pytest.mark.parametrize("kind", ["constant", "polynomial:0.5", "hinge:2:1"])


@STALENESS
def test_fedasync(kind: str) -> None:
    """w ← (1 − α_s)·w + α_s·w_k with α_s = α·s(age), for one model after the other."""
    versions, asked = [initial()], Counter[str]()
    for version, arrivals in enumerate(ONE_BY_ONE):
        model = versions[-1]
        for device, sent in arrivals:
            sent_back = train(versions[sent], device, device_context(device, sent, asked[device]))
            asked[device] += 1
            rate = 0.6 * staleness(kind, version - sent)
            model = {
                name: (1 - rate) * value + rate * sent_back[name]
                if value.is_floating_point()
                else torch.maximum(value, sent_back[name])
                for name, value in model.items()
            }
        versions.append(model)
    method = FedAsync(alpha=0.6, staleness=kind, concurrency=3)
    assert_same(simulate(method, len(ONE_BY_ONE), paces=PACES)[0]["model"], versions[-1])


@STALENESS
@pytest.mark.parametrize("weighting", ["samples", "uniform"])
def test_fedbuff(kind: str, weighting: str) -> None:
    """w ← w + η·Σ p_k·s(age_k)·Δ_k over a buffer of two; statistics b of BatchNorm: b ← b + Σ p_k·s·(b_k − b)."""
    versions, asked = [initial()], Counter[str]()
    for version, arrivals in enumerate(IN_PAIRS):
        model, changes = versions[-1], []
        for device, sent in arrivals:
            trained = train(versions[sent], device, device_context(device, sent, asked[device]))
            asked[device] += 1
            weight = len(SHARDS[device]) if weighting == "samples" else 1.0
            changes.append((weight, staleness(kind, version - sent), trained, versions[sent]))
        total = sum(weight for weight, *_ in changes)

        def step(name: str, value: Tensor) -> Tensor:
            if not value.is_floating_point():
                return torch.stack([value, *(trained[name] for _, _, trained, _ in changes)]).amax(0)  # noqa: B023
            if name in TASK.model.parameters:
                change = sum(p / total * s * (trained[name] - start[name]) for p, s, trained, start in changes)  # noqa: B023
                return value + 0.5 * change
            return value + sum(p / total * s * (trained[name] - value) for p, s, trained, _ in changes)  # noqa: B023

        versions.append({name: step(name, value) for name, value in model.items()})
    method = FedBuff(buffer=2, concurrency=3, server_lr=0.5, staleness=kind, weighting=weighting)
    assert_same(simulate(method, len(IN_PAIRS), paces=PACES)[0]["model"], versions[-1])
