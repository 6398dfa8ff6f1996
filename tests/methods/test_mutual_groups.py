"""Mutual groups: the reference loop, weights of zero, the ensemble, a group that joins later, and wrong settings."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.nn import functional

import undergrowth as ug
from tests.methods.tiny_federation import (
    LR,
    MOMENTUM,
    SHARDS,
    TASK,
    assert_same,
    build,
    device_context,
    initial,
    mean,
    module_with,
    samples,
    server_context,
    shuffles,
    simulate,
    train,
    weights_of,
)
from undergrowth.core import InputError, Model
from undergrowth.methods import FedAvg, MutualGroups
from undergrowth.runs.run_models import RunModels

SMALL = Model(lambda: build(4))
GROUPS = {"a": "left", "b": "right", "c": "left"}
SIZES = {device: len(shard) for device, shard in SHARDS.items()}
GROUPED = replace(TASK, groups=GROUPS, ladder={"small": SMALL})
ROUNDS = 3


def group_start(model: Model) -> dict[str, Any]:
    return model.initial(server_context(0).key("group model"))


def kl(teacher: torch.Tensor, student: torch.Tensor) -> torch.Tensor:
    """Mean over samples of Σ p·log(p / q), with a fixed teacher."""
    p, q = teacher.detach().softmax(1), student.softmax(1)
    return (p * (p / q).log()).sum(1).mean()


@pytest.mark.parametrize("masked", [0, 2])
def test_mutual_groups(masked: int) -> None:
    """CE(w) + 0.33·KL(w_m ‖ w) and CE(w_m) + 0.75·KL(w ‖ w_m) on every batch; means over all and over each group.

    The devices of the group "right" are left out of the first `masked` rounds.
    """
    shared, groups = initial(), dict.fromkeys(set(GROUPS.values()), group_start(SMALL))
    for number in range(ROUNDS):
        sent: dict[str, tuple[Any, Any]] = {}
        for device, shard in SHARDS.items():
            waits = masked if GROUPS[device] == "right" else 0
            if number < waits:
                continue
            pair = module_with(shared), module_with(groups[GROUPS[device]], SMALL)
            optimisers = [torch.optim.SGD(module.parameters(), LR, MOMENTUM) for module in pair]
            for order in shuffles(device_context(device, number, number - waits), len(shard)):
                for rows in order.split(TASK.train.batch):
                    z, z_m = (module(shard.x[rows]) for module in pair)
                    losses = [
                        functional.cross_entropy(z, shard.y[rows]) + 0.33 * kl(z_m, z),
                        functional.cross_entropy(z_m, shard.y[rows]) + 0.75 * kl(z, z_m),
                    ]
                    for loss, optimiser in zip(losses, optimisers, strict=True):
                        optimiser.zero_grad()
                        loss.backward()
                    for optimiser in optimisers:
                        optimiser.step()
            sent[device] = weights_of(pair[0]), weights_of(pair[1])
        shared = mean([both[0] for both in sent.values()], [SIZES[device] for device in sent])
        for group in {GROUPS[device] for device in sent}:
            own = [device for device in sent if GROUPS[device] == group]
            groups[group] = mean([sent[device][1] for device in own], [SIZES[device] for device in own])
    method = MutualGroups(mask="right" if masked else "", mask_rounds=masked)
    state, own_states = simulate(method, ROUNDS, GROUPED)
    assert_same(state["model"], shared)
    for group in groups:
        assert_same(state["groups"][group], groups[group])
    assert method.personal(GROUPED, state, own_states["b"], "b").weights is state["groups"]["right"]
    assert_same(method.personal(GROUPED, state, {}, "new"), shared)


def test_weights_of_zero_are_fedavg_of_all_devices_and_of_each_group() -> None:
    task = replace(TASK, groups=GROUPS)
    state, _ = simulate(MutualGroups(global_weight=0, group_weight=0), ROUNDS, task)
    assert_same(state["model"], simulate(FedAvg(), ROUNDS)[0]["model"])
    alone = group_start(TASK.model)
    for number in range(ROUNDS):
        alone = train(alone, "b", device_context("b", number))
    assert_same(state["groups"]["right"], alone)


def test_in_the_ensemble_every_group_predicts_its_own_test_samples() -> None:
    method, test = MutualGroups(), samples(5, 30)
    state, _ = simulate(method, 1, GROUPED)
    places = {"left": torch.arange(0, 30, 3), "right": torch.tensor([1, 2, 4])}
    right = 0
    for group, rows in places.items():
        module = module_with(state["groups"][group], SMALL).eval()
        right += int((module(test.x[rows]).argmax(1) == test.y[rows]).sum())
    scores = RunModels(method, GROUPED, state, {}).score(test, places)
    assert scores["accuracy/ensemble"] == right / 13 and not any("group-" in name for name in scores)
    everywhere = RunModels(method, GROUPED, state, {}).score(test)
    module = module_with(state["groups"]["left"], SMALL).eval()
    expected = float((module(test.x).argmax(1) == test.y).double().mean())
    assert everywhere["accuracy/group-left"] == expected and "accuracy/ensemble" not in everywhere


def sensors() -> ug.data.Dataset:
    """Digits of which every second device sees the negative."""
    digits = ug.data.load("digits", train_samples=240, test_samples=60)
    camera, test_camera = np.arange(240) % 4, np.arange(60) % 2
    x, test_x = (np.where((which % 2 == 1)[:, None, None, None], 1 - part, part)
                 for part, which in ((digits.x, camera), (digits.test_x, test_camera)))  # fmt: skip
    names = np.array(["plain", "negative"])
    fields, test_fields = {"camera": camera, "modality": names[camera % 2]}, {"modality": names[test_camera]}
    return ug.data.Dataset(
        "cameras", x, digits.y, test_x, digits.test_y, 10, fields=fields, test_fields=test_fields
    )  # fmt: skip


@pytest.mark.parametrize("topology", ["star", "tree:2x2"])
def test_a_masked_group_joins_later(topology: str, tmp_path: Path) -> None:
    options = {"mask": "negative", "mask_rounds": 2}
    result = ug.run(
        "mutual-groups", sensors(), "natural:camera", model="logistic", options=options, rounds=3,
        topology=topology, out=str(tmp_path), batch=16,
    )  # fmt: skip
    asked = [(row.round, row.child) for row in result.ledger.rows() if row.child.startswith("device")]
    plain, negative = ("device-000", "device-002"), ("device-001", "device-003")
    assert sorted(asked) == sorted([(n, d) for n in (1, 2, 3) for d in plain] + [(3, d) for d in negative])
    assert "accuracy/ensemble" in result.history[-1]


def test_wrong_settings_are_refused(tmp_path: Path) -> None:
    def run(**options: Any) -> None:
        ladder = options.pop("ladder", [])
        ug.run(
            "mutual-groups", sensors(), "natural:camera", options=options, out=str(tmp_path),
            model="logistic", model_options={"ladder": ladder},
        )  # fmt: skip

    with pytest.raises(InputError, match=r"method\.mask 'negativ' is not a group of devices; did you mean 'negative'"):
        run(mask="negativ")
    with pytest.raises(InputError, match="has no field 'sensor'"):
        run(group="sensor")
    with pytest.raises(InputError, match=r"model\.ladder has 2 models; mutual-groups takes one"):
        run(ladder=["mlp", "cnn"])
    with pytest.raises(InputError, match=r"method\.group_weight -1"):
        run(group_weight=-1.0)
