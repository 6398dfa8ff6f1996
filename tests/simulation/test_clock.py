"""The fleet's clock: every figure in the ledger is a traced and priced one, and deadlines cut what they cut."""

from __future__ import annotations

import math
from pathlib import Path
from statistics import mean

import pytest
import torch

import undergrowth as ug
from undergrowth.core import Model, Packet, Task, Train
from undergrowth.data import load, partition_dataset
from undergrowth.devices import Tracer, build_fleet, price_work
from undergrowth.exchange import Entry
from undergrowth.methods import FedAvg, FedBuff, FedFSC, FedProx
from undergrowth.models import builder
from undergrowth.runs.config import parse_experiment
from undergrowth.runs.federation_builder import federate
from undergrowth.simulation import Timing

from ..fleet_files import fleet_file
from ..runs.objects import Own, linear

SEED = 4


@pytest.fixture
def out(tmp_path: Path) -> str:
    return str(tmp_path / "runs")


@pytest.fixture(scope="module")
def digits():
    return partition_dataset(load("digits"), "dirichlet:0.5", 8, SEED)


def traced(population, method, **train):
    """What a job of each device costs, found without the clock: its work, and the bytes that go down."""
    task = Task(Model(builder("logistic", population.shape, population.classes)), population.classes, Train(**train))
    down = Packet(task.model.initial(0))
    tracer = Tracer(task, method.client, population.shape)
    return {device: tracer.work(down, population.size(device)) for device in population.devices}, down.nbytes


def rows_of(result: ug.Result, outcome: str = "arrived") -> list[Entry]:
    return [row for row in result.ledger.rows() if row.outcome == outcome]


@pytest.mark.parametrize("name", ["uniform", "reft-5", "mixed-edge", "phones", "cross-silo"])
@pytest.mark.parametrize("method", [FedAvg(), FedBuff(buffer=4, concurrency=8)], ids=["fedavg", "fedbuff"])
def test_every_figure_in_the_ledger_is_the_price_of_the_traced_work(name, method, digits, out):
    result = ug.run(method=method, data=digits, model="logistic", fleet=name, rounds=2, epochs=2, seed=SEED, out=out)
    work, bytes_down = traced(digits, method, epochs=2)
    devices = build_fleet(name, digits.devices, SEED)
    rows = rows_of(result)
    assert len(rows) >= 8
    for row in rows:
        job = work[row.child]
        cost = price_work(devices.profile(row.child), job, bytes_down, job.bytes_up)
        assert (row.bytes_down, row.bytes_up) == (bytes_down, job.bytes_up)
        assert (row.flops, row.memory, row.joules) == (job.flops, job.memory, cost.joules)
        assert (row.seconds_down, row.seconds_compute, row.seconds_up) == cost[:3]


def test_energy_is_power_times_the_time_it_is_drawn(out):
    result = ug.run(data=Own(), model=linear, fleet="phones", rounds=1, seed=SEED, out=out)
    devices = build_fleet("phones", Own().devices, SEED)
    for row in result.ledger.rows():
        profile = devices.profile(row.child)
        radio = row.bytes_down / profile.down + row.bytes_up / profile.up
        assert row.joules == pytest.approx(profile.compute_watts * row.seconds_compute + profile.radio_watts * radio)
        assert row.seconds_compute == pytest.approx(row.flops / (profile.flops * profile.share))
        assert row.seconds_down + row.seconds_up == pytest.approx(radio + 2 * profile.latency)


# Deadlines ---------------------------------------------------------------------------------------------------


def slow_and_fast(folder: Path) -> str:
    """The second of two devices computes a hundred times slower."""
    return fleet_file(folder, fast={"flops": 1e7}, slow={"flops": 1e5})


def whole_and_hurried(method, tmp_path, out, share: float) -> tuple[Entry, ug.Result, float]:
    """The slow device's row without a deadline, and a run whose deadline leaves it that share of its computing."""
    settings = {
        "method": method, "data": Own(sizes=(40, 40)), "model": linear, "batch": 4, "rounds": 2, "out": out,
        "fleet": slow_and_fast(tmp_path),
    }  # fmt: skip
    whole = next(row for row in rows_of(ug.run(**settings)) if row.child == "phone-1")
    deadline = whole.seconds_down + share * whole.seconds_compute + whole.seconds_up
    return whole, ug.run(**settings, deadline=deadline), deadline


