"""Builds what an experiment names: population, public data, models; and checks the torch device."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import torch
from numpy.typing import NDArray
from torch import nn

from undergrowth.core import InputError, Model, NextToken, Shard, suggest
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
from undergrowth.runs.own_model import functional_model
from undergrowth.runs.own_objects import OwnModelBuilder, construct, is_reference
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
    built = _named(experiment.model, population) if model is None else functional_model(model)
    return prepare_model(built, experiment)


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
