"""Links between servers: every hop takes latency + bytes / rate, and a slow one makes a subtree late."""

from __future__ import annotations

import pytest

from undergrowth.core import Server, pack, unpack
from undergrowth.devices import LinkProfile
from undergrowth.learning import AveragingServer

from .federations import Buffer, Patient, close_model, drive, federation, same_model

MODEL = 4 * (2 * 2 + 2)  # bytes of the model of these federations
PARTIAL = MODEL + 8  # a partial result: the mean and the number of its samples

FAST = LinkProfile("fast", down=240.0, up=320.0, latency=0.25)  # 0.25 + 0.1 down, 0.25 + 0.1 up
SLOW = LinkProfile("slow", down=48.0, up=16.0, latency=0.5)  # 0.5 + 0.5 down, 0.5 + 2.0 up
EDGES = {"edge-00": FAST, "edge-01": SLOW}
SECONDS = {"device-0": 1.0, "device-1": 3.0, "device-2": 2.0, "device-3": 1.5}


def entries_of(entries: list, child: str) -> list:
    return [entry for entry in entries if entry.child == child]


def test_a_round_of_two_levels_takes_download_work_and_upload_of_its_slowest_branch():
    simulation, _ = federation(AveragingServer(), topology="tree:2x2", seconds=SECONDS, links=EDGES, rounds=2)
    ends, entries = drive(simulation)
    first = (0.25 + MODEL / 240) + 3.0 + (0.25 + PARTIAL / 320)
    second = (0.5 + MODEL / 48) + 2.0 + (0.5 + PARTIAL / 16)
    assert simulation.now == pytest.approx(2 * max(first, second))
    assert [set(end.arrived) for end in ends] == [{"edge-00", "edge-01"}] * 2
    for entry in entries_of(entries, "edge-01"):
        assert (entry.bytes_down, entry.bytes_up) == (MODEL, PARTIAL)
        assert (entry.seconds_down, entry.seconds_compute, entry.seconds_up) == (1.0, 0.0, 2.5)
    assert entries_of(entries, "device-2")[0].start == 1.0  # the edge server begins when it has the whole packet
    assert entries_of(entries, "device-0")[0].start == pytest.approx(0.35)


def test_three_levels_store_and_forward():
    links = {"level1-00": SLOW, "edge-00": FAST, "edge-01": FAST}
    simulation, _ = federation(AveragingServer(), count=2, topology="tree:1x2x1", links=links, rounds=1)
    drive(simulation)
    down = (0.5 + MODEL / 48) + (0.25 + MODEL / 240)
    up = (0.25 + PARTIAL / 320) + (0.5 + PARTIAL / 16)
    assert simulation.now == pytest.approx(down + 1.0 + up)


def test_links_change_the_time_and_nothing_that_is_learned():
    free, _ = federation(AveragingServer(), topology="tree:2x2", seconds=SECONDS)
    slow, _ = federation(AveragingServer(), topology="tree:2x2", seconds=SECONDS, links=EDGES)
    star, _ = federation(AveragingServer(), seconds=SECONDS)
    for simulation in (free, slow, star):
        drive(simulation)
    assert same_model(free.root.state["model"], slow.root.state["model"])
    assert close_model(star.root.state["model"], slow.root.state["model"])
    assert free.now == star.now < slow.now


