"""Builds the models that an experiment names."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

from pydantic import ValidationError
from torch import nn

from undergrowth.core import InputError, Method, Model, NextToken, suggest
from undergrowth.data import Population
from undergrowth.learning.adapters import WithAdapters
from undergrowth.models import WithFrozenStatistics, WithWeights, builder, check_weights, option_names
from undergrowth.runs.config import Experiment
from undergrowth.runs.data_builder import task_of
from undergrowth.runs.model_section import ModelSection, Rung
from undergrowth.runs.own_model import functional_model
from undergrowth.runs.own_objects import OwnModelBuilder, is_reference
from undergrowth.runs.sections import Named
from undergrowth.runs.validation_errors import explain


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


def build_model(experiment: Experiment, population: Population, model: Callable[[], nn.Module] | Model | None) -> Model:
    """The model of the run, with the weights in `start.weights`. `model` replaces the one that the experiment names."""
    if isinstance(model, Model):
        return model
    built = _named(experiment.model, population) if model is None else functional_model(model)
    return _prepared(built, experiment)


def _prepared(model: Model, experiment: Experiment) -> Model:
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


def _named(section: Named, population: Population) -> Model:
    build = named_model(section, population)
    if is_reference(section.name):
        return functional_model(build)
    try:
        return Model(build)
    except RuntimeError as error:
        if "allocate memory" not in str(error):
            raise
        raise InputError(
            f"model {section.name}: its weights do not fit into the memory of this machine; give smaller options, or "
            f"data with fewer classes than {population.classes}"
        ) from None


def named_model(section: Named, population: Population) -> Callable[[], nn.Module]:
    """A callable that makes the model that a section names.

    The hint for an unknown option considers the keys of the section too.
    """
    options = section.options
    if isinstance(section, Rung) and section.init is not None:  # a key of a rung; of the run's model it is an option
        options["init"] = section.init
    if is_reference(section.name):
        return OwnModelBuilder(section.name, options)
    known = option_names(section.name)
    for key in options:
        if key not in known:
            hint = suggest(key, [*known, *type(section).model_fields])
            raise InputError(f"model {section.name}: unknown option '{key}'; {hint}")
    per_position = task_of(population) == NextToken.name
    return builder(section.name, population.shape, population.classes, per_position=per_position, **options)


def build_ladder(
    experiment: Experiment, population: Population, model: Callable[[], nn.Module] | Model | None
) -> dict[str, Model]:
    """Models that devices may use instead of the run's model, by name. An object has them in its attribute `ladder`."""
    given = model.build if isinstance(model, Model) else model
    if given is None and is_reference(experiment.model.name):
        given = named_model(experiment.model, population)
    found = getattr(given, "ladder", {})
    if not isinstance(found, Mapping):
        raise InputError(f"model: its attribute 'ladder' is {found!r}; it must be a dictionary of callables by name")
    ladder = {name: functional_model(build) for name, build in found.items()}
    for rung in experiment.model.ladder:
        if rung.label in ladder:
            raise InputError(f"model.ladder: '{rung.label}' is in it twice; each must differ from the others")
        try:
            ladder[rung.label] = _named(rung, population)
        except InputError as error:
            raise InputError(f"model.ladder: {error}") from None
    return ladder
