"""Edge cases of devices and data: none of them is an error."""

from __future__ import annotations

import math
import re

import pytest
import torch
from torch import nn

from undergrowth.core import Context, Model, Packet, Shard, Task
from undergrowth.data import PartitionedPopulation, partition_dataset
from undergrowth.learning import GradientClient
from undergrowth.runs.own_model import check_models

from .objects import CLASSES, FEATURES, Faulty, Own, WithFault, dataset, digest, linear, normed


def finite(result) -> bool:
    return all(torch.isfinite(value).all() for value in result.model.state_dict().values())


@pytest.mark.parametrize("topology", ["star", "tree:2x2"])
def test_a_device_with_no_sample_is_never_asked_and_still_listed(run, topology):
    result = run(data=Own(sizes=(8, 0, 12, 0)), model=linear, topology=topology)
    silent = [row for row in result.clients if row["samples"] == 0]
    assert [row["device"] for row in silent] == ["phone-1", "phone-3"]
    assert [row["rounds"] for row in silent] == [0, 0]
    assert not {row.child for row in result.ledger.rows()} & {"phone-1", "phone-3"}
    assert "2 of 4 devices have no sample" in result.notes


def test_devices_without_a_sample_do_not_change_what_the_others_learn(run):
    assert digest(run(data=Own(sizes=(8, 12)), model=linear)) == digest(run(data=Own(sizes=(8, 12, 0)), model=linear))


def test_an_edge_server_above_devices_without_samples_is_lost_in_every_round(run):
    result = run(data=Own(sizes=(8, 12, 0, 0)), model=linear, topology="tree:2x2")
    assert digest(result) == digest(run(data=Own(sizes=(8, 12)), model=linear))
    assert [row["lost"] for row in result.history] == [1, 1, 1]


def test_a_device_with_one_sample_takes_part(run):
    result = run(data=Own(sizes=(1, 20)), model=linear)
    assert result.clients[0]["samples"] == 1
    assert result.clients[0]["rounds"] == 3
    assert finite(result)


def test_a_model_that_cannot_train_on_one_sample_leaves_it_out(run):
    result = run(data=Own(sizes=(1, 20)), model=normed)
    assert [client["rounds"] for client in result.clients] == [3, 3]
    one_over, whole = (run(data=Own(sizes=(size, 20)), model=normed, batch=10) for size in (21, 20))
    assert one_over.ledger.flops == whole.ledger.flops


def test_a_device_with_one_class_takes_part(run):
    def one_class(shard: Shard) -> Shard:
        return Shard(shard.x, torch.zeros_like(shard.y))

    result = run(data=Own(changes={"phone-1": one_class}), model=linear)
    assert result.clients[1]["rounds"] == 3


def test_a_batch_larger_than_the_data_is_all_the_data(run):
    population = Own(sizes=(8, 20))
    result = run(data=population, model=linear, batch=10_000)
    assert digest(result) == digest(run(data=population, model=linear, batch=20))


def test_a_class_that_nobody_has_is_allowed(run):
    x, y = dataset().x, dataset().y % 2
    result = run(data=dataset(x=x, y=y), model=linear, partition="dirichlet:0.5")
    assert result.accuracy < 1
    assert finite(result)


def test_as_many_devices_as_samples_are_allowed(run):
    result = run(data=dataset(12), clients=12, partition="iid", model=linear, rounds=1)
    assert [row["samples"] for row in result.clients] == [1] * 12
    assert [row["accuracy"] for row in result.clients] == [None] * 12  # no test samples


def test_an_extreme_partition_leaves_devices_without_samples(run):
    result = run(data=dataset(30), clients=20, partition="dirichlet:0.01", model=linear, rounds=1)
    assert sum(row["samples"] == 0 for row in result.clients) > 5
    assert any("devices have no sample" in note for note in result.notes)


@pytest.mark.parametrize("method", ["fedavg", "fedavgm", "fedadam", "local", "central"])
def test_a_learning_rate_that_diverges_is_refused_round_by_round_and_the_run_ends(run, method):
    result = run(method=method, data=Own(), model=normed, lr=1e30, epochs=3, if_all_refused="continue")
    rows = list(result.ledger.rows())
    assert len(result.history) == 3
    assert any(row.outcome == "refused" and "not finite" in row.reason for row in rows)
    assert any("refused the update of" in note and "not finite" in note for note in result.notes)
    assert sum(row["refused"] for row in result.history) == sum(row.outcome == "refused" for row in rows)
    assert finite(result)


def test_a_round_without_a_usable_update_is_abandoned_and_the_model_stays(run):
    result = run(data=Own(sizes=(8,)), model=normed, lr=1e30, epochs=5, if_all_refused="continue")
    assert [row["arrived"] for row in result.history] == [0, 0, 0]
    assert "round 1: abandoned, no usable update came back" in result.notes
    assert len({row["accuracy"] for row in result.history}) == 1


