"""Topology files in whole runs: settings of single nodes, proxy data, and a file that changed before a resume."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import undergrowth as ug
from undergrowth.cli.app import app
from undergrowth.core import InputError
from undergrowth.report import write_report
from undergrowth.report.tables import score
from undergrowth.runs.config import parse_experiment
from undergrowth.runs.federation_builder import federate

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


def test_proxy_data_of_a_node_may_be_another_data_set(file: Path, tmp_path: Path) -> None:
    for name in ("far", "other"):
        x = np.full((30, 1, 8, 8), len(name), np.float32) + np.arange(30, dtype=np.float32).reshape(-1, 1, 1, 1) / 100
        labels = np.arange(30) % (10 if name == "far" else 7)
        np.savez(tmp_path / f"{name}.npz", x=x, y=labels, x_test=x, y_test=labels)
    far = f"{{name: npz, path: {tmp_path / 'far.npz'}, samples: 12}}"
    file.write_text(f"nodes: {{left: {{devices: 2, proxy: {far}}}, right: {{devices: rest, proxy: {far}}}}}")
    nodes = build(file, {"name": "bhfl", "proxy": "before"}).nodes  # without data of the run's own
    left, right = (nodes[name].task.public for name in ("left", "right"))
    assert len(left) == len(right) == 12 and not torch.equal(left.x, right.x)
    assert left.x.min() >= 3 and left.x.max() < 3.3 and nodes["server"].task.public is None
    assert torch.equal((100 * (left.x[:, 0, 0, 0] - 3)).round() % 10, left.y)
    result = ug.run(
        "bhfl", options={"proxy": "before"}, topology=file, model="logistic", clients=6, rounds=1, out=tmp_path,
        progress=False,
    )  # fmt: skip
    assert [row["score_proxy"] is None for row in result.tree["nodes"]] == [True, False, False]
    file.write_text(f"nodes: {{left: {{devices: rest, proxy: {{name: npz, path: {tmp_path / 'other.npz'}}}}}}}")
    with pytest.raises(InputError, match=r"topology: proxy of node 'left': public.*has 7 classes"):
        build(file, {"name": "bhfl", "proxy": "before"})
    file.write_text("nodes: {left: {devices: rest, proxy: {path: far.npz}}}")
    with pytest.raises(InputError, match=r"proxy is .* and must be a number above 0 and at most 1, or a data set"):
        build(file, {"name": "bhfl", "proxy": "before"})


def test_proxy_data_must_be_there(file: Path) -> None:
    file.write_text("nodes: {left: {devices: rest}}")
    with pytest.raises(InputError, match="public: bhfl needs data that the server holds"):
        build(file, {"name": "bhfl", "proxy": "before"})


def test_a_node_waits_for_all_rounds_of_the_nodes_below_it(file: Path) -> None:
    file.write_text("nodes: {a: {devices: 2}, b: {parent: a, devices: 2, rounds: 3}, c: {devices: 2, deadline: 1}}")
    nodes = build(file, {"name": "hierfavg", "rounds_per_level": 2}, fleet={"deadline": 4}).nodes
    deadlines = {name: node.task.train.deadline for name, node in nodes.items()}
    assert deadlines == {"server": 4 * 2 * 3, "a": 4 * 3, "b": 4, "c": 1}


def test_every_model_of_a_tree_is_evaluated(file: Path, tmp_path: Path) -> None:
    options = {"proxy": "before", "eta_down": 0.3}
    result = ug.run(
        method="bhfl", options=options, topology=file, clients=6, model="logistic", rounds=2, public=0.1,
        partition="iid", out=tmp_path, progress=False,
    )  # fmt: skip
    rows = {row["node"]: row for row in result.tree["nodes"]}
    assert list(rows) == ["server", "left", "right"] and rows["server"]["score"] == result.accuracy
    assert [row["devices"] for row in rows.values()] == [0, 2, 4]
    assert [row["score_proxy"] is None for row in rows.values()] == [False, False, True]
    distances = result.tree["distances"]
    assert [row["distance"] for row in distances] == [0, 1, 2] and {row["devices"] for row in distances} == {6}
    own = [device["accuracy"] for device in result.clients]
    assert distances[0]["score"] == pytest.approx(sum(own) / 6)
    # The root's model on the devices below it, once weighed by samples and once by devices: iid shards are equal.
    assert distances[2]["score"] == pytest.approx(rows["server"]["score_below"], abs=0.02)
    assert ug.load(result.run, tmp_path).tree == result.tree
    page = write_report([result.run], tmp_path, tmp_path / "page.html").read_text()
    assert f"left  (accuracy {score(rows['left']['score'])}" in page and "2 links above" in page
    star = ug.run(method="fedavg", clients=3, model="logistic", rounds=1, out=tmp_path, progress=False)
    assert star.tree == {} and "tree" not in star.summary


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
