"""Topology files in whole runs: settings of single nodes, proxy data, and a file that changed before a resume."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import undergrowth as ug
from undergrowth.cli.app import app
from undergrowth.core import InputError
from undergrowth.runs.config import parse_experiment
from undergrowth.runs.federation import federate

FILE = """
nodes:
  server: {proxy: 0.25}
  left: {devices: 2, rounds: 3, proxy: 0.5}
  right: {devices: rest, sample: 0.5, deadline: 9, asynchronous: true}
"""


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "tree.yaml"
    path.write_text(FILE, encoding="utf-8")
    return path


def build(file: Path, method: Any = "bhfl", **sections: Any) -> Any:
    raw = {"data": {"clients": 6}, "model": "logistic", "topology": str(file), "method": method, **sections}
    return federate(parse_experiment(raw))


def test_a_node_has_its_own_settings_and_its_own_proxy_data(file: Path) -> None:
    nodes = build(file, {"name": "bhfl", "proxy": "before"}, public=0.1).nodes
    assert {name: node.cycles for name, node in nodes.items()} == {"server": 10, "left": 3, "right": 1}
    assert nodes["right"].task.train.sample == 0.5 and nodes["right"].task.train.deadline == 9
    assert nodes["left"].task.train.sample == 1.0 and nodes["left"].task.train.deadline is None
    assert nodes["right"].server.asynchronous and not nodes["left"].server.asynchronous
    shards = [nodes[name].task.public for name in ("server", "left")]
    assert [len(shard) for shard in shards] == [36, 72]  # a quarter and a half of 144
    rows = [{tuple(row.flatten().tolist()) for row in shard.x} for shard in shards]
    assert not rows[0] & rows[1]
    method = nodes["left"].server.options
    places = [nodes[name].server.place for name in ("server", "left", "right")]
    assert [method.has_proxy_data(place) for place in places] == [True, True, False]


def test_settings_that_have_no_use_are_refused(file: Path) -> None:
    with pytest.raises(InputError, match="node 'server' has proxy, which FedAvg does not use at single nodes"):
        build(file, "fedavg")
    with pytest.raises(InputError, match=r"node 'server' has proxy data; add public: 0\.1"):
        build(file)
    file.write_text("nodes: {a: {devices: 3, proxy: 0.8}, b: {devices: 3, proxy: 0.4}}")
    with pytest.raises(InputError, match=r"the nodes have 1\.2 of the public data; at most 1 in all"):
        build(file, public=0.1)


def test_a_run_with_a_file_is_not_resumed_with_another_topology(
    file: Path, interrupted: Callable[..., None], out: str
) -> None:
    file.write_text("nodes: {a: {devices: 2, rounds: 3}, b: {devices: 2}}")
    settings = {"data": {"clients": 4, "partition": "iid"}, "model": "logistic", "topology": str(file)}
    interrupted({"method": "hierfavg", "train": {"rounds": 2}, **settings}, 1)
    before = file.read_text()
    file.write_text("nodes: {a: {devices: 3, rounds: 3}, b: {devices: 1}}")
    with pytest.raises(InputError, match="topology: its file has changed since run"):
        ug.resume("last", out, progress=False)
    file.write_text(before)
    resumed = ug.resume("last", out, progress=False)
    assert len(resumed.history) == 2
    edges = [row for row in resumed.ledger.rows() if row.child in ("a", "b")]
    assert len(edges) == 4 and all(row.bytes_up > 0 for row in edges)


def test_the_command_draws(file: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as end:
        app(["topology", str(file), "--clients", "5", "-o", str(tmp_path / "t.svg")])
    assert end.value.code == 0 and (tmp_path / "t.svg").read_text().startswith("<svg")
    printed = capsys.readouterr().out
    assert "left  (rounds 3, proxy 0.5)" in printed and "5 devices below 3 servers on 2 levels" in printed
    with pytest.raises(SystemExit) as end:
        app(["topology", "ring"])
    assert end.value.code == 2 and "topology 'ring' is not known" in capsys.readouterr().err
