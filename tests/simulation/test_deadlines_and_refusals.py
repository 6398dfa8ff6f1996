"""Who is late, lost or refused does not count, is named in the ledger, and stops nobody else."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from undergrowth.core import Packet
from undergrowth.learning import AveragingServer

from .federations import Patient, close_model, drive, federation, same_model

NAN = {"device-1": lambda up: Packet({k: v * float("nan") for k, v in up.tensors.items()}, up.scalars)}
WRONG_SHAPE = {"device-1": lambda up: Packet({k: v[:1] for k, v in up.tensors.items()}, up.scalars)}
NO_WEIGHT = {"device-1": lambda up: replace(up, scalars={})}


def outcomes(entries: list, round: int = 1) -> dict[str, str]:
    return {entry.child: entry.outcome for entry in entries if entry.round == round}


@pytest.mark.parametrize("server", [AveragingServer(), Patient()])
def test_a_device_past_the_deadline_is_late_and_the_others_count(server):
    simulation, _ = federation(server, seconds={"device-3": 9.0}, deadline=2.0)
    ends, entries = drive(simulation)
    assert [len(end.arrived) for end in ends] == [3, 3, 3]
    assert all(end.dropped == ("device-3",) for end in ends)
    assert outcomes(entries, 2)["device-3"] == "late"
    assert sum(entry.outcome == "late" for entry in entries) == 3
    assert simulation.now == 6.0  # every round lasts as long as the deadline
    without, _ = federation(server, count=3)
    drive(without)
    assert same_model(simulation.root.state["model"], without.root.state["model"])


def test_a_late_device_costs_its_download_and_what_it_did_until_the_deadline():
    simulation, _ = federation(AveragingServer(), seconds={"device-3": 9.0}, deadline=2.0, rounds=1)
    late = next(entry for entry in drive(simulation)[1] if entry.outcome == "late")
    assert late.bytes_down > 0
    assert late.bytes_up == 0
    assert late.flops == pytest.approx(10.0 * 2 / 9)
    assert late.joules == pytest.approx(0.5 * 2 / 9)


def test_a_device_exactly_at_the_deadline_is_in_time():
    simulation, _ = federation(AveragingServer(), seconds={"device-3": 2.0}, deadline=2.0)
    assert all(len(end.arrived) == 4 for end in drive(simulation)[0])


def test_with_everybody_late_the_round_is_abandoned_and_the_model_stays():
    slow = {f"device-{number}": 5.0 for number in range(4)}
    simulation, _ = federation(AveragingServer(), seconds=slow, deadline=2.0, rounds=1)
    before = None
    for ends in simulation.rounds():
        assert ends[0].abandoned
        before = simulation.root.state["model"]
    fresh, _ = federation(AveragingServer(), rounds=1)
    fresh.root.start()
    assert same_model(before, fresh.root.state["model"])


@pytest.mark.parametrize("topology", ["tree:2x2", "tree:1x2x2"])
def test_a_straggler_below_an_edge_server_costs_the_round_only_itself(topology):
    flat, _ = federation(AveragingServer(), seconds={"device-3": 9.0}, deadline=2.0)
    deep, _ = federation(AveragingServer(), topology=topology, seconds={"device-3": 9.0}, deadline=2.0)
    drive(flat)
    ends, entries = drive(deep)
    assert all(not end.dropped for end in ends)
    assert {entry.child for entry in entries if entry.outcome == "late"} == {"device-3"}
    assert [entry.round for entry in entries if entry.outcome == "late"] == [1, 2, 3]
    assert close_model(flat.root.state["model"], deep.root.state["model"])


def test_an_edge_server_with_nobody_in_time_is_lost_and_named():
    seconds = {"device-2": 9.0, "device-3": 9.0}
    simulation, _ = federation(AveragingServer(), topology="tree:2x2", seconds=seconds, deadline=2.0)
    ends, entries = drive(simulation)
    lost = [entry for entry in entries if entry.outcome == "lost"]
    assert {entry.child for entry in lost} == {"edge-01"}
    assert all(entry.reason for entry in lost)
    assert [tuple(end.lost) for end in ends] == [("edge-01",)] * 3
    assert [end.arrived for end in ends] == [("edge-00",)] * 3


@pytest.mark.parametrize("bad", [NAN, WRONG_SHAPE, NO_WEIGHT], ids=["nan", "wrong shape", "no weight"])
@pytest.mark.parametrize("topology", ["star", "tree:2x2"])
@pytest.mark.parametrize("server", [AveragingServer(), Patient()], ids=["folded", "one by one"])
def test_an_upload_that_cannot_be_used_is_refused_named_and_left_out(server, topology, bad):
    sent = []
    spoil = {device: lambda up, change=change: sent.append(change(up)) or sent[-1] for device, change in bad.items()}
    simulation, _ = federation(server, topology=topology, bad=spoil)
    ends, entries = drive(simulation)
    refused = [entry for entry in entries if entry.outcome == "refused"]
    assert [(entry.child, entry.round) for entry in refused] == [("device-1", 1), ("device-1", 2), ("device-1", 3)]
    assert all(entry.reason for entry in refused)
    assert [entry.bytes_up for entry in refused] == [up.nbytes for up in sent], "it has travelled"
    assert len(entries) == 3 * (4 if topology == "star" else 6)
    if topology == "star":
        assert all(set(end.refused) == {"device-1"} and len(end.arrived) == 3 for end in ends)
    assert all(torch.isfinite(value).all() for value in simulation.root.state["model"].values())


@pytest.mark.parametrize("server", [AveragingServer(), Patient()], ids=["folded", "one by one"])
def test_a_refused_device_changes_nothing_for_the_others(server):
    simulation, _ = federation(server, bad=NAN)
    drive(simulation)

    class Without(type(server)):
        def plan(self, task, state, view, context):
            plan = super().plan(task, state, view, context)
            return replace(plan, packets={k: v for k, v in plan.packets.items() if k != "device-1"})

    without, _ = federation(Without())
    drive(without)
    assert same_model(simulation.root.state["model"], without.root.state["model"])


def test_what_a_refused_upload_would_have_left_with_the_device_is_not_kept():
    for bad in (NAN, NO_WEIGHT):
        simulation, world = federation(AveragingServer(), bad=bad)
        drive(simulation)
        assert world.states.get("device-1") == {}
        assert world.states.get("device-0") == {"times": 3}
