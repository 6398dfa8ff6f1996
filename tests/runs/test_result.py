"""The result of a run, returned by the run and loaded later."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import undergrowth as ug
from undergrowth.core import InputError, Method
from undergrowth.data import load, partition_dataset
from undergrowth.learning import AveragingServer, GradientClient

from .objects import Own, dataset, digest, independent_digest, linear, normed

SUMMARY = {
    "run", "method", "data", "model", "seed", "rounds", "clients", "engine", "accuracy", "loss", "bytes_down",
    "bytes_up", "flops", "simulated_seconds", "joules", "peak_device_bytes", "wall_seconds", "clients_per_second",
    "model_digest",
}  # fmt: skip


def test_the_model_is_a_plain_module_in_evaluation_mode_that_reproduces_the_accuracy(run):
    result = run()
    test = partition_dataset(load("digits"), "iid", 4, 0).central_test()
    assert isinstance(result.model, nn.Module)
    assert not result.model.training
    with torch.no_grad():
        logits = result.model(test.x)
    assert float((logits.argmax(1) == test.y).double().mean()) == pytest.approx(result.accuracy, abs=1e-9)
    assert float(nn.functional.cross_entropy(logits, test.y)) == pytest.approx(result.loss, rel=1e-5)


def test_the_model_of_equal_devices_is_that_of_the_first_by_name_in_any_topology(run):
    """In the tree, devices 1 to 3 answer before device 0."""
    tree = {"nodes": {"server": {"devices": ["device-001", "device-002", "device-003"]}, "edge": {"devices": "rest"}}}
    star, below = (run(method="local", partition="iid", clients=4, rounds=1, topology=each) for each in ("star", tree))
    assert len({row["samples"] for row in star.clients}) == 1
    assert digest(star) == digest(below)


def test_buffers_of_the_model_come_back_too(run):
    result = run(data=dataset(), model=normed)
    assert int(result.model[1].num_batches_tracked) > 0
    assert digest(result) == independent_digest(result.model)


def test_the_digest_can_be_computed_without_the_package(run):
    result = run(method="fedadam", options={"server_lr": 0.1})
    assert digest(result) == independent_digest(result.model)


def test_totals_of_the_ledger_are_the_sums_of_its_rows(run):
    result = run(topology="tree:2x2", partition="iid")
    rows = list(result.ledger.rows())
    for name in ("bytes_down", "bytes_up", "flops", "joules"):
        assert getattr(result.ledger, name) == pytest.approx(sum(getattr(row, name) for row in rows))
        assert getattr(result.ledger, name) > 0
    assert result.ledger.peak_device_bytes == max(row.memory for row in rows) > 0
    assert result.ledger.simulated_seconds == pytest.approx(max(row.end for row in rows))
    assert result.history[-1]["bytes_up"] == result.ledger.bytes_up


def test_the_history_has_a_row_for_every_round(run):
    result = run(rounds=4)
    assert [row["round"] for row in result.history] == [1, 2, 3, 4]
    for name in ("accuracy", "loss", "simulated_seconds", "bytes_down", "bytes_up", "flops", "joules", "arrived"):
        values = [row[name] for row in result.history]
        assert all(isinstance(value, int | float) for value in values)
    seconds = [row["simulated_seconds"] for row in result.history]
    assert seconds == sorted(set(seconds))


def test_there_is_a_row_for_every_device(run):
    result = run(partition="iid")
    assert [row["device"] for row in result.clients] == [f"device-{number:03d}" for number in range(4)]
    for row in result.clients:
        assert 0 <= row["accuracy"] <= 1
        assert row["samples"] > 0
        assert row["rounds"] == 3
        assert row["tier"]
        assert row["bytes_up"] > 0
    assert sum(row["flops"] for row in result.clients) == pytest.approx(result.ledger.flops)


def test_the_summary_has_what_the_command_line_prints(run):
    result = run(seed=5)
    assert set(result.summary) == SUMMARY
    assert result.summary["run"] == result.run
    assert result.summary["seed"] == 5
    assert result.summary["clients"] == 4


@pytest.mark.parametrize("name", ["id", "beginning", "last"])
def test_a_run_can_be_loaded_again(run, out, name):
    run(seed=3)
    result = run()
    again = ug.load({"id": result.run, "beginning": result.run[:-1], "last": "last"}[name], out=out)
    assert again.run == result.run
    for field in ("accuracy", "loss", "history", "clients", "ledger", "summary", "notes"):
        assert getattr(again, field) == getattr(result, field)
    assert list(again.ledger.rows()) == list(result.ledger.rows())
    assert independent_digest(again.model) == digest(result)


def test_the_message_says_why_a_run_cannot_be_loaded(run, out):
    with pytest.raises(InputError, match=r"holds no runs; name the folder"):
        ug.load("last", out=out)
    result = run()
    with pytest.raises(InputError, match=rf"is not in .*did you mean '{result.run}'"):
        ug.load(f"x{result.run}", out=out)


def test_a_model_object_is_asked_for_again_when_a_run_is_loaded(run, out):
    result = run(data=dataset(), model=linear)
    assert isinstance(result.model, nn.Linear)
    with pytest.raises(InputError, match="pass it again"):
        _ = ug.load(result.run, out=out).model
    assert independent_digest(ug.load(result.run, out=out, model=linear).model) == digest(result)


@pytest.mark.parametrize("other", [lambda: nn.Linear(6, 4), lambda: nn.Sequential(linear()), nn.Identity])
def test_another_model_than_the_one_that_was_trained_is_refused(other, run, out):
    result = run(data=Own(), model=linear)
    with pytest.raises(InputError, match=rf"the stored weights of run '{result.run}' do not fit it, such as"):
        _ = ug.load(result.run, out=out, model=other).model


def test_everything_that_has_a_name_can_be_an_object(run):
    by_name = run(method="fedprox", options={"mu": 0.1})
    by_object = run(method=ug.methods.FedProx(mu=0.1), data=load("digits"))
    population = partition_dataset(load("digits"), "dirichlet:0.1", 4, 0)
    spread = run(method=ug.methods.FedProx(mu=0.1), data=population)
    assert digest(by_name) == digest(by_object) == digest(spread)


def test_a_population_of_the_users_own_is_used_as_it_is(run):
    result = run(data=Own(), model=linear, rounds=8)
    assert [row["device"] for row in result.clients] == ["phone-0", "phone-1", "phone-2", "phone-3"]
    assert [row["samples"] for row in result.clients] == [8, 12, 16, 20]
    assert result.data == "own"
    assert result.accuracy > 0.6


def test_a_method_needs_no_more_than_a_client_and_a_server(run):
    class Plain(Method):
        client = GradientClient()
        server = AveragingServer()

    result = run(method=Plain())
    assert digest(result) == digest(run(method="fedavg"))
    assert result.method == "plain"
