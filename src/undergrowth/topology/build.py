"""Topologies by name: a star, levels of edge servers between the root and the devices, or what a file describes."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from os.path import expanduser
from pathlib import Path
from typing import Any

from undergrowth.core import InputError
from undergrowth.topology.topology import Groups, Topology, build_levels
from undergrowth.topology.topology_file import build_described, check_content, read_content

MAX_DEVICES = 1_000_000  # of a tree


def build_topology(text: str | Mapping[str, Any], devices: Sequence[str], groups: Groups | None = None) -> Topology:
    """The topology of a setting: `star`, `tree:4x5` for four edge servers with five devices each, or a file.

    `tree:2x4x5` has two levels of servers below the root. A dictionary has the keys of a file. `groups` returns the
    value of a field of the data set at each device, for topologies that group devices by a field.
    """
    if len(set(devices)) < len(devices):
        raise InputError("devices: two devices have the same name; names must be unique")
    if isinstance(text, Mapping):
        return build_described("topology", check_content("topology", text), devices, groups)
    path = Path(expanduser(text))
    if path.is_file():
        return build_described(f"topology file '{path}'", read_content(path), devices, groups)
    if path.suffix in (".yaml", ".yml"):
        raise InputError(f"topology: there is no file '{text}'; write the path of a topology file, star, or tree:4x5")
    widths = parse_widths(text)
    if widths and math.prod(widths) != len(devices):
        raise InputError(
            f"topology '{text}' has room for {math.prod(widths)} devices and there are {len(devices)}; "
            f"the numbers must multiply to {len(devices)}"
        )
    per_server = [len(devices) // math.prod(widths[:-1])] * math.prod(widths[:-1])
    return build_levels(widths[:-1], per_server, devices, f"topology '{text}'")


def parse_widths(text: str) -> list[int]:
    """The numbers of `tree:4x5`; none for `star`.

    Not by `core.notation`: there may be any number of numbers, and a text that is neither may be meant as a file.
    """
    kind, _, sizes = text.partition(":")
    if kind == "star" and not sizes:
        return []
    if kind == "tree":
        parts = sizes.split("x")
        if len(parts) > 1 and all(part.isdecimal() and part.strip("0") for part in parts):
            if math.prod(map(int, parts)) > MAX_DEVICES:
                raise InputError(f"topology '{text}' has more than {MAX_DEVICES} devices; write smaller numbers")
            return [int(part) for part in parts]
    raise InputError(
        f"topology '{text}' is not known; write star, or tree:4x5 for 4 edge servers with 5 devices each, or a file"
    )
