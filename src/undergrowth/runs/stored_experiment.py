"""What the store keeps of an experiment, so that a later version with other defaults resumes the same run."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from dataclasses import fields
from typing import Any

from undergrowth import __version__, data, models
from undergrowth.core import InputError
from undergrowth.methods import METHODS
from undergrowth.runs.config import Experiment, parse_experiment


def option_defaults(experiment: Experiment) -> dict[str, dict[str, Any]]:
    """The default of every option of the method, data set and model that `experiment` names.

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
        defaults["model"] = {"norm": model.norms[0], **model.options}
    return defaults


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


def fill(raw: Mapping[str, Any], defaults: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
    """The dictionary of an experiment with `defaults` for the options that its sections do not set."""
    return {key: {**defaults.get(key, {}), **part} if isinstance(part, Mapping) else part for key, part in raw.items()}
