"""What the hooks of a method receive: steps and samples, devices and asks, the device of a personal model."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

import undergrowth as ug
from undergrowth.core import Context, Method, Packet, Server, Sum
from undergrowth.learning import AveragingServer, GradientClient
from undergrowth.methods import FedBN, FedSGD, Scaffold

from ..fleet_files import fleet_file
from . import own_scaffold
from .objects import Own, linear, normed
from .own_scaffold import OwnScaffold

ENGINES = ["serial", "vector", "processes"]
BATCH, EPOCHS = 8, 3


# A method written with the hooks -------------------------------------------------------------------------------


def test_scaffold_of_a_user_is_short():
    assert len(Path(own_scaffold.__file__).read_text().splitlines()) <= 62


@pytest.mark.parametrize("topology", ["star", "tree:2x2"])
def test_scaffold_of_a_user_is_that_of_the_package(run, topology):
    settings = {"data": Own(), "model": linear, "topology": topology, "sample": 0.5, "rounds": 4, "engine": "vector"}
    own, built_in = run(method=OwnScaffold(), **settings), run(method=Scaffold(weighting="uniform"), **settings)
    assert own.loss == pytest.approx(built_in.loss, rel=1e-5)
    assert own.ledger.bytes_down == built_in.ledger.bytes_down
    # The package also sends the number of samples, a number of eight bytes.
    assert own.ledger.bytes_up == built_in.ledger.bytes_up - 8 * sum(1 for _ in built_in.ledger.rows())


# Upload --------------------------------------------------------------------------------------------------------


class TellingClient(GradientClient):
    """Sends the figures that `upload` receives, under the name of the device."""

    def start(self, task: Any, down: Packet, own: Any) -> Any:
        return {**down.tensors, "added": down.tensors["bias"] + own.get("turns", 0)}

    def upload(self, trained: Any) -> Any:
        device = trained.context.node
        added = float((trained.received["added"] - trained.down.tensors["bias"]).mean())
        received = {"steps": trained.steps, "samples": trained.samples, "lr": trained.lr, "added": added}
        return Packet(scalars={f"{device}/{name}": float(value) for name, value in received.items()}), {
            "turns": trained.own.get("turns", 0) + 1
        }


@dataclass(frozen=True)
class ListeningServer(Server):
    """Keeps the figures that devices sent."""

    reducer = Sum()
    accepts_partial = True

    def step(self, task: Any, state: Any, combined: Packet, context: Context) -> Any:
        count = {"devices": context.devices, "samples": context.samples, "asked": context.asked}
        received = {name: dict(part.scalars) for name, part in combined.parts().items()}
        return {**state, "received": [*state.get("received", []), {**received, "server": count}]}


@dataclass(frozen=True)
class Telling(Method):
    client = TellingClient()
    server = ListeningServer()

    def models(self, task: Any, state: Any, own: Any) -> Any:
        RECEIVED[:] = state.get("received", [])
        return super().models(task, state, own)


RECEIVED: list[Mapping[str, Any]] = []


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("deadline", [None, "half"])
def test_upload_is_told_steps_samples_rate_and_what_start_added(run, tmp_path, engine, deadline):
    fleet = fleet_file(tmp_path, slow={"flops": 1e5, "down": 1e9, "up": 1e9, "share": 1.0})
    settings: dict[str, Any] = {"data": Own(), "model": linear, "fleet": fleet, "engine": engine}
    settings.update(batch=BATCH, epochs=EPOCHS, lr=0.05)
    workers = {"workers": 2} if engine == "processes" else {}
    seconds = max(row["seconds"] for row in ug.plan(Telling(), **settings)) if deadline else None
    run(method=Telling(), deadline=seconds and 0.6 * seconds, rounds=2, **settings, **workers)
    planned = {device: EPOCHS * -(-Own().size(device) // BATCH) for device in Own().devices}
    assert len(RECEIVED) == 2
    for number, received in enumerate(RECEIVED):
        for device, steps in planned.items():
            done = received[device]["steps"]
            assert received[device] == pytest.approx(
                {"steps": done, "samples": Own().size(device), "lr": 0.05, "added": number}
            )
            assert 0 < done <= steps
        assert (sum(received[device]["steps"] for device in planned) < sum(planned.values())) == (deadline is not None)


@pytest.mark.parametrize(("topology", "asked"), [("star", 2), ("tree:2x2", 2)])
def test_a_step_is_told_the_devices_their_samples_and_how_many_were_asked(run, topology, asked):
    run(method=Telling(), data=Own((8, 0, 16, 20, 4)[:4]), model=linear, sample=0.67, rounds=2, topology=topology)
    # A device without samples is not part of the federation. In a tree, the server asks the two edge servers.
    assert [received["server"] for received in RECEIVED] == [{"devices": 3, "samples": 44, "asked": asked}] * 2


# What is evaluated ---------------------------------------------------------------------------------------------


class TwoLevels(Method):
    client = GradientClient()
    server = AveragingServer()

    def models(self, task: Any, state: Any, own: Any) -> Any:
        start = task.model.initial(1)
        return {"trained": state["model"], "groups/one": start, "groups/two": state["model"]}

    def personal(self, task: Any, state: Any, own: Any, device: str) -> Any:
        return state["model"] if device == "phone-0" else task.model.initial(1)


def test_several_models_without_a_global_one_are_all_in_the_history(run):
    result = run(method=TwoLevels(), data=Own(), model=linear)
    for row in result.history:
        trained, groups = row["accuracy/trained"], row["accuracy/groups"]
        start = 2 * groups - trained  # the group is the mean of both models
        assert row["accuracy"] == pytest.approx((start + trained + trained) / 3)
        assert trained != groups


def test_models_of_all_devices_are_one_mean_in_the_history(run):
    row = run(method="local", data=Own(), model=linear).history[-1]
    assert not [name for name in row if name.startswith("accuracy/")]


class WithoutDevice(TwoLevels):
    def personal(self, task: Any, state: Any, own: Any) -> Any:  # type: ignore[override]
        return state["model"]


def test_personal_is_told_the_device_if_it_has_a_parameter_for_it(run):
    own, global_model = (
        {row["device"]: row["accuracy"] for row in run(method=method(), data=Own(), model=linear, rounds=6).clients}
        for method in (TwoLevels, WithoutDevice)
    )
    assert own["phone-0"] == global_model["phone-0"]
    assert own != global_model


# Built-in methods in runs --------------------------------------------------------------------------------------


def test_normalisation_layers_never_cross_a_link_with_fedbn(run):
    settings = {"data": Own(), "model": normed, "rounds": 2}
    own, shared = run(method=FedBN(), **settings), run(method="fedavg", **settings)
    layers = 4 * 4 * 5 + 8  # weight, bias, mean and variance of five channels, and the counter of batches
    for ours, theirs in zip(own.ledger.rows(), shared.ledger.rows(), strict=True):
        assert theirs.bytes_up - ours.bytes_up == layers
        assert theirs.bytes_down - ours.bytes_down == layers - 8  # the seed of the initial layers
    assert not [note for note in own.notes if "normalisation" in note]


def test_fedbn_notes_that_a_model_has_no_normalisation_layers(run):
    result = run(method="fedbn", data=Own(), model=linear)
    assert any("fedbn: the model has no normalisation layers" in note for note in result.notes)
    assert result.loss == pytest.approx(run(method=FedBN(), data=Own(), model=linear).loss)


@pytest.mark.parametrize("method", ["scaffold", "fednova", "fedsgd"])
def test_an_optimiser_that_is_not_sgd_is_refused_before_the_run_starts(run, out, method):
    with pytest.raises(ug.InputError, match=r"train\.optimiser 'adam': this method needs sgd"):
        run(method=method, optimiser="adam")
    assert not Path(out).exists()


def test_a_device_needs_memory_for_all_its_samples_at_once_with_fedsgd(run):
    result = run(method=FedSGD(), data=Own((8, 64)), model=normed, rounds=1, batch=4)
    small, large = sorted(result.ledger.rows(), key=lambda row: row.memory)
    assert (small.child, large.child) == ("phone-0", "phone-1")
    assert large.flops == pytest.approx(8 * small.flops)
