"""The ledger against formulas: sums, times, energy, and what the sources say that communication costs."""

from __future__ import annotations

import math
from collections.abc import Mapping

import pytest
import torch
from torch import nn
from torch.utils.flop_counter import FlopCounterMode

import undergrowth as ug
from undergrowth.devices import build_fleet
from undergrowth.exchange import Entry

from .objects import Own, linear, normed

NUMBER = 8  # bytes of a scalar: a device says how many samples it has
METHODS = {
    "fedavg": {}, "fedprox": {}, "fedavgm": {}, "fedadam": {}, "fedyogi": {}, "fedadagrad": {},
    "fedasync": {}, "fedbuff": {"buffer": 2}, "local": {},
}  # fmt: skip
SUMS = {
    "bytes_down": "bytes_down", "bytes_up": "bytes_up", "flops": "flops", "joules": "joules",
    "compute_seconds": "seconds_compute",
}  # fmt: skip


def parameters(model: nn.Module) -> int:
    return sum(parameter.numel() for parameter in model.parameters())


def by_round(result: ug.Result) -> Mapping[int, list[Entry]]:
    rows: dict[int, list[Entry]] = {}
    for row in result.ledger.rows():
        rows.setdefault(row.round, []).append(row)
    return rows


# Sums --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("method", "options"), METHODS.items())
@pytest.mark.parametrize("topology", ["star", "tree:2x2"])
def test_totals_are_the_sums_of_the_rows(run, method, options, topology):
    result = run(method=method, options=options, data=Own(), model=linear, fleet="mixed-edge", topology=topology)
    rows = list(result.ledger.rows())
    for total, column in SUMS.items():
        assert getattr(result.ledger, total) == pytest.approx(sum(getattr(row, column) for row in rows))
    assert result.ledger.peak_device_bytes == max(row.memory for row in rows)


@pytest.mark.parametrize("trouble", [{}, {"deadline": 0.025}, {"dropout": 0.3}, {"failure": 0.5}, {"quorum": 0.5}])
def test_the_history_adds_up_the_rounds_and_devices_add_up_to_the_totals(run, trouble):
    result = run(data=Own(), model=linear, fleet="phones", rounds=5, **trouble)
    rows = by_round(result)
    for line in result.history:
        so_far = [row for number in range(1, line["round"] + 1) for row in rows.get(number, [])]
        for name in ("bytes_down", "bytes_up", "flops", "joules"):
            assert line[name] == pytest.approx(sum(getattr(row, name) for row in so_far))
        outcomes = [row.outcome for row in rows.get(line["round"], [])]
        assert [line[name] for name in ("arrived", "lost", "refused", "late")] == [
            outcomes.count(name) for name in ("arrived", "lost", "refused", "late")
        ]
    for name in ("bytes_down", "bytes_up", "flops", "joules", "compute_seconds"):
        devices = sum(client.get(name, 0) for client in result.clients)
        assert devices == pytest.approx(getattr(result.ledger, name))


def test_learning_efficiency_is_best_accuracy_over_all_the_time_that_devices_computed(run):
    """As Shi defines it: the best accuracy over the seconds of local work of all devices."""
    result = run(data=Own(), model=linear, fleet="reft-5", epochs=2)
    devices = build_fleet("reft-5", Own().devices, 0)
    seconds = sum(row.flops / devices.profile(row.child).achieved_flops for row in result.ledger.rows())
    best = max(row["accuracy"] for row in result.history)
    assert best / result.ledger.compute_seconds == pytest.approx(best / seconds)
    assert result.ledger.compute_seconds > 0


# Time --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("method", ["fedavg", "fedprox", "fedadam"])
@pytest.mark.parametrize("name", ["uniform", "reft-5", "mixed-edge", "phones", "cross-silo"])
def test_a_synchronous_run_lasts_as_long_as_the_slowest_device_of_every_round(run, method, name):
    result = run(method=method, data=Own(), model=linear, fleet=name, sample=0.75, rounds=4)
    slowest = [
        max(row.seconds_down + row.seconds_compute + row.seconds_up for row in rows)
        for _, rows in sorted(by_round(result).items())
    ]
    assert result.ledger.simulated_seconds == pytest.approx(sum(slowest))
    assert [row["simulated_seconds"] for row in result.history] == pytest.approx(
        [sum(slowest[:count]) for count in range(1, 5)]
    )


def test_with_a_deadline_a_round_in_which_somebody_is_late_lasts_exactly_so_long(run):
    rows = list(run(data=Own(sizes=(8, 12, 16, 4000)), model=linear, rounds=1).ledger.rows())
    times = sorted(row.end for row in rows)
    deadline = (times[-1] + times[-2]) / 2
    result = run(data=Own(sizes=(8, 12, 16, 4000)), model=linear, rounds=3, deadline=deadline)
    assert result.ledger.simulated_seconds == pytest.approx(3 * deadline)
    assert [row["late"] for row in result.history] == [1, 1, 1]


def test_two_epochs_cost_twice_the_work_and_not_a_byte_more(run):
    one, two = (run(data=Own(), model=linear, epochs=epochs).ledger for epochs in (1, 2))
    assert two.flops == pytest.approx(2 * one.flops)
    assert two.compute_seconds == pytest.approx(2 * one.compute_seconds)
    assert (two.bytes_up, two.bytes_down) == (one.bytes_up, one.bytes_down)


