"""Topologies: children, names, and what is refused."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from undergrowth.core import InputError
from undergrowth.topology import ROOT, build_topology


def names(count: int) -> list[str]:
    return [f"device-{number}" for number in range(count)]


def test_a_star_has_one_server():
    star = build_topology("star", names(3))
    assert star.children == {ROOT: ("device-0", "device-1", "device-2")}
    assert star.depth == {ROOT: 0}
    assert star.parents == {}


def test_a_tree_has_edge_servers_with_equal_numbers_of_devices():
    found = build_topology("tree:2x3", names(6))
    assert found.children == {
        ROOT: ("edge-00", "edge-01"),
        "edge-00": ("device-0", "device-1", "device-2"),
        "edge-01": ("device-3", "device-4", "device-5"),
    }
    assert found.parents == {"edge-00": ROOT, "edge-01": ROOT}


@settings(max_examples=60, deadline=None, derandomize=True)
@given(st.lists(st.integers(1, 4), min_size=2, max_size=5))
def test_every_device_is_below_one_server_and_all_at_the_same_depth(widths):
    count = 1
    for width in widths:
        count *= width
    found = build_topology("tree:" + "x".join(map(str, widths)), names(count))
    below = [child for children in found.children.values() for child in children if child not in found.children]
    assert below == names(count)
    assert next(iter(found.children)) == ROOT
    assert set(found.depth) == set(found.children)
    assert max(found.depth.values()) == len(widths) - 1
    for node, parent in found.parents.items():
        assert found.depth[node] == found.depth[parent] + 1
    assert set(found.parents) == set(found.children) - {ROOT}
    seen: set[str] = set()
    for node, children in found.children.items():  # parents come first
        assert node == ROOT or node in seen
        seen.update(children)


@pytest.mark.parametrize("text", ["", "ring", "star:3", "tree", "tree:", "tree:4", "tree:2x", "tree:ax2", "tree:2x-2"])
def test_an_unknown_topology_is_refused(text):
    with pytest.raises(InputError, match=r"is not known; write star, or tree:4x5"):
        build_topology(text, names(4))


def test_a_tree_for_another_number_of_devices_is_refused():
    with pytest.raises(InputError, match=r"'tree:2x3' has room for 6 devices and there are 5; .* multiply to 5"):
        build_topology("tree:2x3", names(5))


def test_duplicate_names_are_refused():
    with pytest.raises(InputError, match="two devices have the same name"):
        build_topology("star", ["a", "a"])
    with pytest.raises(InputError, match=r"'edge-01' is the name of a server in topology 'tree:2x1'; rename"):
        build_topology("tree:2x1", ["a", "edge-01"])
