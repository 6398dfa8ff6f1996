"""Topology files: what they describe, what is refused, and how they are drawn."""

from __future__ import annotations

from io import StringIO
from pathlib import Path
from xml.etree import ElementTree

import numpy as np
import pytest
from rich.console import Console

from undergrowth.core import InputError
from undergrowth.data import Dataset, partition_dataset
from undergrowth.topology import NodeSettings, Topology, build_topology, draw_svg, draw_text

DEVICES = [f"d{number}" for number in range(8)]
REGIONS = """
nodes:
  paris: {parent: europe, devices: 2, sample: 0.5}
  europe: {rounds: 2}
  berlin: {parent: europe, devices: [d5, d0], deadline: 30}
  server: {devices: [d7], proxy: 0.5}
  tokyo: {devices: rest, asynchronous: true}
"""


def write(folder: Path, text: str) -> str:
    path = folder / "t.yaml"
    path.write_text(text, encoding="utf-8")
    return str(path)


def test_nodes_with_parents_devices_and_settings(tmp_path: Path) -> None:
    found = build_topology(write(tmp_path, REGIONS), DEVICES)
    assert found.children == {
        "server": ("europe", "tokyo", "d7"),
        "europe": ("paris", "berlin"),
        "tokyo": ("d3", "d4", "d6"),
        "paris": ("d1", "d2"),
        "berlin": ("d0", "d5"),
    }
    assert found.depth == {"server": 0, "europe": 1, "tokyo": 1, "paris": 2, "berlin": 2}
    assert found.of("berlin") == NodeSettings(deadline=30) and found.of("paris") == NodeSettings(sample=0.5)
    assert found.of("tokyo").given == {"asynchronous": True}


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("nodes: {a: {devices: 8}, a: {devices: 0}}", r"has 'a' twice \(line 1\); keep one of them"),
        ("nodes: {a: {parent: b}, b: {parent: a, devices: 8}}", "node 'a' is below itself: its parents form a cycle"),
        (
            "nodes: {n0: {}, "
            + "".join(f"n{i}: {{parent: n{i - 1}}}, " for i in range(1, 149))
            + "n149: {parent: n148, devices: 8}}",
            "its nodes are nested 150 levels deep; 100 are possible",
        ),
        ("nodes: {a: {parent: serve, devices: 8}}", "there is no parent 'serve'; did you mean 'server'"),
        ("nodes: {a: {devices: 7}}", "1 of 8 devices, such as 'd7', are below no node; give them to one with"),
        ("nodes: {a: {devices: 9}}", "node 'a' has 9 devices, and 8 of the 8 devices are left"),
        ("nodes: {a: {devices: [d9]}}", "there is no device 'd9' in the data"),
        ("nodes: {a: {devices: [[d1]]}}", "node 'a': there is no device '.'d1'.' in the data"),
        (
            f"nodes: {{a: {{devices: 8, deadline: 1{400 * '0'}}}}}",
            "node .a.: deadline is 1000.* and must be a number of seconds",
        ),
        ("nodes: {a: {devices: [d1]}, b: {devices: [d1]}}", "device 'd1' is below 'a' and below 'b'"),
        ("nodes: {a: {devices: rest}, b: {devices: rest}}", "'a' and 'b' both have devices: rest; only one node can"),
        ("nodes: {a: {devices: rest}, b: {}}", "node 'b' has neither devices nor nodes below it"),
        ("nodes: {a: {device: 8}}", "unknown key 'device'; did you mean 'devices'"),
        ("nodes: {a: {devices: 8, sample: 2}}", "sample is 2 and must be a number above 0 and at most 1"),
        ("nodes: {a: {devices: 8, rounds: 1.5}}", "rounds is 1.5 and must be a whole number of at least 1"),
        ("nodes: {a: {devices: many}}", "devices is 'many' and must be names, a number, or rest"),
        ("nodes: {server: {devices: 8, rounds: 3}}", "the rounds of the root are train.rounds"),
        ("nodes: {server: {devices: 8, parent: a}}", "node 'server' is the root and has no parent"),
        ("nodes: {d1: {devices: 8}}", "'d1' is the name of a server in topology file"),
        ("nodes: {a/b: {devices: 8}}", "the node name 'a/b' has a slash"),
        ("nodes: [a]", "nodes must map names to settings"),
        ("servers: {}", "must have the key 'nodes' or 'tree'"),
        ("tree: {by: 3}", r"tree is \{'by': 3\} and must be \{by: \[FIELD\]\}"),
        ("tree: {by: [language]}", "tree.by needs the data set"),
        ("tree: {by: [{language: french}]}", r"must be \{by: \[FIELD\]\}, \{by: \[\{FIELD: \{GROUP: \[VALUE\]\}\}\]\}"),
        ("tree: {servers: [9]}", "its tree has 9 servers for 8 devices; each needs at least one"),
        ("tree: {servers: [2], skew: 0}", "tree.skew is 0 and must be a number above 0"),
        ("{tree: {servers: [2]}, nodes: {edge-3: {}}}", "its tree has no node 'edge-3'; did you mean 'edge-0"),
        ("{tree: {servers: [2]}, nodes: {edge-01: {devices: 3}}}", "leave out its parent and devices"),
        ("nodes: {a: [", "cannot be read"),
    ],
)
def test_bad_files_get_one_clear_sentence(text: str, message: str, tmp_path: Path) -> None:
    with pytest.raises(InputError, match=message) as error:
        build_topology(write(tmp_path, text), DEVICES)
    assert "\n" not in str(error.value)


