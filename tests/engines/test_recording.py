"""Stacks of clients in recorded steps.

Here a recording runs the plain step, on buffers like those of a real one, so that this can be tested without a GPU.
"""

from __future__ import annotations

import warnings
from typing import Any

import pytest
import torch

import undergrowth as ug
from undergrowth.core import Context, Model, Packet, Task, Train
from undergrowth.engines import Job, SerialEngine, World
from undergrowth.engines.vector import recording, stack
from undergrowth.engines.vector.finished_stack import FinishedStack
from undergrowth.engines.vector.recording import Recording
from undergrowth.engines.vector.stack_runner import StackRunner
from undergrowth.engines.vector.stack_size import StackSize
from undergrowth.methods import METHODS, FedAvg, FedFSC, FedProx

from .. import conformance
from ..double_precision import double_model
from .conftest import FREE, HELD
from .test_vector import DATA, POPULATION, check_same, outcomes

COUNTING = {"fedmezo"}  # what a step does depends on how many came before, so no step can be replayed for another


def opened(engine: Any, **train: Any) -> Any:
    """Opens the engine for a small federation; returns a function that gives the jobs of a round."""
    functional = Model(double_model(DATA, "logistic"))
    task = Task(functional, DATA.classes, Train(**{"batch": 16, "lr": 0.05, "rounds": 50, **train}))
    engine.open(World(task, FedAvg().client, {"server": FedAvg().server}, POPULATION))
    down = Packet(functional.initial(3))
    return lambda number: [Job("server", name, down, Context(1, name, number)) for name in POPULATION.devices]


@pytest.mark.parametrize(
    ("method", "model", "train"),
    [
        (FedAvg(), "logistic", {"epochs": 2}),
        (FedAvg(), "cnn", {}),
        (FedProx(mu=0.1), "mlp", {"momentum": 0.5, "weight_decay": 1e-3, "epochs": 2}),
        (FedAvg(), "cnn", {"optimiser": "adamw", "weight_decay": 1e-3, "lr": 1e-3}),
        (FedAvg(), "wrn-10-1", {"momentum": 0.5, "batch": 24, "lr": 1e-3}),
        (FedFSC(few_shot_epochs=2), "wrn-10-1", {}),
        (FedAvg(), "mlp", {"batch": 10**9, "epochs": 4}),
    ],
    ids=["logistic", "cnn", "momentum", "adamw", "batch normalisation", "two updates", "full batches"],
)
def test_recorded_steps_give_what_the_serial_engine_gives(as_on_a_gpu, made, method, model, train):
    check_same(outcomes(SerialEngine(), method, model, **train), outcomes(as_on_a_gpu, method, model, **train))
    assert as_on_a_gpu.facts() == {"stacked": 7.0, "not_stacked": 0.0}
    assert {1, 2, 4} & set(made) and len(made) > 1


@pytest.mark.parametrize("method", METHODS)
def test_recorded_steps_of_every_method(as_on_a_gpu, made, method, tmp_path):
    rounds = 3 if method == "fedsgd" else 2  # it has one step a round, and the first ones are not recorded

    def ended(engine: str) -> ug.Result:
        raw = conformance.experiment(method, tmp_path, engine=engine)
        return conformance.run({**raw, "train": {"rounds": rounds, "lr": 0.01, "batch": 8}})

    serial, vector = ended("serial"), ended("vector")
    conformance.assert_close(conformance.weights(vector), conformance.weights(serial))
    assert list(vector.ledger.rows()) == list(serial.ledger.rows())
    assert bool(made) == (method not in COUNTING) and vector.history[-1]["not_stacked"] == 0