@pytest.mark.parametrize(("share", "steps"), [(0.55, 5), (0.99, 9), (0.101, 1)])
def test_fedprox_takes_what_a_slow_device_has_by_the_deadline(share, steps, tmp_path, out):
    whole, result, deadline = whole_and_hurried("fedprox", tmp_path, out, share)
    rows = [row for row in rows_of(result) if row.child == "phone-1"]
    assert [row["arrived"] for row in result.history] == [2, 2]
    for row in rows:
        assert row.seconds_compute == pytest.approx(whole.seconds_compute * steps / 10)
        assert row.flops == pytest.approx(whole.flops * steps / 10)
        assert row.joules == pytest.approx(whole.joules - 2.0 * whole.seconds_compute * (1 - steps / 10))
        assert row.bytes_up == whole.bytes_up
        assert row.end - row.start <= deadline
    assert result.ledger.simulated_seconds <= 2 * deadline


def test_partial_work_is_the_first_steps_of_the_whole_work(tmp_path, out):
    _, result, _ = whole_and_hurried("fedprox", tmp_path, out, 0.35)
    federation = federate(
        parse_experiment({"train": {"rounds": 2, "batch": 4}}), FedProx(), Own(sizes=(40, 40)), linear
    )
    world, root = federation.world, federation.driver.root
    root.start()
    for _ in range(2):
        for send in root.advance():
            if hasattr(send, "packet"):
                context = ug.core.Context(0, *send.id)
                limit = {"phone-0": None, "phone-1": 3}[send.child]
                shard = world.shards.train(send.child)
                up, _ = world.client.local(world.task, send.packet, shard, {}, context, limit)
                root.receive(ug.core.Answer(send.id, up))
    root.advance()
    torch.testing.assert_close(result.model.state_dict(), dict(root.state["model"]))


def test_fedprox_drops_who_cannot_do_a_single_step(tmp_path, out):
    _, result, deadline = whole_and_hurried("fedprox", tmp_path, out, 0.05)
    assert [row.child for row in rows_of(result, "late")] == ["phone-1"] * 2
    assert result.ledger.simulated_seconds == pytest.approx(2 * deadline)


def test_fedavg_drops_who_is_late_and_books_what_it_did(tmp_path, out):
    whole, result, deadline = whole_and_hurried("fedavg", tmp_path, out, 0.5)
    late = rows_of(result, "late")
    assert [row.child for row in late] == ["phone-1"] * 2
    for row in late:
        assert row.end - row.start == pytest.approx(deadline)
        done = (deadline - whole.seconds_down) / whole.seconds_compute
        assert row.flops == pytest.approx(whole.flops * done)
        assert row.seconds_up == 0.0 and row.bytes_up == 0
        assert row.bytes_down == whole.bytes_down
        assert row.joules == pytest.approx(2.0 * row.seconds_compute + 1.0 * row.bytes_down / 1e6)
    assert [row["late"] for row in result.history] == [1, 1]
    assert result.ledger.simulated_seconds == pytest.approx(2 * deadline)


def test_the_loss_that_partial_work_reports_is_the_mean_over_the_steps_it_did():
    settings = {"train": {"sampler": "oort", "batch": 4}}
    federation = federate(parse_experiment(settings), FedProx(mu=0.0), Own(sizes=(40,)), linear)
    world = federation.world
    task, shard, down = world.task, world.shards.train("phone-0"), Packet(world.task.model.initial(0))
    context = ug.core.Context(0, "phone-0", 0)
    up, _ = world.client.local(task, down, shard, {}, context, 1)
    rows = torch.randperm(40, generator=context.generator("order"))[:4]
    logits = task.model(down.tensors, shard.x[rows])
    assert up.scalars["loss"] == pytest.approx(torch.nn.functional.cross_entropy(logits, shard.y[rows]).item())


