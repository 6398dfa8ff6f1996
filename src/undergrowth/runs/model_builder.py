"""Builds the models that an experiment names, and checks them on a sample."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path

import torch
from pydantic import ValidationError
from torch import nn

from undergrowth.core import CODE_ERRORS, InputError, Method, Model, NextToken, Shard, Task, Weights, suggest
from undergrowth.core.errors import describe_with_type
from undergrowth.data import Population
from undergrowth.learning.adapters import WithAdapters
from undergrowth.models import WithFrozenStatistics, WithWeights, builder, check_weights, option_names
from undergrowth.runs.config import Experiment
from undergrowth.runs.data_builder import task_of
from undergrowth.runs.model_section import ModelSection, Rung
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
    built = _named(experiment.model, population) if model is None else _functional(model)
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
    return _functional(build) if is_reference(section.name) else Model(build)


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
    ladder = {name: _functional(build) for name, build in found.items()}
    for rung in experiment.model.ladder:
        if rung.label in ladder:
            raise InputError(f"model.ladder: '{rung.label}' is in it twice; each must differ from the others")
        try:
            ladder[rung.label] = _named(rung, population)
        except InputError as error:
            raise InputError(f"model.ladder: {error}") from None
    return ladder


def _functional(model: Callable[[], nn.Module]) -> Model:
    if isinstance(model, nn.Module):
        raise InputError("model: this is an nn.Module; give a callable that returns a fresh one, such as its class")
    try:
        with torch.random.fork_rng(devices=[]):
            built = model()
    except InputError:
        raise
    except CODE_ERRORS as error:
        message = f"model: the callable failed ({describe_with_type(error)}); it is called without arguments"
        raise InputError(message) from error
    if not isinstance(built, nn.Module):
        raise InputError(f"model: the callable returned a {type(built).__name__}; it must return an nn.Module")
    _check_parameters(dict(built.named_parameters()))
    return Model(model)


def _check_parameters(parameters: Mapping[str, nn.Parameter]) -> None:
    if not parameters:
        raise InputError("model: it has no parameters; there is nothing to train")
    lazy = [name for name, value in parameters.items() if isinstance(value, nn.parameter.UninitializedParameter)]
    if lazy:
        raise InputError(f"model: '{lazy[0]}' has no shape yet; give its layer the size of its input")
    cannot = [name for name, value in parameters.items() if value.is_complex()]
    if cannot:
        raise InputError(f"model: '{cannot[0]}' holds complex numbers; a model must hold floats")
    if not any(value.requires_grad for value in parameters.values()):
        raise InputError(
            f"model: none of its {len(parameters)} parameters requires a gradient; there is nothing to train"
        )


def check_models(task: Task, sample: Shard) -> Task:
    """The task, with models that know at which levels they cannot be trained on one sample.

    Raises `InputError` if the output of a model for the single sample does not fit its label.
    """
    checked, ladder = _check_model(task, sample), {}
    for name, model in task.ladder.items():
        try:
            ladder[name] = _check_model(replace(task, model=model), sample)
        except InputError as error:
            raise InputError(f"model.ladder '{name}': {str(error).removeprefix('model: ')}") from None
    return replace(task, model=checked, ladder=ladder)


def _check_model(task: Task, sample: Shard) -> Model:
    x, model, weights = sample.x, task.model, task.model.initial(0)
    output = _outputs(model, weights, x)
    needed = task.kind.output_problem(tuple(output.shape[1:]), tuple(sample.y.shape[1:]), task.classes)
    if needed is not None:
        raise InputError(
            f"model: its output for one sample has shape {tuple(output.shape[1:])}; the data needs {needed}"
        )
    model = model.with_example(x)
    if not _trains(model, weights, x, True):
        above = (level for level in model.levels if not _trains(model, weights, x, level))
        model = model.with_not_alone(frozenset((None, *above)))
    model.binding.levels.used.clear()  # by these checks; what the method uses is noted
    return model


def _outputs(model: Model, weights: Weights, x: torch.Tensor) -> torch.Tensor:
    """The output for the single sample `x`. Raises `InputError` if outputs for several cannot be trained on."""
    trained = {name: weights[name].detach().requires_grad_() for name in model.parameters}
    try:
        with torch.no_grad():
            copy = x.clone()
            output = model(weights, copy)
        several = model({**weights, **trained}, x.expand(3, *x.shape[1:]).clone())
    except InputError:
        raise
    except CODE_ERRORS as error:
        has_text = isinstance(error, (RuntimeError, ValueError, IndexError, TypeError)) and str(error).strip()
        reason = str(error).strip().splitlines()[0] if has_text else describe_with_type(error)
        if not x.is_floating_point():
            reason += "; whole numbers are read as tokens, so features must be floats"
        raise InputError(f"model: it cannot take an input of shape {tuple(x.shape[1:])}: {reason}") from error
    if copy._version:
        raise InputError("model: it changes its input in place, and with it the data; compute a new tensor instead")
    if not isinstance(output, torch.Tensor):
        raise InputError(f"model: its output is a {type(output).__name__}; it must be a tensor with a row per sample")
    if not output.is_floating_point():
        raise InputError(f"model: its output holds {str(output.dtype).removeprefix('torch.')}; it must hold floats")
    if output.isnan().any() and x.isfinite().all():
        raise InputError("model: its output for a sample is NaN before any training; check its weights and `forward`")
    rows = several.shape[0] if several.ndim else "no"
    if rows != 3:
        raise InputError(f"model: its output for 3 samples has {rows} rows; it must have one for each sample")
    if not several.requires_grad:
        raise InputError("model: its output has no gradient; do not detach it from the parameters")
    return output


def _trains(model: Model, weights: Weights, x: torch.Tensor, part: str | bool) -> bool:
    """Whether a part of a model can be trained on one sample. Batch normalisation of a single value cannot."""
    try:
        with torch.no_grad():
            model.run(weights, x, training=part)
    except ValueError:
        return False
    return True