def test_a_file_that_is_not_there_is_named() -> None:
    with pytest.raises(InputError, match=r"topology: there is no file 'none\.yaml'"):
        build_topology("none.yaml", DEVICES)


def sizes(found: Topology) -> list[int]:
    return [len(below) for below in found.children.values() if below[0] not in found.children]


def test_balanced_and_skewed_trees(tmp_path: Path) -> None:
    names = [f"d{number}" for number in range(20)]
    assert sizes(build_topology(write(tmp_path, "tree: {servers: [3]}"), names)) == [7, 7, 6]
    assert sizes(build_topology(write(tmp_path, "tree: {servers: 4, skew: 0.5}"), names)) == [2, 3, 5, 10]
    found = build_topology(write(tmp_path, "{tree: {servers: [2, 2]}, nodes: {edge-03: {sample: 0.1}}}"), names)
    assert sizes(found) == [5, 5, 5, 5] and max(found.depth.values()) == 2
    assert found.of("edge-03").sample == 0.1


def test_servers_for_the_values_of_fields(tmp_path: Path) -> None:
    speaker = np.array([0, 0, 1, 1, 2, 2, 2])
    language = np.array(["fr", "fr", "de", "de", "fr", "fr", "de"])
    x, y = np.zeros((7, 1), np.float32), np.array([0, 1, 0, 1, 0, 1, 1])
    data = Dataset("speech", x, y, x[:2], y[:2], 2, fields={"speaker": speaker, "language": language})
    population = partition_dataset(data, "natural:speaker", None, 0, holdout=0)
    groups = population.groups_by
    assert groups("language") == ("fr", "de", "fr") and groups("label") == ("0", "0", "1")
    found = build_topology(write(tmp_path, "tree: {by: [language, label]}"), population.devices, groups)
    assert found.children == {
        "server": ("language-de", "language-fr"),
        "language-de": ("language-de.label-0",),
        "language-fr": ("language-fr.label-0", "language-fr.label-1"),
        "language-de.label-0": ("device-001",),
        "language-fr.label-0": ("device-000",),
        "language-fr.label-1": ("device-002",),
    }
    with pytest.raises(InputError, match="data set 'speech' has no field 'langage'; did you mean 'language'"):
        groups("langage")
    levels = [{"language": {"romance": ["fr"], "germanic": ["de"]}}, "language"]  # the keys of a file, without a file
    found = build_topology({"tree": {"by": levels}}, population.devices, groups)
    assert found.children == {
        "server": ("germanic", "romance"),
        "germanic": ("germanic.language-de",),
        "romance": ("romance.language-fr",),
        "germanic.language-de": ("device-001",),
        "romance.language-fr": ("device-000", "device-002"),
    }
    with pytest.raises(InputError, match="a device has the language 'de', which is in none of the groups romance; add"):
        build_topology({"tree": {"by": {"language": {"romance": ["fr"]}}}}, population.devices, groups)
    with pytest.raises(InputError, match="a value of language is in two groups or twice in one; keep it once"):
        build_topology({"tree": {"by": {"language": {"a": ["fr"], "b": ["de", "fr"]}}}}, population.devices, groups)
    with pytest.raises(InputError, match="topology must have the key 'nodes' or 'tree'"):
        build_topology({"servers": [2]}, population.devices, groups)


def test_drawings_have_every_node_and_its_settings(tmp_path: Path) -> None:
    found = build_topology(write(tmp_path, REGIONS), DEVICES)
    console = Console(width=80, record=True, file=StringIO())
    console.print(draw_text(found))
    lines = console.export_text().splitlines()
    assert lines[0] == "server  (proxy 0.5)" and "├── tokyo  (asynchronous true)" in lines
    assert "│   ├── paris  (sample 0.5)" in lines and lines[-1] == "└── d7"
    image = ElementTree.fromstring(draw_svg(found))
    texts = [each.text for each in image.iter("{http://www.w3.org/2000/svg}text")]
    assert len(texts) == len(found.children) + len(DEVICES) and "berlin  (deadline 30)" in texts
    many = build_topology("star", [f"d{number}" for number in range(100)])
    assert "100 devices, d0 … d99" in draw_svg(many)
