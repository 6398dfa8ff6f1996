"""Virtual time: what happens in one instant happens together, and a restart changes nothing."""

from __future__ import annotations

import pytest

from undergrowth.core import Server, pack, unpack
from undergrowth.learning import AveragingServer

from .federations import Buffer, Patient, close_model, drive, federation, same_model

PACES = {f"device-{number}": 1.0 + 0.37 * number for number in range(6)}


def totals(simulation):
    return simulation.ledger.totals


def test_a_round_lasts_as_long_as_its_slowest_device():
    simulation, _ = federation(AveragingServer(), seconds={"device-2": 4.0})
    drive(simulation)
    assert simulation.now == totals(simulation).simulated_seconds == 12.0


def test_totals_are_the_sums_of_the_entries():
    simulation, _ = federation(AveragingServer(), topology="tree:2x2")
    _, entries = drive(simulation)
    for name in ("bytes_down", "bytes_up", "flops", "joules"):
        assert getattr(totals(simulation), name) == pytest.approx(sum(getattr(entry, name) for entry in entries))
    assert totals(simulation).peak_device_bytes == max(entry.memory for entry in entries) == 7


def test_bytes_are_the_weight_of_the_packets_on_every_link():
    simulation, _ = federation(AveragingServer())
    _, entries = drive(simulation)
    model = 4 * (2 * 2 + 2)
    assert all(entry.bytes_down == model and entry.bytes_up == model + 8 for entry in entries)


def test_folded_and_single_uploads_give_the_same_model_and_the_same_ledger():
    folded, _ = federation(AveragingServer(), seconds=PACES)
    single, _ = federation(Patient(), seconds=PACES)
    _, entries = drive(folded)
    _, others = drive(single)
    assert close_model(folded.root.state["model"], single.root.state["model"])
    assert sorted(map(repr, entries)) == sorted(map(repr, others))
    assert folded.now == single.now


@pytest.mark.parametrize("topology", ["tree:2x2", "tree:2x1x2", "tree:4x1", "tree:1x1x2x1x2"])
def test_a_tree_gives_what_a_star_gives(topology):
    star, _ = federation(AveragingServer())
    deep, _ = federation(AveragingServer(), topology=topology)
    _, entries = drive(star)
    _, others = drive(deep)
    assert close_model(star.root.state["model"], deep.root.state["model"])
    of_devices = [entry for entry in others if entry.child.startswith("device")]
    assert sorted((e.round, e.child, e.bytes_down, e.bytes_up, e.flops) for e in entries) == sorted(
        (e.round, e.child, e.bytes_down, e.bytes_up, e.flops) for e in of_devices
    )
    assert star.now == deep.now


def test_a_buffered_server_sees_the_same_order_twice():
    one, world = federation(Buffer(), count=6, seconds=PACES, rounds=12)
    two, other = federation(Buffer(), count=6, seconds=PACES, rounds=12)
    ends, entries = drive(one)
    again, others = drive(two)
    assert ends == again
    assert entries == others
    assert world.client.asked == other.client.asked
    assert same_model(one.root.state["model"], two.root.state["model"])


def test_a_buffered_server_uses_stale_uploads_and_keeps_its_devices_busy():
    simulation, _ = federation(Buffer(), count=6, seconds={"device-0": 5.5}, rounds=12)
    ends, entries = drive(simulation)
    assert len(ends) == 12
    assert all(len(end.arrived) >= 2 for end in ends)
    slow = next(entry for entry in entries if entry.child == "device-0" and entry.outcome == "arrived")
    assert slow.round > 1  # asked in the first version, used in a later one
    assert {entry.child for entry in entries if entry.outcome == "late"} <= set(simulation.root.children)


def test_equal_times_are_one_instant_whatever_the_order_of_the_devices():
    # Three devices of one pace: all three uploads are there before the server is asked whether two are enough.
    simulation, _ = federation(Buffer(goal=2, concurrency=3), count=3, rounds=4)
    ends, _ = drive(simulation)
    assert [set(end.arrived) for end in ends] == [{"device-0", "device-1", "device-2"}] * 4
    assert simulation.now == 4.0


@pytest.mark.parametrize(
    ("server", "topology"),
    [(AveragingServer(), "star"), (AveragingServer(), "tree:2x3"), (Patient(), "tree:3x2"), (Buffer(), "star")],
)
def test_a_restart_between_any_two_rounds_changes_nothing(server: Server, topology: str):
    arguments = {"count": 6, "topology": topology, "seconds": PACES, "rounds": 8}
    whole, world = federation(server, **arguments)
    ends, _ = drive(whole)
    simulation, states = federation(server, **arguments)
    seen, written = [], {}
    while not simulation.root.done:
        seen.extend(next(simulation.rounds()))
        written.update(states.states.take_changed())
        kept = pack([simulation.snapshot(), written])
        simulation, states = federation(server, **arguments)
        state, written = unpack(*kept)
        simulation.restore(state)
        states.states.restore(written.items())
    assert seen == ends
    assert same_model(simulation.root.state["model"], whole.root.state["model"])
    assert simulation.ledger.totals == whole.ledger.totals
    assert simulation.now == whole.now
    assert dict(states.states.all()) == dict(world.states.all())
    assert simulation.work.jobs_done == whole.work.jobs_done


def test_a_run_that_is_over_does_nothing_more():
    simulation, world = federation(AveragingServer())
    drive(simulation)
    asked = len(world.client.asked)
    assert list(simulation.rounds()) == []
    assert len(world.client.asked) == asked
