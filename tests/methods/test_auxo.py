"""Auxo-like clusters: the reference loop of a run, two steps of the server, and rewards in the tree of clusters."""

from __future__ import annotations

from collections.abc import Mapping

import pytest
import torch
from torch import Tensor

from tests.methods import test_clusters
from tests.methods import tiny_federation as tiny
from tests.methods.test_clusters import (
    ReferenceClusters,
    assert_same_clusters,
    best_division,
    direction,
    noisy_upload,
    scatter,
)
from undergrowth.core import Collect, Packet, Shard, add_upload
from undergrowth.methods import Auxo
from undergrowth.methods.auxo import CALMING, best_clusters

HALVES = ["00", "01"]  # the clusters after the first split


def shards_of_two_groups() -> dict[str, Shard]:
    """The labels follow from the samples, in every second device by another rule."""
    shards = {}
    for number, size in enumerate((8, 10, 11, 12, 14, 15)):  # no batch of a single sample
        x = tiny.samples(10 + number, size).x
        shards[f"d{number}"] = Shard(x, ((x[:, 0] > 0).long() + (x[:, 1] > 0).long() + number % 2) % 3)
    return shards


@pytest.mark.parametrize("parent_weight", [0.0, 0.3])
def test_auxo(parent_weight: float, monkeypatch: pytest.MonkeyPatch) -> None:
    """A split in the first round, and three rounds in which members train their cluster and others only explore it."""
    shards, rewards, explored = shards_of_two_groups(), {}, 0
    monkeypatch.setattr(tiny, "SHARDS", shards)
    monkeypatch.setattr(test_clusters, "SIZES", {device: float(len(shard)) for device, shard in shards.items()})
    expected, tried = ReferenceClusters(parent_weight), dict.fromkeys(shards, "0")
    for number in range(4):
        start = {device: expected.models.get(tried[device], expected.parent) for device in shards}
        trained = {device: tiny.train(start[device], device, tiny.device_context(device, number)) for device in shards}
        moves = {device: direction(start[device], trained[device]) for device in shards}
        if number == 0:
            tried = {device: f"0{half}" for device, half in best_division(moves, 2).items()}
            after = sum(scatter([moves[device] for device in shards if tried[device] == name]) for name in HALVES)
            assert (scatter(list(moves.values())) - after * 5 / 4) / 6 >= 0.05
        best = {d: max(HALVES, key=lambda name, d=d: value(rewards[d], name)) if number else tried[d] for d in shards}
        members = {}
        for name in set(tried.values()):
            here = [device for device in shards if tried[device] == name]
            own = [device for device in here if best[device] == name] or here
            members |= dict.fromkeys(own, name)
            explored += len(here) - len(own)
            centre = sum(moves[device] for device in own) / len(own)
            for device in here:
                known, found = rewards.setdefault(device, {}), reward(moves[device], centre)
                known[name] = (known[name] + found) / 2 if name in known else found
        expected.average({device: trained[device] for device in members}, members)
        tried = next_clusters(rewards, HALVES, number)
    assert explored > 0 and len(set(best.values())) == 2
    method = Auxo(gain=0.05, explore=0.5, parent_weight=parent_weight)
    state, own_states = tiny.simulate(method, 4)
    assert_same_clusters(state, expected)
    assert_same_rewards(state["rewards"], rewards)
    assert state["members"] == tried
    for device in shards:
        model = expected.models[max(HALVES, key=lambda name, d=device: value(rewards[d], name))]
        tiny.assert_same(method.personal(tiny.TASK, state, own_states[device], device), model)


def value(known: Mapping[str, float], name: str) -> float:
    """The reward of a cluster; of two siblings, one that was not tried has half of the other's."""
    return known.get(name, 0.5 * max(known.values()))


