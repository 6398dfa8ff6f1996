"""K-means clusters and IFCA: reference loops, and what all methods with clusters share."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

import undergrowth as ug
from tests.methods import tiny_federation as tiny
from undergrowth.core import InputError, Method, Packet, add_upload
from undergrowth.learning.cluster_models import MAX_DIRECTION, directions
from undergrowth.methods import IFCA, Auxo, FedAvg, KMeansClusters

PARAMETERS = tiny.TASK.model.parameters
SIZES = {device: float(len(shard)) for device, shard in tiny.SHARDS.items()}
ROUNDS = 3


def direction(start: tiny.Weights, end: tiny.Weights) -> Tensor:
    change = torch.cat([(end[name] - start[name]).flatten() for name in PARAMETERS])
    return change / change.norm()


def scatter(rows: Sequence[Tensor]) -> float:
    centre = sum(rows) / len(rows)
    return float(sum((row - centre).square().sum() for row in rows))


def best_division(moves: Mapping[str, Tensor], k: int) -> dict[str, str]:
    """The division into k clusters with the least scatter, by trying all; numbered as they first occur."""

    def error(labels: tuple[int, ...]) -> float:
        groups = [
            [move for move, own in zip(moves.values(), labels, strict=True) if own == each] for each in set(labels)
        ]
        return sum(scatter(group) for group in groups)

    labels = min(itertools.product(range(k), repeat=len(moves)), key=error)
    order = list(dict.fromkeys(labels))
    return {device: str(order.index(own)) for device, own in zip(moves, labels, strict=True)}


def train_all(models: Mapping[str, tiny.Weights], number: int) -> dict[str, tiny.Weights]:
    """What the devices make of these models in a round."""
    return {device: tiny.train(models[device], device, tiny.device_context(device, number)) for device in tiny.SHARDS}


class ReferenceClusters:
    """Σ n·w / Σ n in every cluster, the same over clusters for the parent, and a step of every cluster towards it."""

    def __init__(self, parent_weight: float) -> None:
        self.parent, self.models, self.samples = tiny.initial(), {}, {}
        self.parent_weight = parent_weight

    def average(self, trained: Mapping[str, tiny.Weights], clusters: Mapping[str, str]) -> None:
        for cluster in set(clusters.values()):
            own = [device for device in trained if clusters[device] == cluster]
            self.models[cluster] = tiny.mean([trained[device] for device in own], [SIZES[device] for device in own])
            self.samples[cluster] = sum(SIZES[device] for device in own)
        counted = [cluster for cluster in self.models if self.samples[cluster]]
        self.parent = tiny.mean([self.models[each] for each in counted], [self.samples[each] for each in counted])
        p = self.parent_weight
        for cluster, model in self.models.items():
            if p:
                floats = {name: value for name, value in model.items() if value.is_floating_point()}
                moved = {name: (1 - p) * value + p * self.parent[name] for name, value in floats.items()}
                self.models[cluster] = {**self.parent, **moved}


def assert_same_clusters(state: Any, expected: ReferenceClusters) -> None:
    tiny.assert_same(state["model"], expected.parent)
    assert state["clusters"].keys() == expected.models.keys()
    for name, kept in state["clusters"].items():
        tiny.assert_same(kept["weights"], expected.models[name])


@pytest.mark.parametrize("parent_weight", [0.0, 0.3])
def test_kmeans_clusters(parent_weight: float) -> None:
    expected = ReferenceClusters(parent_weight)
    trained = train_all(dict.fromkeys(tiny.SHARDS, expected.parent), 0)
    members = best_division({device: direction(expected.parent, end) for device, end in trained.items()}, 2)
    expected.average(trained, members)
    for number in range(1, ROUNDS):
        trained = train_all({device: expected.models[members[device]] for device in tiny.SHARDS}, number)
        expected.average(trained, members)
    method = KMeansClusters(k=2, parent_weight=parent_weight)
    state, own = tiny.simulate(method, ROUNDS)
    assert_same_clusters(state, expected)
    assert state["members"] == members
    for device in tiny.SHARDS:
        tiny.assert_same(method.personal(tiny.TASK, state, own[device], device), expected.models[members[device]])


def least_loss(models: Mapping[str, tiny.Weights], device: str) -> str:
    return min(models, key=lambda name: tiny.loss_on(models[name], tiny.SHARDS[device]))


def test_ifca_refuses_random_models_that_would_be_equal(tmp_path: Path) -> None:
    """The phase `start` gives the weights, so that every new model has the same."""
    settings = {"model": "logistic", "clients": 4, "rounds": 1, "out": tmp_path, "progress": False}
    settings["start"] = {"data": "digits", "epochs": 1}
    with pytest.raises(InputError, match=r"method\.start random: the model starts from the same weights every time"):
        ug.run("ifca", options={"k": 2, "start": "random"}, **settings)
    assert ug.run("ifca", options={"k": 2}, **settings).accuracy > 0


@pytest.mark.parametrize("start", ["kmeans", "random"])
def test_ifca(start: str) -> None:
    expected, first = ReferenceClusters(0.0), 0
    if start == "kmeans":
        trained = train_all(dict.fromkeys(tiny.SHARDS, expected.parent), 0)
        moves = {device: direction(expected.parent, end) for device, end in trained.items()}
        expected.average(trained, best_division(moves, 2))
        first = 1
    else:
        other = tiny.TASK.model.initial(tiny.server_context(0).key("model 1"))
        expected.models, expected.samples = {"0": tiny.initial(), "1": other}, {"0": 0.0, "1": 0.0}
    for number in range(first, ROUNDS):
        chosen = {device: least_loss(expected.models, device) for device in tiny.SHARDS}
        expected.average(train_all({k: expected.models[chosen[k]] for k in tiny.SHARDS}, number), chosen)
    method = IFCA(k=2, start=start)
    state, own = tiny.simulate(method, ROUNDS)
    assert_same_clusters(state, expected)
    for device in tiny.SHARDS:
        tiny.assert_same(method.personal(tiny.TASK, state, own[device], device), expected.models[chosen[device]])


def noisy_upload(start: tiny.Weights, towards: int, seed: int) -> dict[str, Tensor]:
    """A model that moved from `start` in one of several directions, and a little at random."""
    goal, noise = (torch.Generator().manual_seed(number) for number in (towards, 1000 + seed))
    return {
        name: value
        + torch.randn(value.shape, generator=goal, dtype=torch.float64)
        + 0.3 * torch.randn(value.shape, generator=noise, dtype=torch.float64)
        if name in PARAMETERS
        else value
        for name, value in start.items()
    }


ONE_CLUSTER: list[Method] = [
    KMeansClusters(k=1), KMeansClusters(k=2, parent_weight=1.0), IFCA(k=1), IFCA(k=1, start="random"),
    Auxo(max_clusters=1),
]  # fmt: skip


@pytest.mark.parametrize("method", ONE_CLUSTER, ids=repr)
def test_one_cluster_is_fedavg(method: Method) -> None:
    """Also when clusters are replaced by their parent's model after every round."""
    tiny.assert_same(tiny.simulate(method, 2)[0]["model"], tiny.simulate(FedAvg(), 2)[0]["model"])