@pytest.mark.parametrize(("batch", "expected"), [(16, {16}), (100, {100}), (10**9, {128})])
@pytest.mark.parametrize("client_bytes", [1, FREE // 5])
def test_batches_are_as_wide_as_the_largest_device_of_a_round_needs(
    as_on_a_gpu, monkeypatch, batch, expected, client_bytes
):
    """Whatever the memory has room for: here for all clients at once, or for one."""
    assert 64 < max(POPULATION.size(name) for name in POPULATION.devices) <= 128
    monkeypatch.setattr(torch.cuda, "max_memory_allocated", lambda *_: 2 * client_bytes)
    monkeypatch.setattr(stack, "FIRST_WAVE", 32)  # all jobs in one wave
    plain, widths = Recording.step, set()

    def step(self, batches, number):
        widths.add((self.weights.shape[2], batches.width))
        plain(self, batches, number)

    monkeypatch.setattr(Recording, "step", step)
    check_same(
        outcomes(SerialEngine(), FedAvg(), "logistic", batch=batch),
        outcomes(as_on_a_gpu, FedAvg(), "logistic", batch=batch),
    )
    assert widths == {(width, width) for width in expected}


def test_recordings_of_other_widths_use_the_same_carries(as_on_a_gpu, made, monkeypatch):
    """In one round the largest device takes part, in the next one only smaller ones, and then all again."""
    monkeypatch.setattr(stack, "FIRST_WAVE", 32)  # all jobs in one wave

    def last(engine: Any) -> dict[str, Any]:
        jobs = opened(engine, batch=10**9, epochs=4)(0)
        by_size = sorted(jobs, key=lambda job: POPULATION.size(job.device))
        for some in (by_size, by_size[:3], by_size):
            found = {",".join(outcome.sent): outcome for outcome in engine.run(some)}
        return found

    check_same(last(SerialEngine()), last(as_on_a_gpu))
    (recordings,) = as_on_a_gpu.stack_runner._recordings._recordings.values()
    assert {width for _, width in recordings} == {64, 128} and made
    assert len({each.tensors[0].data_ptr() for each in recordings.values()}) == 1


def test_clients_with_wider_batches_than_measured_take_more_memory(monkeypatch):
    for name, answer in {"memory_allocated": 0, "max_memory_allocated": 2 << 27, "mem_get_info": (FREE, FREE),
                         "memory_stats_as_nested_dict": HELD}.items():  # fmt: skip
        monkeypatch.setattr(torch.cuda, name, lambda *_, answer=answer: answer)
    size = StackSize("cpu", None, 1)
    size.cuda = True
    size.measure(0, clients=2, width=32)
    assert [size.clients(0, width) for width in (16, 32, 64, 10**6)] == [51, 51, 25, 1]


def test_steps_are_recorded_only_after_several_of_a_kind(as_on_a_gpu, made, monkeypatch):
    monkeypatch.setattr(recording, "STEPS_BEFORE_RECORDING_NEW", 10_000)
    outcomes(as_on_a_gpu, FedAvg(), "logistic")
    assert made == []


def test_steps_of_a_kind_that_an_earlier_round_had_are_recorded_sooner(as_on_a_gpu, made, monkeypatch):
    monkeypatch.setattr(recording, "STEPS_BEFORE_RECORDING_NEW", 10_000)
    jobs = opened(as_on_a_gpu, schedule="constant")
    list(as_on_a_gpu.run(jobs(0)))
    assert made == []
    list(as_on_a_gpu.run(jobs(1)))
    assert made
    jobs = opened(as_on_a_gpu, schedule="linear")  # every round has another learning rate, which is part of a recording
    made.clear()
    for number in range(4):
        list(as_on_a_gpu.run(jobs(number)))
    assert made == []


def test_a_recording_of_one_client_is_used_after_larger_ones(as_on_a_gpu, made):
    expected = outcomes(SerialEngine(), FedProx(mu=0.1), "logistic", epochs=3)
    functional = Model(double_model(DATA, "logistic"))
    task = Task(functional, DATA.classes, Train(batch=16, lr=0.05, epochs=3))
    as_on_a_gpu.open(World(task, FedProx(mu=0.1).client, {"server": FedProx().server}, POPULATION))
    down = Packet(functional.initial(3))
    jobs = [Job("server", name, down, Context(1, name, 0), True) for name in POPULATION.devices]
    list(as_on_a_gpu.run(jobs[:1]))
    assert made == [1]  # in its own buffers
    (found,) = as_on_a_gpu.run(jobs)
    assert max(made) > 1
    check_same(expected, {"all": found})


def test_clients_that_share_tensors_in_one_round_need_not_in_the_next(as_on_a_gpu, made):
    """For example, if some devices still have an older model."""
    functional = Model(double_model(DATA, "logistic"))
    method, older, newer = FedProx(mu=1.0), Packet(functional.initial(3)), Packet(functional.initial(4))

    def last(engine: Any) -> dict[str, Any]:
        task = Task(functional, DATA.classes, Train(batch=16, lr=0.05, epochs=2))
        engine.open(World(task, method.client, {"server": method.server}, POPULATION))
        for packets in ((older,), (older,), (older, newer)):
            sent = [packets[number % len(packets)] for number in range(7)]
            jobs = [
                Job("server", name, down, Context(1, name, 0))
                for name, down in zip(POPULATION.devices, sent, strict=True)
            ]
            found = {",".join(outcome.sent): outcome for outcome in engine.run(jobs)}
        return found

    check_same(last(SerialEngine()), last(as_on_a_gpu))
    assert made


def test_unused_recordings_are_deleted(as_on_a_gpu, made):
    jobs = opened(as_on_a_gpu, schedule="linear")
    for number in range(30):
        list(as_on_a_gpu.run(jobs(number)))
    assert len(made) >= 30
    assert len(as_on_a_gpu.stack_runner._recordings._recordings) == recording.MAX_UNUSED_ROUNDS + 1


def test_out_of_memory_repeats_only_clients_that_were_not_returned(as_on_a_gpu, monkeypatch):
    expected = outcomes(SerialEngine(), FedAvg(), "logistic", epochs=2, batch=8)
    whole, steps = Recording.step, []

    def step(self, batches, number):
        steps.append(self.weights.shape[1])
        if self.weights.shape[1] == 2 and steps.count(2) == 3:
            raise torch.cuda.OutOfMemoryError
        whole(self, batches, number)

    monkeypatch.setattr(Recording, "step", step)
    with pytest.warns(UserWarning, match="do not fit"):
        found = outcomes(as_on_a_gpu, FedAvg(), "logistic", epochs=2, batch=8)
    check_same(expected, found)


@pytest.mark.parametrize(
    ("clients", "expected"),
    [(1, [1]), (63, [63]), (64, [32, 32]), (100, [32, 68]), (288, [32, 256]), (400, [32, 184, 184])],
)
def test_the_first_wave_has_few_clients_with_most_steps(clients, expected):
    jobs = [Job("server", f"device-{number}", Packet(), Context(0, "", 0)) for number in range(clients)]
    found = stack.waves(jobs)
    assert [len(wave) for wave in found] == expected
    assert sorted(job.device for wave in found for job in wave) == sorted(job.device for job in jobs)
    assert found[0][-1] == jobs[-1]


@pytest.mark.parametrize(
    ("clients", "expected"), [(1, []), (15, []), (16, [8]), (63, [8]), (64, [8, 32]), (100, [8, 50])]
)
def test_split_points_of_a_stack(clients, expected):
    assert stack.split_points(clients) == expected


def test_the_gpu_is_not_waited_for_before_all_clients_are_begun(as_on_a_gpu, monkeypatch):
    """Jobs that the GPU has not finished are returned at the end, in the same order."""
    begun, waited = [], []

    def noted(self, job):
        begun.append(job.device)
        return whole(self, job)

    whole = StackRunner._begin
    monkeypatch.setattr(StackRunner, "_begin", noted)
    monkeypatch.setattr(FinishedStack, "available", False)
    monkeypatch.setattr(FinishedStack, "_is_finite", lambda self: waited.append(len(begun)) or True)
    found = outcomes(as_on_a_gpu, FedAvg(), "logistic", epochs=2)
    check_same(outcomes(SerialEngine(), FedAvg(), "logistic", epochs=2), found)
    assert waited and set(waited) == {len(POPULATION.devices)}


@pytest.mark.parametrize("looks", [True, False])
def test_a_step_that_waits_for_the_gpu_is_detected(monkeypatch, looks):
    """Torch warns that the mode is a prototype, and where the CPU waited."""
    modes = []

    def set_mode(mode):
        modes.append(mode)
        warnings.warn("a prototype feature that does not yet detect all synchronizing operations", stacklevel=1)

    def work():
        modes.append("working")
        if looks:
            warnings.warn("called a synchronizing CUDA operation", stacklevel=1)

    monkeypatch.setattr(torch.cuda, "get_sync_debug_mode", lambda: 0)
    monkeypatch.setattr(torch.cuda, "set_sync_debug_mode", set_mode)
    assert recording._synchronizes(work) is looks
    assert modes == ["warn", "working", 0]


def test_a_step_that_waits_is_not_recorded(as_on_a_gpu, made, monkeypatch):
    monkeypatch.setattr(recording, "_synchronizes", lambda work: work() is None)
    found = outcomes(as_on_a_gpu, FedAvg(), "logistic", epochs=2)
    check_same(outcomes(SerialEngine(), FedAvg(), "logistic", epochs=2), found)
    assert as_on_a_gpu.facts() == {"stacked": 7.0, "not_stacked": 0.0} and not made


def test_recorded_steps_with_augmentation_and_dropout(as_on_a_gpu, made, tmp_path):
    def ended(engine: str) -> ug.Result:
        raw = conformance.random_experiment("fedavg", tmp_path)
        raw["run"]["engine"] = engine
        return conformance.run({**raw, "train": {"rounds": 1, "epochs": 2, "lr": 0.01, "batch": 8}})

    serial, vector = ended("serial"), ended("vector")
    conformance.assert_close(conformance.weights(vector), conformance.weights(serial))
    assert made and vector.history[-1]["not_stacked"] == 0
