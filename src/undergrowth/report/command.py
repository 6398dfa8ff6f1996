"""The command that does a run again."""

from __future__ import annotations

import shlex
from typing import Any

import yaml

from undergrowth.report.record import Record, flat
from undergrowth.runs.config import Experiment

_FLAGS = {
    "method.name": "--method", "data.name": "--data", "model.name": "--model", "data.clients": "--clients",
    "fleet.name": "--fleet", "fleet.deadline": "--deadline", "train.rounds": "--rounds", "run.engine": "--engine",
    "run.seed": "--seed", "run.device": "--device", "run.out": "--out",
}  # fmt: skip


def command(record: Record) -> str:
    """With the settings that are not the default; a run with objects of the user's can only be done from Python."""
    if record.objects:
        given = ", ".join(f"the {part} object {name}" for part, name in record.objects.items())
        return f"ug.run(...) from Python, with {given}"
    defaults = flat(Experiment().model_dump(mode="json"))
    words = ["undergrowth", "run"]
    settings = []
    for path, value in record.settings.items():
        if value == defaults.get(path):
            continue
        if path in _FLAGS:
            words += [_FLAGS[path], str(value)]
        else:
            settings += ["-s", f"{path}={_yaml(value)}"]
    return shlex.join(words + settings)


def _yaml(value: Any) -> str:
    """On one line, without the mark that ends a document."""
    text = yaml.safe_dump(value, default_flow_style=True, width=10_000, allow_unicode=True)
    return text.removesuffix("\n").removesuffix("\n...")