def test_a_newcomer_joins_the_cluster_in_the_direction_of_its_update() -> None:
    server = KMeansClusters(k=2).server
    state = server.init(tiny.TASK, tiny.server_context(0))

    def step(state: Any, trained: Mapping[str, tiny.Weights], number: int) -> Any:
        total: Packet | None = None
        for device, weights in trained.items():
            part = Packet.join({state["members"].get(device, "parent"): Packet(weights)})
            total = add_upload(server.reducer, total, device, Packet(part.tensors, {"samples": 10.0}))
        return server.step(tiny.TASK, state, total, tiny.server_context(number))

    state = step(state, {device: noisy_upload(state["model"], int(device[1]) % 2, 3) for device in ("d0", "d1")}, 0)
    parent, models = state["model"], {name: kept["weights"] for name, kept in state["clusters"].items()}
    near = {
        name: torch.lerp(parent[name], value, 0.1) if name in PARAMETERS else value
        for name, value in models["1"].items()
    }
    state = step(state, {"d0": models["0"], "d7": near}, 1)
    assert state["members"] == {"d0": "0", "d1": "1", "d7": "1"}
    tiny.assert_same(state["clusters"]["1"]["weights"], near)
    tiny.assert_same(state["clusters"]["0"]["weights"], models["0"])


