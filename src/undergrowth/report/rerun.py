"""The command that repeats a run."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from typing import Any

import yaml

from undergrowth.report.run_record import RunRecord, flatten
from undergrowth.runs.config import Experiment
from undergrowth.runs.engine_choice import AUTO

# Flag of `undergrowth run` → path of its value in an experiment.
FLAG_PATHS = {
    "method": "method.name", "data": "data.name", "model": "model.name", "clients": "data.clients",
    "partition": "data.partition", "fleet": "fleet.name", "deadline": "fleet.deadline", "topology": "topology",
    "rounds": "train.rounds", "epochs": "train.epochs", "batch": "train.batch", "lr": "train.lr",
    "engine": "run.engine", "seed": "run.seed", "device": "run.device", "out": "run.out", "workers": "run.workers",
    "address": "run.address", "personal": "personal.evaluate",
}  # fmt: skip
_FLAGS = {path: f"--{flag}" for flag, path in FLAG_PATHS.items()}


def rerun_command(record: RunRecord) -> str:
    """The command with every setting that differs from its default.

    A run with Python objects cannot be repeated from the command line; the text then names the objects.
    """
    if record.objects:
        objects = ", ".join(f"the {part} object {name}" for part, name in record.objects.items())
        return f"ug.run(...) from Python, with {objects}"
    defaults = flatten(Experiment().model_dump(mode="json"))
    given = {path: value for path, value in record.settings.items() if path.partition(".")[0] != "topology"}
    given["topology"] = record.row["experiment"]["settings"].get("topology", "star")
    if any(value is not None for path, value in given.items() if path.startswith("stop.")):
        defaults["train.rounds"] = None  # a run with limits has another one
    if given.get("data.group") is not None or given.get("data.name") == "text":
        defaults["data.partition"] = None  # as has data with groups
    phases = ("start.data.name", "start.method.name", "start.warm_rounds", "personal.evaluate")
    if any(map(given.get, phases)) and any(note.startswith(AUTO) for note in record.row["notes"]):
        given |= {"run.engine": "auto", "run.stack": False}  # it was chosen for every phase
    flags, settings = [], []
    for path, value in given.items():
        if value == defaults.get(path):
            continue
        if path == FLAG_PATHS["personal"]:
            flags.append("--personal")
        elif path in _FLAGS and not isinstance(value, Mapping):
            flags += [_FLAGS[path], str(value)]
        else:
            settings += ["-s", f"{path}={_one_line_yaml(value)}"]
    return shlex.join(["undergrowth", "run", *flags, *settings])


def _one_line_yaml(value: Any) -> str:
    """`value` as YAML without line breaks and without the end-of-document marker."""
    text = yaml.safe_dump(value, default_flow_style=True, width=10_000, allow_unicode=True)
    return text.removesuffix("\n").removesuffix("\n...")