# The branch of edge-01 takes 1.0 down, 2.0 of work and 2.5 up: 5.5 in all. The other one takes 3.7.
@pytest.mark.parametrize(
    ("deadline", "down", "up"),
    [(0.75, 0.75, 0.0), (2.5, 1.0, 0.0), (4.5, 1.0, 1.5)],
    ids=["while the ask travels", "while its devices work", "while the answer travels"],
)
@pytest.mark.parametrize("server", [AveragingServer(), Patient()], ids=["combined", "one by one"])
def test_a_subtree_behind_a_slow_link_is_late_like_a_late_device(server, deadline, down, up):
    simulation, _ = federation(
        server, topology="tree:2x2", seconds=SECONDS, links=EDGES, deadlines={"server": deadline}, rounds=3
    )
    ends, entries = drive(simulation)
    assert all("edge-01" in end.dropped for end in ends)
    assert simulation.now == pytest.approx(3 * deadline)
    for entry in entries_of(entries, "edge-01"):
        assert (entry.outcome, entry.bytes_up) == ("late", 0)
        assert entry.bytes_down == int(MODEL * min(1.0, deadline / 1.0))
        assert (entry.seconds_down, entry.seconds_up) == pytest.approx((down, up))
    below = [entry.outcome for entry in entries if entry.child in ("device-2", "device-3")]
    assert below == {0.75: [], 2.5: ["late"] * 6, 4.5: ["arrived"] * 6}[deadline]
    if deadline > 3.7:  # the other branch counts alone
        assert [end.arrived for end in ends] == [("edge-00",)] * 3


def test_every_round_of_the_parent_is_one_of_a_node_that_is_late_in_any_way():
    for deadline in (0.75, 2.5, 4.5, None):
        simulation, _ = federation(
            AveragingServer(), topology="tree:2x2", seconds=SECONDS, links=EDGES,
            deadlines={"server": deadline} if deadline else None, rounds=3,
        )  # fmt: skip
        drive(simulation)
        assert simulation.nodes["edge-01"].round == simulation.root.round == 3


def test_a_node_with_its_own_deadline_answers_in_time_without_its_late_device():
    simulation, _ = federation(
        AveragingServer(), topology="tree:2x2", seconds=SECONDS, links=EDGES,
        deadlines={"server": 5.2, "edge-01": 1.6}, rounds=2,
    )  # fmt: skip
    ends, entries = drive(simulation)
    # 1.0 down, 1.6 until the edge server's deadline, 2.5 up: the partial result is there after 5.1 seconds.
    assert simulation.now == pytest.approx(2 * 5.1)
    assert [set(end.arrived) for end in ends] == [{"edge-00", "edge-01"}] * 2
    assert [entry.outcome for entry in entries_of(entries, "device-2")] == ["late"] * 2


def test_a_node_whose_children_are_all_late_says_so_after_the_latency():
    simulation, _ = federation(
        AveragingServer(), topology="tree:2x2", seconds=SECONDS, links=EDGES, deadlines={"edge-01": 1.0}, rounds=1
    )
    (end,), _ = drive(simulation)
    assert set(end.lost) == {"edge-01"}
    assert simulation.now == pytest.approx(0.35 + 3.0 + 0.35)  # 1.0 + 1.0 + 0.5 of the lost branch is less


def test_an_asynchronous_root_hears_each_edge_server_at_its_own_pace():
    simulation, _ = federation(
        Buffer(goal=1, concurrency=2), topology="tree:2x2", seconds=SECONDS, links=EDGES, rounds=3
    )
    ends, _ = drive(simulation)
    # edge-00 answers every 3.7 seconds, edge-01 every 5.5.
    assert [end.arrived for end in ends] == [("edge-00",), ("edge-01",), ("edge-00",)]
    assert simulation.now == pytest.approx(7.4)


@pytest.mark.parametrize("server", [AveragingServer(), Patient(), Buffer(goal=1, concurrency=2)])
@pytest.mark.parametrize("deadline", [None, 4.5])
def test_a_restart_with_packets_on_the_way_changes_nothing(server: Server, deadline: float | None):
    arguments = {
        "topology": "tree:2x2", "seconds": SECONDS, "links": EDGES, "rounds": 4,
        "deadlines": {"server": deadline} if deadline else None,
    }  # fmt: skip
    whole, _ = federation(server, **arguments)
    ends, _ = drive(whole)
    simulation, _ = federation(server, **arguments)
    seen = []
    while not simulation.root.done:
        seen.extend(next(simulation.rounds()))
        (state,) = unpack(*pack([simulation.snapshot()]))
        simulation, _ = federation(server, **arguments)
        simulation.restore(state)
    assert seen == ends
    assert simulation.ledger.totals == whole.ledger.totals
    assert same_model(simulation.root.state["model"], whole.root.state["model"])
