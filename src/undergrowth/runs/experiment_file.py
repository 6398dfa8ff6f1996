"""Experiment files, and changes to an experiment before it is validated."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import yaml

from undergrowth.core import InputError
from undergrowth.devices.plain_yaml import DuplicateKeyError, load_yaml
from undergrowth.runs.config import Experiment
from undergrowth.runs.sections import keys_of


def read(path: str | Path) -> dict[str, Any]:
    """The dictionary in an experiment file, not validated yet."""
    try:
        text = Path(path).expanduser().read_text(encoding="utf-8")
    except FileNotFoundError:
        raise InputError(f"there is no experiment file '{path}'") from None
    except (OSError, ValueError, RuntimeError) as error:
        raise InputError(f"experiment file '{path}' cannot be read: {error}") from None
    try:
        raw = load_yaml(text)
    except DuplicateKeyError as error:
        raise InputError(f"experiment file '{path}' {error.problem}") from None
    except yaml.YAMLError as error:
        where = getattr(error, "problem_mark", None)
        line = f" (line {where.line + 1})" if where else ""
        raise InputError(f"experiment file '{path}' is not YAML{line}: {getattr(error, 'problem', error)}") from None
    if raw is None:
        raise InputError(f"experiment file '{path}' is empty; it needs sections such as method, data, model, train")
    if not isinstance(raw, dict):
        raise InputError(f"experiment file '{path}' must hold sections such as 'method: fedavg', not a {_kind(raw)}")
    return raw


def assign(raw: dict[str, Any], path: str, value: Any) -> None:
    """Sets the value at a path such as `train.lr`. A section that is a bare name becomes one with the key `name`."""
    *sections, last = path.split(".")
    for section in sections:
        inner = raw.get(section)
        if not isinstance(inner, dict | str | None) or (isinstance(inner, str) and not _may_be_a_name(section)):
            raise InputError(f"{path}: '{section}' is {inner!r}, which has no keys to set")
        raw[section] = {"name": inner} if isinstance(inner, str) else dict(inner or {})
        raw = raw[section]
    raw[last] = value


def _may_be_a_name(section: str) -> bool:
    """Whether a section may be written as a bare name. Validation refuses unknown sections later."""
    return section not in Experiment.model_fields or "name" in keys_of(Experiment, [section])


def assign_text(raw: dict[str, Any], text: str) -> None:
    """Applies one `-s path=value` of the command line; the value is read as YAML."""
    path, equals, value = text.partition("=")
    if not equals or not all(path.split(".")):
        raise InputError(f"-s '{text}' must be path=value, such as train.lr=0.05")
    try:
        assign(raw, path, load_yaml(value))
    except DuplicateKeyError as error:
        raise InputError(f"-s '{text}' {error.problem}") from None
    except yaml.YAMLError as error:
        problem = getattr(error, "problem", error)
        raise InputError(f"-s '{text}': the value '{value}' is not YAML: {problem}") from None


def _kind(value: Any) -> str:
    return {list: "list", str: "text", int: "number", float: "number"}.get(type(value), type(value).__name__)