# What the sources say ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("method", ["fedavg", "fedprox", "fedavgm", "fedadam", "fedyogi", "fedadagrad"])
@pytest.mark.parametrize(("clients", "sample"), [(4, 1.0), (10, 0.5), (10, 0.3)])
def test_source_002_a_1_communication_of_training_the_whole_model(run, method, clients, sample):
    """Equation 9: 2·(LL_out·LL_in + P)·K·R·F·32 bit. It leaves out the bias of the linear layer."""
    rounds = 2
    result = run(method=method, clients=clients, sample=sample, model="cnn", partition="iid", rounds=rounds)
    head = [layer for layer in result.model.modules() if isinstance(layer, nn.Linear)][-1]
    base = parameters(result.model) - head.weight.numel()
    exact = 2 * (head.out_features * head.in_features + base) * clients * rounds * sample * 32 / 8
    uploads = round(clients * sample) * rounds
    assert result.ledger.bytes_down + result.ledger.bytes_up == pytest.approx(exact + NUMBER * uploads, abs=1e-6)


def test_source_002_a_1_a_head_alone_weighs_what_equation_8_says(run):
    """Equation 8: 2·LL_out·LL_in·K·R·F·32 bit: a linear model is all head. The ledger also has its bias."""
    result = run(clients=5, model="logistic", partition="iid", rounds=4, sample=0.4)
    (head,) = (layer for layer in result.model.modules() if isinstance(layer, nn.Linear))
    formula = 2 * head.out_features * head.in_features * 5 * 4 * 0.4 * 32 / 8
    bias = 2 * head.out_features * 8 * 32 / 8
    assert result.ledger.bytes_down + result.ledger.bytes_up == pytest.approx(formula + bias + NUMBER * 8)


def test_source_002_a_1_computation_of_training_the_whole_model_is_three_forward_passes(run):
    """Equation 10: 3·R·E·N_s forward passes; the first layer needs no gradient of its input, so a little less."""
    rounds, epochs = 2, 3
    result = run(clients=4, model="cnn", partition="iid", rounds=rounds, epochs=epochs, batch=16)
    forward = forward_flops(result.model)
    samples = sum(client["samples"] for client in result.clients)
    formula = 3 * rounds * epochs * samples * forward
    first = next(layer for layer in result.model.modules() if isinstance(layer, nn.Conv2d))
    saved = rounds * epochs * samples * 2 * first.weight.numel() * 64  # 8 × 8 places of the first convolution
    assert formula - saved <= result.ledger.flops * (1 + 1e-9)
    assert result.ledger.flops <= formula


def forward_flops(model: nn.Module) -> int:
    with FlopCounterMode(display=False) as counter:
        model(torch.zeros(1, 1, 8, 8))
    return int(counter.get_total_flops())


@pytest.mark.parametrize("links", [{}, {"up": "fp16"}, {"up": "fp16", "down": "bf16"}])
@pytest.mark.parametrize(("clients", "rounds"), [(3, 2), (5, 1)])
def test_source_003_equation_6_1_bandwidth_of_methods_that_send_parameters(run, links, clients, rounds):
    """Bandwidth = C·R·W·B, and W·B for each communication of each client: B is that of the link's codec."""
    result = run(clients=clients, rounds=rounds, model="cnn", partition="iid", links=links)
    width = parameters(result.model)
    up, down = (2 if direction in links else 4 for direction in ("up", "down"))
    for row in result.ledger.rows():
        assert row.bytes_down == width * down
        assert row.bytes_up == width * up + NUMBER
    assert result.ledger.bytes_down == clients * rounds * width * down
    assert result.ledger.bytes_up == clients * rounds * (width * up + NUMBER)


@pytest.mark.parametrize("model", [linear, normed])
def test_buffers_travel_too_and_are_what_the_formulas_leave_out(run, model):
    result = run(data=Own(), model=model, rounds=2)
    state = result.model.state_dict()
    whole = sum(value.numel() * value.element_size() for value in state.values())
    assert result.ledger.bytes_down == 4 * 2 * whole
    assert whole >= 4 * parameters(result.model)
    assert (whole == 4 * parameters(result.model)) == (model is linear)


def test_source_003_equation_6_2_a_method_that_sends_no_parameters_has_no_bandwidth_of_them(run):
    """Equation 6.1 does not apply where no W is sent; devices that train alone send numbers only."""
    result = run(method="local", clients=4, rounds=3, model="cnn")
    assert result.ledger.bytes_up == result.ledger.bytes_down == 4 * 3 * NUMBER


def test_an_asynchronous_method_pays_for_every_model_sent_and_every_change_that_came(run):
    result = run(method="fedasync", clients=6, options={"concurrency": 3}, rounds=9, fleet="mixed-edge")
    width = 4 * parameters(result.model)
    rows = list(result.ledger.rows())
    arrived = sum(row.outcome == "arrived" for row in rows)
    assert all(row.bytes_down == width for row in rows if row.outcome == "arrived")
    assert all(row.bytes_down <= width for row in rows)  # who is still out may not have got all of it
    assert result.ledger.bytes_up == arrived * (width + NUMBER)
    assert len(rows) - arrived == sum(row.outcome == "late" for row in rows) == 2  # still out at the end
    assert math.isclose(result.ledger.simulated_seconds, result.history[-1]["simulated_seconds"])
