"""Links between servers in whole runs and plans: figures by hand, the ledger, bad input."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import undergrowth as ug
from undergrowth.core import Collect, InputError, Packet, WeightedMean
from undergrowth.devices import find_link, shipped_links
from undergrowth.runs.api import parse_arguments
from undergrowth.runs.config import FleetSection, parse_experiment
from undergrowth.runs.federation_builder import federate
from undergrowth.runs.rehearsal import Uploads
from undergrowth.runs.server_links import wire_servers
from undergrowth.topology import NodeSettings, build_topology

from ..fleet_files import fleet_file
from ..stopping import stopped_and_resumed

SMALL = {"data_options": {"train_samples": 200}, "model": "logistic", "clients": 8}
TREE = {**SMALL, "topology": "tree:2x4", "server_link": "wan"}
MODEL = 4 * (64 * 10 + 10)
PARTIAL = MODEL + 8  # and the number of samples


def run(tmp_path: Path, method: str = "fedavg", **settings: Any) -> Any:
    return ug.run(method, out=str(tmp_path), progress=False, **{"rounds": 2, **settings})


def test_a_round_of_a_tree_takes_the_links_and_the_slowest_device(tmp_path: Path) -> None:
    result = run(tmp_path, **TREE)
    entries = list(result.ledger.rows())
    link = shipped_links()["wan"]
    down, up = 0.02 + MODEL / link.down, 0.02 + PARTIAL / link.up
    slowest = max(entry.end - entry.start for entry in entries if entry.child.startswith("device"))
    assert result.history[0]["simulated_seconds"] == pytest.approx(down + slowest + up)
    edges = [entry for entry in entries if entry.child.startswith("edge")]
    assert len(edges) == 4
    for entry in edges:
        assert (entry.bytes_down, entry.bytes_up) == (MODEL, PARTIAL)
        assert (entry.seconds_down, entry.seconds_up) == pytest.approx((down, up))
        assert entry.joules == entry.flops == entry.seconds_compute == 0.0


@pytest.mark.parametrize("method", ["fedavg", "heterofl", pytest.param("scaffold", marks=pytest.mark.slow)])
def test_the_plan_of_a_tree_is_what_the_ledger_books(method: str, tmp_path: Path) -> None:
    settings = {**TREE, "fleet": "mixed-edge", "links": {"up": "int8"}, "topology": "tree:2x2x2"}
    settings |= {"model": "mlp", "model_options": {"hidden": [8]}, "server_link": ["wan", "lan"]}
    rows = ug.plan(method, **settings).tree
    result = run(tmp_path, method, rounds=1, **settings)
    entries = list(result.ledger.rows())
    assert [row["level"] for row in rows] == [0, 1, 2]
    for row, kind in zip(rows, ("level1", "edge", "device"), strict=True):
        members = [entry for entry in entries if entry.child.startswith(kind)]
        assert row["children"] == len(members)
        assert row["bytes_down"] == sum(entry.bytes_down for entry in members)
        assert row["bytes_up"] == sum(entry.bytes_up for entry in members)
    assert [row["link"] for row in rows] == ["wan", "lan", "of the devices"]
    assert rows[0]["seconds"] == pytest.approx(result.history[0]["simulated_seconds"])
    devices = [entry for entry in entries if entry.child.startswith("device")]
    assert rows[0]["relay_bytes_up"] == sum(entry.bytes_up for entry in devices)
    assert rows[0]["joules"] == pytest.approx((rows[0]["bytes_down"] + rows[0]["bytes_up"]) * 13.5e-6)


BHFL = [
    {"residuals": "norm:1", "residuals_down": "all"},
    {"residuals": "cosine:2:mean", "residuals_down": "nodes"},
    {"residuals": "loss:3"},  # of two devices
    {},
]


@pytest.mark.parametrize("options", BHFL)
def test_the_plan_has_the_bytes_of_residuals(options: dict[str, Any], tmp_path: Path) -> None:
    settings = {**SMALL, "topology": "tree:2x2x2", "options": options}
    rows = ug.plan("bhfl", **settings).tree
    entries = list(run(tmp_path, "bhfl", rounds=1, **settings).ledger.rows())
    for row, kind in zip(rows, ("level1", "edge", "device"), strict=True):
        members = [entry for entry in entries if entry.child.startswith(kind)]
        assert row["bytes_down"] == sum(entry.bytes_down for entry in members)
        assert row["bytes_up"] == sum(entry.bytes_up for entry in members)


def test_the_time_without_combining_is_that_of_the_narrowest_link(tmp_path: Path) -> None:
    fleet = fleet_file(tmp_path, even={"share": 1})
    links = [{"down": 1e5, "up": 1e4, "latency": 0.25}, {"down": 1e6, "up": 1e6, "latency": 0.5}]
    root, _, edge = ug.plan("fedavg", **{**TREE, "topology": "tree:2x2x2", "server_link": links, "fleet": fleet}).tree
    up = MODEL + 8
    # Each of the two links to the root carries the packets of four devices, each of the four below it those of two.
    crossing = 2 * 0.25 + 2 * 0.5 + max(4 * MODEL / 1e5, 2 * MODEL / 1e6) + max(4 * up / 1e4, 2 * up / 1e6)
    assert root["relay_seconds"] == pytest.approx(edge["seconds"] + crossing)
    assert root["relay_bytes_down"] == 8 * MODEL


def test_uploads_of_one_kind_have_other_bytes_with_another_reducer() -> None:
    data = {"name": "digits", "clients": 8, "train_samples": 200}
    federation = federate(parse_experiment({"data": data, "model": "logistic", "topology": "tree:2x4"}))
    uploads = Uploads(federation)
    kinds = Counter({uploads.kind(Packet(federation.task.model.initial(0))): 3})
    assert uploads.combined_bytes(WeightedMean(), kinds) == PARTIAL
    assert uploads.combined_bytes(Collect(), kinds) > 3 * PARTIAL
    assert uploads.combined_bytes(WeightedMean(), kinds) == PARTIAL


def test_a_star_has_no_tree_and_its_figures_do_not_depend_on_the_link(tmp_path: Path) -> None:
    assert ug.plan("fedavg", **SMALL).tree == []
    with pytest.warns(ug.RunWarning, match="a star has no link between servers"):
        wired = run(tmp_path / "a", **SMALL, server_link="wan")
    plain = run(tmp_path / "b", **SMALL)
    assert wired.history[-1]["simulated_seconds"] == plain.history[-1]["simulated_seconds"]
    assert wired.loss == plain.loss


def test_a_server_with_its_own_deadline_drops_slow_devices_and_is_in_time(tmp_path: Path) -> None:
    fleet = fleet_file(tmp_path, quick={"share": 0.5, "flops": 1e12}, slow={"share": 0.5, "flops": 2e4})
    common = {**TREE, "fleet": fleet, "topology": "tree:1x8"}
    # With one deadline for all, the edge server waits for its slow devices until the root has given up.
    with pytest.raises(InputError, match="no server at depth 1 answers the server above it in time"):
        run(tmp_path / "a", **common, deadline=0.5)
    result = run(tmp_path / "b", **common, deadline=0.5, node_deadlines={1: 0.2})
    outcomes = [entry.outcome for entry in result.ledger.rows() if entry.round == 1]
    assert sorted(outcomes) == ["arrived"] * 5 + ["late"] * 4
    assert {row["device"]: row["verdict"] for row in ug.plan("fedavg", **common, node_deadlines={"edge-00": 0.2})} == {
        "quick": "fits",
        "slow": "too slow",
    }


def test_a_late_subtree_is_the_same_on_other_engines_and_after_a_resume(tmp_path: Path) -> None:
    fleet = fleet_file(tmp_path, quick={"share": 0.5, "flops": 1e12}, slow={"share": 0.5, "flops": 2e4})
    settings = {
        **TREE,
        "fleet": fleet,
        "deadline": 0.6,
        "node_deadlines": {"edge-00": 0.2, "edge-01": 0.59},
        "rounds": 3,
    }
    with pytest.warns(ug.RunWarning, match="1 of 2 servers at depth 1 answer after the deadline"):
        one = run(tmp_path / "serial", **settings, engine="serial")
    other = run(tmp_path / "vector", **settings, engine="vector")
    assert [entry.outcome for entry in one.ledger.rows() if entry.child == "edge-01"] == ["late"] * 3
    assert list(one.ledger.rows()) == list(other.ledger.rows())
    assert one.loss == pytest.approx(other.loss)
    raw, _ = parse_arguments({"method": "fedavg", "data": "digits", **settings, "engine": "serial"})
    again = stopped_and_resumed(raw, 1, str(tmp_path / "stopped"))
    assert list(again.ledger.rows()) == list(one.ledger.rows())
    assert again.loss == one.loss


@pytest.mark.parametrize(
    ("settings", "sentence"),
    [
        ({"server_link": "wann"}, "fleet.server_link 'wann' is not known; did you mean 'wan'"),
        ({"server_link": {"down": 1e6}}, "up is missing"),
        ({"server_link": {"down": 1e6, "up": 0}}, "up is 0 and must be a number above 0"),
        ({"server_link": {"down": 1e6, "up": 1, "delay": 1}}, "unknown field 'delay'"),
        ({"server_link": {"delay": 1}, "topology": "star"}, "unknown field 'delay'"),
        ({"server_link": ["wan", "lan"]}, "has 2 links and the topology has 1 levels"),
        ({"node_deadlines": {"edge-07": 1.0}}, "no node or depth 'edge-07'"),
        ({"node_deadlines": {"1": -1.0}}, "fleet.node_deadlines.1 -1.0 should be greater than 0"),
    ],
)
def test_bad_input_is_one_sentence(settings: dict[str, Any], sentence: str, tmp_path: Path) -> None:
    with pytest.raises(InputError) as error:
        run(tmp_path, **{**TREE, **settings})
    assert sentence in str(error.value)


def test_what_the_topology_says_of_a_node_comes_before_what_the_fleet_says_of_all() -> None:
    built = build_topology("tree:2x2x1", [f"device-{number}" for number in range(4)])
    special = {"edge-01": NodeSettings(link="satellite"), "edge-02": NodeSettings(deadline=9.0)}
    fleet = FleetSection(server_link=["wan", "lan"], node_deadlines={2: 5.0, "edge-03": 4.0})
    wired, links = wire_servers(replace(built, settings=special), fleet)
    assert {node: link.name for node, link in links.items()} == {
        "level1-00": "wan", "level1-01": "wan", "edge-00": "lan", "edge-01": "satellite", "edge-02": "lan",
        "edge-03": "lan",
    }  # fmt: skip
    assert wired.deadlines == {"edge-00": 5.0, "edge-01": 5.0, "edge-02": 9.0, "edge-03": 4.0}


def test_every_shipped_link_is_slower_than_the_one_before() -> None:
    names = ["free", "lan", "metro", "wan", "intercontinental"]
    times = [find_link(name).seconds_down(10**6) + find_link(name).seconds_up(10**6) for name in names]
    assert times == sorted(times)
    assert times[0] == 0.0


def test_a_topology_file_names_the_link_of_a_node(tmp_path: Path) -> None:
    file = tmp_path / "tree.yaml"
    file.write_text("nodes: {near: {devices: 2, link: lan}, far: {devices: 2, link: satellite}}")
    given = {"data": {"clients": 4}, "model": "logistic", "topology": str(file), "fleet": {"server_link": "metro"}}
    links = federate(parse_experiment(given)).server_links
    assert (links["near"].name, links["far"].name) == ("lan", "satellite")
    file.write_text("nodes: {near: {devices: 4, link: lann}}")
    with pytest.raises(InputError, match="topology: link of node 'near' 'lann' is not known; did you mean 'lan'"):
        federate(parse_experiment(given))
