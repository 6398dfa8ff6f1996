"""Builds what an experiment names: population, public data, models; and checks the torch device."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import torch
from numpy.typing import NDArray
from torch import nn

from undergrowth.core import CODE_ERRORS, InputError, Model, NextToken, Shard, Task, Weights, suggest
from undergrowth.data import (
    Dataset,
    Population,
    check_task_name,
    describe,
    draw_public,
    hide_labels,
    is_hugging_face,
    is_population,
    load,
    normalise,
    partition_dataset,
    remove_samples,
    stream_population,
)
from undergrowth.models import builder, is_hugging_face_model, option_names
from undergrowth.runs.config import DataSection, Experiment, PublicSection
from undergrowth.runs.model_preparation import prepare_model
from undergrowth.runs.model_section import Rung
from undergrowth.runs.own_objects import OwnModelBuilder, construct, describe_error, is_reference
from undergrowth.runs.own_population import check_population
from undergrowth.runs.sections import Named

DEFAULT_CLIENTS = 20  # devices, if neither the user nor the data determines the number


def build_population(experiment: Experiment, data: Dataset | Population | None) -> Population:
    """The devices and their samples. `data` replaces the data set that the experiment names."""
    found, stream = _read_data(experiment, data), experiment.stream.stream
    population = _spread(experiment, found) if isinstance(found, Dataset) else _checked(experiment, found)
    return population if stream is None else stream_population(population, stream, experiment.run.seed)


def _read_data(experiment: Experiment, data: Dataset | Population | None) -> Dataset | Population:
    """The data that the experiment names, or `data`, for the task of the experiment."""
    section, task = experiment.data, experiment.task.name
    if data is None:
        data = _load(section, experiment, task)
        if isinstance(data, Dataset) and not is_reference(section.name) and task not in (None, data.task):
            raise InputError(f"task '{task}': data set '{data.name}' is for {data.task}")
    if is_hugging_face(data):
        options = {} if task is None else {"task": task}
        data = load("hf", data, **options | (section.options if section.name == "hf" else {}))  # type: ignore[arg-type]
    if isinstance(data, Dataset) and task not in (None, data.task):
        data = replace(data, task=task)
        data.check()
    return data


def _checked(experiment: Experiment, population: Population) -> Population:
    """The user's own population, if the experiment fits it."""
    check_population(population)
    clients, task, of_the_data = experiment.data.clients, experiment.task.name, task_of(population)
    if task not in (None, of_the_data):
        raise InputError(f"task '{task}': the data object is for {of_the_data}; its attribute `task` says so")
    if clients is not None and clients != len(population.devices):
        raise InputError(f"clients {clients}: the data object has {len(population.devices)} devices")
    if experiment.public.of_the_devices:
        raise InputError(
            "public: this data object is spread over its devices already; give it an attribute `public`, a Shard, "
            "or name another data set: {name: NAME}"
        )
    return population


def _spread(experiment: Experiment, data: Dataset) -> Population:
    """A data set on devices, without the samples that the section `public` takes out of it."""
    section, public = experiment.data, None
    if experiment.public.of_the_devices:
        indices = _public_indices(experiment, data)
        public, data = data.shard(indices), remove_samples(data, indices)
        public = hide_labels(public) if experiment.public.labelled is False else public
    natural = section.partition.partition(":")[0] == "natural"
    clients = section.clients or (None if natural else DEFAULT_CLIENTS)
    return replace(
        partition_dataset(data, section.partition, clients, experiment.run.seed, section.holdout), public=public
    )


def task_of(population: Population) -> str:
    """The task that the data is for."""
    task: str = getattr(population, "task", "classification")
    check_task_name(f"data '{population.name}'", task)
    return task


