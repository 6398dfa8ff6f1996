"""Fleet files that tests write."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import yaml

PLAIN = {"flops": 1e9, "memory": 1e9, "down": 1e6, "up": 1e6, "compute_watts": 2.0, "radio_watts": 1.0}


def fleet_file(folder: Path, **classes: dict[str, Any]) -> str:
    """The path of a new fleet file with these classes of devices.

    A class is given by the figures in which its profile differs from PLAIN, and `share` or `count`.
    """
    entries = []
    for name, figures in classes.items():
        how_many = {key: figures[key] for key in ("share", "count") if key in figures}
        profile = {"name": name, **PLAIN, **{key: value for key, value in figures.items() if key not in how_many}}
        entries.append({"profile": profile, **how_many})
    path = folder / f"{'-'.join(classes)}.yaml"
    path.write_text(yaml.safe_dump({"devices": entries}), encoding="utf-8")
    return str(path)