def test_two_steps_of_the_server() -> None:
    """Two rounds at the server: one cluster splits into two; then a member, and two that explore, come back."""
    method = Auxo(gain=0.2, explore=0.5)
    server, devices = method.server, [f"d{number}" for number in range(6)]
    state = server.init(tiny.TASK, tiny.server_context(0))
    start = state["model"]
    sizes = {device: float(10 + number) for number, device in enumerate(devices)}
    trained = {device: noisy_upload(start, number % 2, number) for number, device in enumerate(devices)}
    state = server.step(
        tiny.TASK, state, uploads_of(trained, dict.fromkeys(devices, "parent"), sizes), tiny.server_context(0)
    )

    moves = {device: direction(start, end) for device, end in trained.items()}
    halves = [devices[0::2], devices[1::2]]
    after = sum(scatter([moves[device] for device in half]) for half in halves)
    assert (scatter(list(moves.values())) - after * 5 / 4) / 6 >= 0.2
    rewards: dict[str, dict[str, float]] = {}
    for name, half in zip(("00", "01"), halves, strict=True):
        expected = tiny.mean([trained[device] for device in half], [sizes[device] for device in half])
        tiny.assert_same(state["clusters"][name]["weights"], expected)
        centre = sum(moves[device] for device in half) / len(half)
        rewards |= {device: {name: reward(moves[device], centre)} for device in half}
    assert_same_rewards(state["rewards"], rewards)
    assert state["members"] == next_clusters(rewards, ["00", "01"], 0)

    # d0 stays in its cluster; d1 explores it, in which it is out of place, and d2 the other, where no member came.
    models = {name: kept["weights"] for name, kept in state["clusters"].items()}
    tried = {"d0": "00", "d1": "00", "d2": "01"}
    trained = {device: noisy_upload(models[name], int(device[1]) % 2, 9) for device, name in tried.items()}
    state = server.step(tiny.TASK, state, uploads_of(trained, tried, sizes), tiny.server_context(1))
    moves = {device: direction(models[name], trained[device]) for device, name in tried.items()}
    rewards["d0"]["00"] = (rewards["d0"]["00"] + reward(moves["d0"], moves["d0"])) / 2
    rewards["d1"]["00"] = reward(moves["d1"], moves["d0"])
    rewards["d2"]["01"] = reward(moves["d2"], moves["d2"])
    assert rewards["d1"]["00"] < 0
    assert_same_rewards(state["rewards"], rewards)
    tiny.assert_same(state["clusters"]["00"]["weights"], trained["d0"])
    tiny.assert_same(state["clusters"]["01"]["weights"], trained["d2"])
    tiny.assert_same(state["model"], tiny.mean([trained["d0"], trained["d2"]], [sizes["d0"], sizes["d2"]]))
    assert state["members"] == next_clusters(rewards, ["00", "01"], 1)
    tiny.assert_same(method.personal(tiny.TASK, state, {}, "d1"), trained["d2"])
    tiny.assert_same(method.personal(tiny.TASK, state, {}, "unknown"), state["model"])


def uploads_of(trained: Mapping[str, tiny.Weights], clusters: Mapping[str, str], sizes: Mapping[str, float]) -> Packet:
    total: Packet | None = None
    for device, weights in trained.items():
        tensors = {f"{clusters[device]}/{name}": value for name, value in weights.items()}
        total = add_upload(Collect(), total, device, Packet(tensors, {"samples": sizes[device]}))
    assert total is not None
    return total


def reward(move: Tensor, centre: Tensor) -> float:
    return float(move @ centre / centre.square().sum() - 0.5)


def assert_same_rewards(found: Mapping[str, Mapping[str, float]], expected: Mapping[str, Mapping[str, float]]) -> None:
    assert {device: known.keys() for device, known in found.items()} == {
        d: known.keys() for d, known in expected.items()
    }
    for device, known in expected.items():
        assert found[device] == pytest.approx(known, rel=1e-9)


def next_clusters(rewards: Mapping[str, Mapping[str, float]], names: list[str], number: int) -> dict[str, str]:
    """The cluster of the highest reward, or a random one."""
    draws = torch.rand(len(rewards), 2, generator=tiny.server_context(number).generator("explore"))
    found = {}
    for (device, known), (first, second) in zip(sorted(rewards.items()), draws.tolist(), strict=True):
        explores = first < 0.5 * CALMING**number
        found[device] = names[int(second * 2)] if explores else max(names, key=lambda name, k=known: value(k, name))
    return found


def test_rewards_spread_over_the_tree_of_clusters() -> None:
    names = ["00", "010", "011"]
    assert best_clusters({"00": 0.4}, names) == ["00"]
    assert best_clusters({"00": -0.4}, names) == ["010", "011"]  # -0.4 / 4 each; two steps from their ancestor
    assert best_clusters({"010": -0.4}, names) == ["00", "011"]  # one step each
    assert best_clusters({"010": -0.4, "00": 0.1}, names) == ["00"]
    assert best_clusters({"01": 0.4}, names) == ["00", "010", "011"]  # it tried the cluster before it was split
    # Half of 0.4 for a sibling, and a quarter two steps away.
    assert best_clusters({"000": 0.4, "01": 0.19}, ["001", "01"]) == ["001"]
    assert best_clusters({"000": 0.4, "01": 0.21}, ["001", "01"]) == ["01"]
    assert best_clusters({"00": 0.4, "1": 0.09}, ["011", "1"]) == ["011"]
    assert best_clusters({"00": 0.4, "1": 0.11}, ["011", "1"]) == ["1"]
