"""A model of the user: made from its callable, and tried with one sample before anything starts."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace

import torch
from torch import nn

from undergrowth.core import CODE_ERRORS, InputError, Model, Shard, Task, Weights
from undergrowth.core.errors import describe_with_type


def functional_model(model: Callable[[], nn.Module]) -> Model:
    """The model that the callable makes. Raises `InputError` if it makes none that can be trained."""
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
    if isinstance(built, torch.jit.ScriptModule):
        raise InputError("model: it is compiled by torch.jit; give the module that it was made from")
    _check_parameters(dict(built.named_parameters()))
    unnamed = dict(built.named_parameters()).keys() - built.state_dict().keys()
    if unnamed:
        raise InputError(
            f"model: its state_dict has no '{min(unnamed)}', although it is a parameter; keep its name there"
        )
    found = Model(model)
    if found.module is built:  # a run trains one module and leaves weights in it, from which the next run would start
        raise InputError(
            "model: the callable returned the same nn.Module twice; it must return a fresh one every time, such as "
            "lambda: copy.deepcopy(net)"
        )
    return found


def _check_parameters(parameters: Mapping[str, nn.Parameter]) -> None:
    if not parameters:
        raise InputError("model: it has no parameters; there is nothing to train")
    lazy = [name for name, value in parameters.items() if isinstance(value, nn.parameter.UninitializedParameter)]
    if lazy:
        raise InputError(f"model: '{lazy[0]}' has no shape yet; give its layer the size of its input")
    empty = [name for name, value in parameters.items() if value.is_meta]
    if empty:
        raise InputError(f"model: '{empty[0]}' has no values, because it is on the device meta; make it on the cpu")
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