FAULTS = {
    "nan": (lambda up: Packet({k: v * float("nan") for k, v in up.tensors.items()}, up.scalars), "not finite"),
    "infinite": (lambda up: Packet({k: v + float("inf") for k, v in up.tensors.items()}, up.scalars), "not finite"),
    "wrong shape": (lambda up: Packet({k: v[:1] for k, v in up.tensors.items()}, up.scalars), "has shape"),
    "unknown tensor": (lambda up: Packet({"extra": torch.ones(1)}, up.scalars), "is not a tensor of the model"),
    "no tensor": (lambda up: Packet({}, up.scalars), "no tensor"),
    "nan for a weight": (lambda up: Packet(up.tensors, {"samples": float("nan")}), "'samples' is nan"),
    "no weight": (lambda up: Packet(up.tensors), "it lacks 'samples'"),
}


@pytest.mark.parametrize(("fault", "words"), FAULTS.values(), ids=FAULTS.keys())
@pytest.mark.parametrize("topology", ["star", "tree:2x2"])
def test_one_bad_update_is_named_in_the_store_and_the_others_count(run, topology, fault, words):
    method = WithFault(Faulty(device="phone-2", fault=fault))
    result = run(method=method, data=Own(), model=linear, topology=topology)
    refused = [row for row in result.ledger.rows() if row.outcome == "refused"]
    assert [(row.child, row.round) for row in refused] == [("phone-2", 1), ("phone-2", 2), ("phone-2", 3)]
    assert all(words in row.reason for row in refused)
    assert [row["rounds"] for row in result.clients] == [3, 3, 0, 3]
    assert result.clients[2]["refused"] == 3
    without = run(data=Own(sizes=(8, 12, 0, 20)), model=linear, topology=topology)
    assert digest(result) == digest(without)
    if topology == "star":
        assert any(note.startswith("round 1: refused the update of phone-2") for note in result.notes)


def test_a_device_with_nan_samples_is_refused_and_the_others_train(run):
    def spoilt(shard: Shard) -> Shard:
        return Shard(shard.x * float("nan"), shard.y)

    result = run(data=Own(changes={"phone-0": spoilt}), model=linear)
    assert [row["rounds"] for row in result.clients] == [0, 3, 3, 3]
    assert finite(result)


def test_a_population_of_the_package_can_be_passed_as_an_object(run):
    population = partition_dataset(dataset(), "iid", 3, 0)
    assert isinstance(population, PartitionedPopulation)
    assert len(run(data=population, model=linear).clients) == 3


def test_a_diverged_model_is_noted_once(run):
    result = run(method="fedavgm", options={"server_lr": 1e30}, lr=1e8, model="logistic", clients=3, rounds=3)
    assert not math.isfinite(result.loss)
    (note,) = (note for note in result.notes if "diverged" in note)
    assert re.match(r"round \d: the loss is (inf|nan): training has diverged; a smaller train.lr", note)


@pytest.mark.parametrize(("split", "samples"), [(None, [33, 3, 0]), ("head", [33, 3, 1])])
def test_all_samples_count_where_the_part_that_is_trained_can_take_them(split, samples):
    """Batch normalisation of single values refuses one sample, but only in the part that is trained."""
    sizes = (33, 3, 1)
    task = Task(Model(normed), CLASSES)
    first = Own(sizes=sizes).train("phone-0")
    task = check_models(task, Shard(first.x[:1], first.y[:1]))
    down, client = Packet(task.model.initial(0)), GradientClient(split=split, batch=32)
    for number, size in enumerate(sizes):
        shard = Own(sizes=sizes).train(f"phone-{number}")
        up, _ = client.local(task, down, shard, {}, Context(0, "a", 0))
        assert up.scalars["samples"] == samples[number] and len(shard) == size
        assert bool((up.tensors["3.weight"] != down.tensors["3.weight"]).any()) is (samples[number] > 0)


def dropping() -> nn.Module:
    return nn.Sequential(nn.Linear(FEATURES, 16), nn.Dropout(0.5), nn.Linear(16, CLASSES))


def test_dropout_draws_the_same_on_every_engine_and_leaves_torchs_state_alone(run):
    before = torch.get_rng_state()
    serial, again, vector, processes = (
        run(data=Own(), model=dropping, engine=engine) for engine in ("serial", "serial", "vector", "processes")
    )
    assert torch.equal(torch.get_rng_state(), before)
    assert digest(serial) == digest(again) == digest(vector)
    assert vector.history[-1]["not_stacked"] == len(vector.clients)
    for name, value in serial.model.state_dict().items():
        torch.testing.assert_close(processes.model.state_dict()[name], value)
    assert digest(serial) != digest(run(data=Own(), model=dropping, seed=1))