def build_public(experiment: Experiment, population: Population) -> Shard | None:
    """The samples that the server holds: from the data set in the section `public`, or from the population."""
    section = experiment.public
    if section.name is None:
        shard = getattr(population, "public", None)
        what = f"data '{population.name}': its public samples"
    else:
        task = task_of(population)
        figures = device_normalisation(experiment, population)
        try:
            data = _load(section, experiment, task)
        except InputError as error:
            raise InputError(f"public: {error}") from None
        if not isinstance(data, Dataset):
            raise InputError(f"public '{section.name}' made a {type(data).__name__}; it must be or return a Dataset")
        # Inputs of another shape are refused below.
        if figures is not None and section.options.get("normalise") is None and data.shape == population.shape:
            data = normalise(data, figures)
        shard = data.shard(_public_indices(experiment, data))
        what = f"public: the samples of data set '{data.name}'"
        if section.labelled and data.task != task:
            raise InputError(
                f"public.labelled true: data set '{data.name}' is for {data.task}, not {task}; write false"
            )
        if section.labelled and data.classes != population.classes:
            raise InputError(
                f"public.labelled true: data set '{data.name}' has {data.classes} classes and '{population.name}' has "
                f"{population.classes}, so the labels have different meanings; write false"
            )
        shard = shard if section.labelled else hide_labels(shard)
    if shard is not None and not len(shard):
        raise InputError(f"{what} are none; it needs at least one")
    if shard is not None and tuple(shard.x.shape[1:]) != tuple(population.shape):
        raise InputError(f"{what} have shape {tuple(shard.x.shape[1:])} and those of the devices {population.shape}")
    return shard


def _load(section: DataSection | PublicSection, experiment: Experiment, task: str | None) -> Dataset | Population:
    """The data that a section names, for `task` if its labels can be read in several ways.

    The hint for an unknown option considers the keys of the section too.
    """
    assert section.name is not None
    if is_reference(section.name):
        options = {**section.options, **({} if section.path is None else {"path": section.path})}
        which = "public" if isinstance(section, PublicSection) else "data"
        data: Dataset | Population = construct(which, section.name, options, is_data, "a Dataset or a Population")
        return data
    known = describe(section.name).options
    for key in section.options:
        if key not in known:
            hint = suggest(key, [*known, *type(section).model_fields])
            raise InputError(f"data set '{section.name}' has no option '{key}'; {hint}")
    options, model = section.options, experiment.model.name
    if is_hugging_face_model(model) and "tokenizer" in known and not options.get("words"):
        options = {"tokenizer": model.partition(":")[2], **options}  # the tokens that the model was trained with
    if task is not None and "task" in known:
        options = {"task": task, **options}
    return load(section.name, section.path, **options)


def is_data(found: Any) -> bool:
    """Whether `found` may take the place of a named data set."""
    return isinstance(found, Dataset) or is_population(found) or is_hugging_face(found)


def device_normalisation(experiment: Experiment, population: Population) -> bool | dict[str, Any] | None:
    """The option `normalise` for other data sets of the run, which get the devices' figures; None: as they are read."""
    if experiment.data.options.get("normalise") is None or is_reference(experiment.data.name):
        return None
    dataset: Dataset = population.dataset  # type: ignore[attr-defined]  # the option goes with a named data set
    mean, std = dataset.mean, dataset.std
    return False if mean is None or std is None else {"mean": list(mean), "std": list(std)}


def _public_indices(experiment: Experiment, data: Dataset) -> NDArray[Any]:
    section = experiment.public
    return draw_public(data, section.share, section.samples, section.missing, experiment.run.seed)


def build_model(experiment: Experiment, population: Population, model: Callable[[], nn.Module] | Model | None) -> Model:
    """The model of the run, with the weights in `start.weights`. `model` replaces the one that the experiment names."""
    if isinstance(model, Model):
        return model
    built = _named(experiment.model, population) if model is None else _functional(model)
    return prepare_model(built, experiment)


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
        told = f"model: the callable failed ({describe_error(error)}); it is called without arguments"
        raise InputError(told) from error
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
        told = isinstance(error, (RuntimeError, ValueError, IndexError, TypeError)) and str(error).strip()
        reason = str(error).strip().splitlines()[0] if told else describe_error(error)
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


def check_torch_device(name: str) -> str:
    """`name`, if torch can compute on that device of this machine. Raises `InputError` otherwise."""
    try:
        kind = torch.device(name).type
    except RuntimeError:
        kind = ""
    if kind not in ("cpu", "cuda"):
        raise InputError(f"run.device '{name}' is not a device that runs can be on; write cpu, cuda or cuda:0")
    # With this setting torch does not initialise CUDA here; processes forked later could not use it any more.
    os.environ.setdefault("PYTORCH_NVML_BASED_CUDA_CHECK", "1")
    if kind == "cuda" and not torch.cuda.is_available():
        raise InputError(f"run.device '{name}': torch finds no GPU on this machine; write cpu")
    return name
