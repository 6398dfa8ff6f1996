"""The files that settings of an experiment name, to detect that a later run would read other ones than an earlier run.

Data, own source files and weights are compared in other ways: see `fingerprint`, `own_objects` and `frozen_digest`.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from os.path import expanduser
from pathlib import Path

from undergrowth import devices
from undergrowth.runs.config import Experiment

_TRACE = "trace"


def hash_files(experiment: Experiment) -> dict[str, str]:
    """The SHA-256 of the file that a setting names, for each setting of fleet and topology that names one."""
    kind, _, trace = (part.strip() for part in experiment.fleet.availability.partition(":"))
    named = {
        "fleet": "" if experiment.fleet.name in devices.names() else experiment.fleet.name,
        "fleet.availability": trace if kind == _TRACE else "",
        "topology": experiment.topology if isinstance(experiment.topology, str) else "",
    }
    paths = {setting: Path(expanduser(text)) for setting, text in named.items() if text}
    return {setting: hashlib.sha256(path.read_bytes()).hexdigest() for setting, path in paths.items() if path.is_file()}


def changed_files(before: Mapping[str, str] | None, experiment: Experiment) -> list[str]:
    """The settings whose files are not those with the hashes in `before`, which runs of older versions do not have."""
    now = {} if before is None else hash_files(experiment)
    return [setting for setting, found in (before or {}).items() if now.get(setting) != found]