def test_a_deadline_that_most_devices_miss_costs_fedavg_accuracy(out):
    settings = {"clients": 20, "partition": "dirichlet:0.1", "model": "logistic", "rounds": 10, "fleet": "mixed-edge"}
    without, hurried = [], []
    for seed in range(3):
        free = ug.run(**settings, seed=seed, out=out)
        times = sorted(row.end - row.start for row in rows_of(free) if row.round == 1)
        deadline = times[math.ceil(0.4 * len(times)) - 1] * 1.001  # 60 % take longer
        pressed = ug.run(**settings, seed=seed, deadline=deadline, out=out)
        assert pressed.history[0]["late"] >= 0.55 * len(times)
        without.append(free.accuracy)
        hurried.append(pressed.accuracy)
    assert mean(hurried) < mean(without) - 0.1


# Memory ------------------------------------------------------------------------------------------------------


def test_a_device_that_cannot_hold_the_work_is_lost_and_told_both_figures(tmp_path, out):
    small = fleet_file(tmp_path, large={}, small={"memory": 20_000})
    settings = {"partition": "iid", "clients": 2, "model": "logistic", "rounds": 2, "fleet": small, "out": out}
    result = ug.run(**settings)
    lost = rows_of(result, "lost")
    assert {row.round for row in lost} == {1, 2} and {row.child for row in lost} == {lost[0].child}
    needs = next(row.memory for row in rows_of(result))
    assert needs > 20_000
    assert {row.reason for row in lost} == {f"the work needs {needs / 1e6:.2f} MB and it has 0.02 MB"}
    assert all((row.flops, row.joules, row.end - row.start, row.bytes_up) == (0.0, 0.0, 0.0, 0) for row in lost)
    assert [row["lost"] for row in result.history] == [1, 1]


def test_what_the_runtime_takes_is_missing_for_the_work(tmp_path, out):
    """The ledger books the memory of the training; the runtime only decides whether the device can hold it."""
    busy = fleet_file(tmp_path, large={}, small={"memory": 300e6, "runtime": 299.99e6})
    result = ug.run(partition="iid", clients=2, model="logistic", rounds=1, fleet=busy, out=out)
    (lost,) = rows_of(result, "lost")
    needs = f"the work needs {lost.memory / 1e6:.2f} MB beside 299.99 MB of the runtime and it has 300.00 MB"
    assert lost.reason == needs and result.ledger.peak_device_bytes == lost.memory < 1e6


def test_what_was_done_in_the_first_seconds_of_a_job():
    job = Timing(2.0, 4.0, 1.0, flops=8.0, memory=5, joules=14.0, joules_down=1.0, joules_up=3.0)
    assert job.seconds == 7.0
    assert job.cut(0.0)[:4] == (0.0, 0.0, 0.0, 0.0)
    assert job.cut(1.0)[:4] == (1.0, 0.0, 0.0, 0.0)
    assert job.cut(3.0)[:4] == (2.0, 1.0, 0.0, 2.0)
    assert job.cut(6.5)[:4] == (2.0, 4.0, 0.5, 8.0)
    drawn = {0.0: 0.0, 1.0: 0.5, 3.0: 3.5, 6.0: 11.0, 6.5: 12.5, 7.0: 14.0}  # by phase: 0.5, 2.5 and 3 watts
    assert {seconds: job.cut(seconds).joules for seconds in drawn} == drawn
    assert [job.seconds_on(joules) for joules in drawn.values()] == list(drawn)
    for fails, late in ((6.5, 3.0), (1.0, 0.5)):  # a device that would fail after the deadline
        assert job.cut(fails).cut(late) == job.cut(late)
    assert job.cut(7.0) == job
    assert [job.cut(seconds).received for seconds in (0, 1, 2, 7)] == [0.0, 0.5, 1.0, 1.0]
    assert Timing().cut(0.0).seconds == 0


def test_who_looks_at_labels_is_priced_with_the_labels_it_has(digits, out):
    """A few-shot update takes as many samples of every class as there are: two devices of one size cost differently."""
    method = FedFSC(shots=4, few_shot_epochs=3, few_shot_batch=1)
    federation = federate(parse_experiment({"method": "fedavg", "model": "mlp", "run": {"out": out}}), method, digits)
    down = Packet(federation.task.model.initial(0), tags={"updates": "few-shot"})
    drawn = set()
    for device in digits.devices:
        work, _ = federation.clock.plain_timing(device, down, down.nbytes, None)
        counts = torch.bincount(digits.train(device).y)
        assert work.samples == work.steps == 3 * int(counts.clamp_max(4).sum())
        drawn.add(work.samples)
    assert len(drawn) > 3
