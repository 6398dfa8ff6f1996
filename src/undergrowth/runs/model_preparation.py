"""What an experiment and a method change in the run's model: adapters, statistics, initial weights, levels."""

from __future__ import annotations

from pathlib import Path

from pydantic import ValidationError

from undergrowth.core import InputError, Method, Model
from undergrowth.learning.adapters import WithAdapters
from undergrowth.models import WithFrozenStatistics, WithWeights, check_weights
from undergrowth.runs.config import Experiment, explain
from undergrowth.runs.model_section import ModelSection


def with_model_settings(experiment: Experiment, method: Method) -> Experiment:
    """The experiment with the settings of its model that the method needs."""
    needed = method.model_settings
    if not needed:
        return experiment
    given = dict(experiment.model)
    try:
        checked = ModelSection.model_validate({**given, **needed})
    except ValidationError as error:
        raise InputError(explain(error, ModelSection, "model")) from None
    for key in needed:
        if given[key] not in (None, getattr(checked, key)):
            raise InputError(f"model.{key}: the method has options for that, which say something else; leave it out")
    model = experiment.model.model_copy(update={key: getattr(checked, key) for key in needed})
    return experiment.model_copy(update={"model": model})


def prepare_model(model: Model, experiment: Experiment) -> Model:
    """The model with the adapters, the statistics, the weights and the levels that the experiment names."""
    weights, levels, adapters = experiment.start.weights, experiment.model.levels, experiment.model.adapters
    model = model if adapters is None else Model(WithAdapters(model.build, adapters))
    model = model if experiment.model.statistics == "running" else Model(WithFrozenStatistics(model.build))
    model = model if weights is None else _with_weights(model, weights)
    return model if levels is None else model.with_levels(levels)


def _with_weights(model: Model, file: str) -> Model:
    """The model with initial weights from a file, without the file's head if that has another shape."""
    try:
        path = Path(file).expanduser()
        check_weights(model.module, path, skip_head=None)
    except (InputError, RuntimeError) as error:  # RuntimeError: ~name of an unknown user
        raise InputError(f"start.weights: {str(error).removeprefix('weights: ')}") from None
    return Model(WithWeights(model.build, path, skip_head=None))