@pytest.mark.parametrize("method", [KMeansClusters(k=2), IFCA(k=2), Auxo(gain=0.01)])
def test_devices_that_did_not_train_make_no_cluster(method: Method) -> None:
    """Their batches may be too small for BatchNorm. The other four are of two groups, which become two clusters."""
    server = method.server
    state = server.init(tiny.TASK, tiny.server_context(0))
    total: Packet | None = None
    for place in range(6):
        weights = state["model"] if place < 2 else noisy_upload(state["model"], place % 2, place)
        part = Packet.join({"parent": Packet(weights)})
        up = Packet(part.tensors, {"samples": 0.0 if place < 2 else 10.0})
        total = add_upload(server.reducer, total, f"d{place}", up)
    assert total is not None
    state = server.step(tiny.TASK, state, total, tiny.server_context(0))
    assert len(state["clusters"]) == 2
    assert set(state["members"]) == {"d2", "d3", "d4", "d5"}


def test_projected_directions_keep_cosines() -> None:
    class Wide:
        parameters = ("w",)

    class WideTask:
        model = Wide()

    generator = torch.Generator().manual_seed(0)
    ends = torch.randn(3, 40_001, generator=generator, dtype=torch.float64)
    ends[2] = ends[0] + ends[1]
    task: Any = WideTask()
    found = directions(task, {"w": torch.zeros(40_001)}, [Packet({"w": end}) for end in ends])
    assert found.shape == (3, MAX_DIRECTION)
    torch.testing.assert_close(found @ found.T, torch.corrcoef(ends), atol=0.05, rtol=0)


@pytest.fixture(scope="module")
def ifca_run(tmp_path_factory: pytest.TempPathFactory) -> ug.Result:
    out = tmp_path_factory.mktemp("ifca")
    return ug.run("ifca", options={"k": 3}, model="logistic", clients=6, rounds=2, out=str(out), progress=False)


def test_the_download_of_all_models_is_booked(ifca_run: ug.Result) -> None:
    rows = list(ifca_run.ledger.rows())
    one = 4 * (64 * 10 + 10)
    assert {row.bytes_down for row in rows if row.round == 1} == {one}
    assert {row.bytes_down for row in rows if row.round == 2} == {3 * one}
    assert all(row.flops > 1.2 * other.flops for row, other in zip(rows[6:], rows[:6], strict=True))


def test_every_cluster_is_evaluated(ifca_run: ug.Result) -> None:
    last = ifca_run.history[-1]
    assert all(0 <= last[f"accuracy/cluster-{number}"] <= 1 for number in range(3))
    assert all(0 <= device["accuracy"] <= 1 for device in ifca_run.clients)


@pytest.mark.parametrize("options", [{"k": 0}, {"k": 2, "parent_weight": 1.5}])
def test_wrong_options_are_refused(options: dict[str, Any], tmp_path: Path) -> None:
    with pytest.raises(InputError, match=f"method.{list(options)[-1]}"):
        ug.run("kmeans-clusters", options=options, out=str(tmp_path), progress=False)


def test_fewer_uploads_than_clusters(tmp_path: Path) -> None:
    settings: dict[str, Any] = {"model": "logistic", "clients": 3, "rounds": 2, "progress": False}
    result = ug.run("kmeans-clusters", options={"k": 9}, out=str(tmp_path), **settings)
    assert 1 <= sum(name.startswith("accuracy/cluster-") for name in result.history[-1]) <= 3
