"""What the store keeps of an experiment, so that a later version with other defaults resumes the same run."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from dataclasses import fields, is_dataclass
from typing import Any

from undergrowth import __version__, data, models
from undergrowth.core import InputError, Method
from undergrowth.methods import METHODS
from undergrowth.runs.config import Experiment, parse_experiment

LADDER = "model.ladder"  # prefix of the keys of defaults of its models


def option_defaults(experiment: Experiment) -> dict[str, dict[str, Any]]:
    """The default of every option of the method, data set and models that `experiment` names.

    A section whose name is unknown belongs to an object of the user and has no options.
    """
    defaults: dict[str, dict[str, Any]] = {}
    if experiment.method.name in METHODS:
        method = METHODS[experiment.method.name]
        defaults["method"] = {field.name: field.default for field in fields(method)}  # type: ignore[arg-type]
    with suppress(InputError):
        defaults["data"] = data.describe(experiment.data.name).options
    with suppress(InputError):
        model = models.describe(experiment.model.name)
        defaults["model"] = {"norm": model.norms[0], "init": model.inits[0], **model.options}
    for number, rung in enumerate(experiment.model.ladder):
        with suppress(InputError):  # only `init`: other options are part of the label that checkpoints name a rung by
            defaults[f"{LADDER}.{number}"] = {"init": models.describe(rung.name).inits[0]}
    return defaults


def object_options(method: Method) -> dict[str, Any]:
    """The options of a method object as JSON values: the fields of its dataclass.

    A value that JSON does not have is stored as text: a dataclass with its fields, any other object as its type. So
    the text is the same in another process.
    """
    return {key: value for key, value in _field_values(method).items() if key != "name"}


def _field_values(owner: Any) -> dict[str, Any]:
    described = fields(owner) if is_dataclass(owner) else ()
    return {each.name: _json_value(getattr(owner, each.name)) for each in described}


def _json_value(value: Any) -> Any:
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if isinstance(value, list | tuple):
        return [_json_value(each) for each in value]
    if isinstance(value, Mapping):
        return {str(key): _json_value(each) for key, each in value.items()}
    inner = {} if isinstance(value, type) else _field_values(value)
    written = ", ".join(f"{key}={each!r}" for key, each in inner.items())
    return f"{type(value).__name__}({written})" if inner else type(value).__name__


def stored_experiment(row: Mapping[str, Any]) -> Experiment:
    """The experiment in a row of the store, with the defaults that its options had when the run began."""
    stored = row["experiment"]
    try:
        return parse_experiment(fill(stored["settings"], stored["defaults"]))
    except InputError as error:
        if row["version"] in (None, __version__):
            raise
        versions = f"was written by undergrowth {row['version']}, and this is version {__version__}"
        raise InputError(f"run '{row['id']}' {versions}: {error}") from None
    except (LookupError, AttributeError, TypeError) as error:
        reason = f"{type(error).__name__}: {error}"
        raise InputError(f"run '{row['id']}' has a damaged row in the store ({reason})") from None


def fill(raw: Mapping[str, Any], defaults: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
    """The dictionary of an experiment with `defaults` for the options that its sections do not set."""
    filled = {
        key: {**defaults.get(key, {}), **part} if isinstance(part, Mapping) else part for key, part in raw.items()
    }
    model = filled.get("model")
    if isinstance(model, dict) and isinstance(model.get("ladder"), list):
        model["ladder"] = [
            _with_defaults(rung, defaults.get(f"{LADDER}.{number}", {})) for number, rung in enumerate(model["ladder"])
        ]
    return filled


def _with_defaults(part: Mapping[str, Any], defaults: Mapping[str, Any]) -> dict[str, Any]:
    """The part with `defaults` for keys that it lacks, or that are None because the user left them out."""
    return {**part, **{key: value for key, value in defaults.items() if part.get(key) is None}}
