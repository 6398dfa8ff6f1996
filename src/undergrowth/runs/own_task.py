"""Builds the task of a run: one of the four kinds, with the loss and the metrics of the user."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from undergrowth.core import CODE_ERRORS, TASKS, InputError, Metric, NextToken, Shard, Task, TaskKind, suggest
from undergrowth.core.errors import describe_with_type
from undergrowth.runs.config import Experiment
from undergrowth.runs.own_objects import resolve
from undergrowth.runs.store import ROUND_COLUMNS
from undergrowth.runs.task_section import TaskSection


@dataclass(frozen=True)
class TaskFunctions:
    """Functions that Python users gave as objects. A function that can be imported is named in the experiment."""

    loss: Callable[..., Any] | None = None
    metrics: Mapping[str, Callable[..., Any]] = field(default_factory=dict)


def reference_to(function: Any) -> str | None:
    """`module:name`, if another process can import the function by that name."""
    module, name = getattr(function, "__module__", None), getattr(function, "__qualname__", "")
    found: Any = sys.modules.get(module or "")
    for step in name.split("."):
        found = getattr(found, step, None)
    return f"{module}:{name}" if found is function and module != "__main__" else None


def build_kind(experiment: Experiment, task: str, functions: TaskFunctions | None = None) -> TaskKind:
    """The kind of task that the data is for, with what the section `task` says about it."""
    section, functions = experiment.task, functions or TaskFunctions()
    loss = functions.loss or (None if section.loss is None else resolve("task.loss", section.loss))
    metrics: dict[str, Any] = {
        **{name: resolve(f"task.metrics.{name}", text) for name, text in section.metrics.items()},
        **functions.metrics,
    }
    for name in metrics:
        if not isinstance(name, str):
            raise InputError(f"metrics: the name {name!r} must be a word, such as mae")
    for path, each in {"task.loss": loss, **{f"task.metrics.{name}": each for name, each in metrics.items()}}.items():
        if each is not None and not callable(each):
            raise InputError(f"{path} is a {type(each).__name__}; it must be a function of outputs and labels")
    kind = TASKS[task]
    for name in metrics:
        if name in {each.name for each in kind.metrics} or name in ROUND_COLUMNS or not name.isidentifier():
            raise InputError(f"task.metrics.{name}: a run has that figure already, or it is no plain word; rename it")
    if section.padding is not None and kind is not NextToken:
        raise InputError(f"task.padding {section.padding} is for the task next-token, and the task is {task}")
    padding = {"padding": section.padding} if kind is NextToken else {}
    return kind(loss, metrics, _main_metric(section, kind, metrics), **padding)


def _main_metric(section: TaskSection, kind: type[TaskKind], own: Mapping[str, Any]) -> Metric | None:
    known = {each.name: each for each in kind.metrics}
    if section.main is None or section.main in known:
        if section.better is not None:
            metric = known[section.main] if section.main else kind.metrics[0]
            direction = "higher" if metric.higher else "lower"
            if section.better != direction:
                raise InputError(
                    f"task.better '{section.better}': of {metric.name}, {direction} is better; leave it out"
                )
        return None if section.main is None else known[section.main]
    if section.main not in own:
        raise InputError(
            f"task.main '{section.main}' is not a metric of the run; {suggest(section.main, [*known, *own])}"
        )
    if section.better is None:
        raise InputError(f"task.better is missing: say whether a higher or a lower {section.main} is better")
    return Metric(section.main, section.better == "higher")


def check_functions(task: Task, shard: Shard) -> None:
    """Raises an `InputError` if the user's loss or metrics fail on the first sample of `shard`, taken twice."""
    kind = task.kind
    if kind.loss is None and not kind.own_metrics:
        return
    x, y = (part[:1].repeat(2, *[1] * (part.dim() - 1)).to(task.model.torch_device) for part in (shard.x, shard.y))
    with torch.no_grad():
        outputs, labels = kind.aligned(task.model(task.model.initial(0), x), y)
    if kind.loss is not None:
        differentiable = outputs.detach().requires_grad_(outputs.is_floating_point())
        values = _call("task.loss", kind.loss, differentiable, labels)
        if not isinstance(values, Tensor) or not values.is_floating_point() or values.shape[:1] != (2,):
            got = type(values).__name__
            if isinstance(values, Tensor):
                got = f"{str(values.dtype).removeprefix('torch.')} values of shape {tuple(values.shape)}"
            raise InputError(
                f"task.loss returns {got} for 2 samples; it must return a loss for each sample, a float, "
                'as the functions of torch do with reduction="none"'
            )
        if differentiable.requires_grad and not values.requires_grad:
            raise InputError("task.loss has no gradient; compute it from the outputs, with functions of torch")
    for name, function in kind.own_metrics.items():
        measure(name, function, outputs, labels)


def measure(name: str, function: Callable[..., Any], outputs: Tensor, labels: Tensor) -> float:
    """The value of a metric of the user. Any exception in it becomes an `InputError`."""
    value = _call(f"task.metrics.{name}", function, outputs, labels)
    try:
        return float(value)
    except (TypeError, ValueError, RuntimeError):
        raise InputError(f"task.metrics.{name} returns a {type(value).__name__}; it must return one number") from None


def _call(path: str, function: Callable[..., Any], outputs: Tensor, labels: Tensor) -> Any:
    try:
        return function(outputs, labels)
    except CODE_ERRORS as error:
        shapes = f"outputs of shape {tuple(outputs.shape)} and labels of shape {tuple(labels.shape)}"
        raise InputError(f"{path} failed with {shapes}: {describe_with_type(error)}") from error
