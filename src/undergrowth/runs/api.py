"""What Python users call: run, resume, load."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from typing import Any

from torch import nn

from undergrowth.core import InputError, Method
from undergrowth.data import Dataset, Population
from undergrowth.runs import run as execution
from undergrowth.runs.progress import Progress
from undergrowth.runs.result import Result


def run(
    method: str | Method = "fedavg",
    data: str | Dataset | Population = "digits",
    partition: str | None = None,
    clients: int | None = None,
    model: str | Callable[[], nn.Module] = "cnn",
    fleet: str = "uniform",
    topology: str = "star",
    *,
    path: str | None = None,
    rounds: int | None = None,
    sample: float | None = None,
    epochs: int | None = None,
    batch: int | None = None,
    lr: float | None = None,
    momentum: float | None = None,
    weight_decay: float | None = None,
    optimiser: str | None = None,
    schedule: str | None = None,
    deadline: float | None = None,
    availability: str | None = None,
    dropout: float | None = None,
    failure: float | None = None,
    selection: str | None = None,
    over_select: float | None = None,
    quorum: float | None = None,
    links: Mapping[str, Any] | None = None,
    seed: int | None = None,
    engine: str | None = None,
    device: str | None = None,
    out: str | None = None,
    options: Mapping[str, Any] | None = None,
    data_options: Mapping[str, Any] | None = None,
    model_options: Mapping[str, Any] | None = None,
    evaluate_every: int | None = None,
    checkpoint_every: int | None = None,
    progress: bool | None = None,
) -> Result:
    """Runs one experiment and returns its result.

    method, data and model are names (see `undergrowth methods`, `datasets`, `models`) or objects: a Method, a Dataset
    or Population, a callable that returns an nn.Module. Settings left out have the defaults of an experiment
    file: 10 rounds of one local epoch, batches of 32, SGD at 0.1, 20 devices, Dirichlet 0.1.
    deadline, availability, dropout, failure: what the fleet's devices are up against. selection, over_select, quorum:
    whom a server asks and waits for. links: codecs, such as {"up": "int8", "down": "fp16"}.
    `options`, `data_options` and `model_options` go to what is named. `progress`: a live display on standard
    error; by default when that is a terminal.
    """
    for name, thing, settings in (
        ("method", method, options),
        ("data", data, data_options),
        ("model", model, model_options),
    ):
        if settings and not isinstance(thing, str):
            prefix = "" if name == "method" else f"{name}_"
            raise InputError(
                f"{prefix}options go with a {name} given by name; this {name} is an object and has its own"
            )
    objects = {
        "method": None if isinstance(method, str) else method,
        "data": None if isinstance(data, str) else data,
        "model": None if isinstance(model, str) else model,
    }
    if objects["method"] is not None and not isinstance(method, Method):
        raise InputError(f"method: a {type(method).__name__} is neither a name nor a Method")
    if objects["data"] is not None and not isinstance(data, Dataset | Population):
        raise InputError(f"data: a {type(data).__name__} is neither a name nor a Dataset nor a Population")
    if objects["model"] is not None and not callable(model):
        raise InputError(f"model: a {type(model).__name__} is neither a name nor callable")
    tree: dict[str, Any] = {
        "method": {**(options or {}), "name": _name(method)},
        "data": {
            **(data_options or {}),
            "name": _name(data), "path": path, "partition": partition, "clients": clients,
        },
        "model": {**(model_options or {}), "name": _name(model)},
        "fleet": {
            "name": fleet, "deadline": deadline, "availability": availability, "dropout": dropout,
            "failure": failure,
        },
        "links": dict(links or {}),
        "topology": topology,
        "train": {
            "rounds": rounds, "sample": sample, "epochs": epochs, "batch": batch, "lr": lr, "momentum": momentum,
            "weight_decay": weight_decay, "optimiser": optimiser, "schedule": schedule, "selection": selection, "over_select": over_select, "quorum": quorum,
        },
        "run": {
            "seed": seed, "engine": engine, "device": device, "out": out, "evaluate_every": evaluate_every,
            "checkpoint_every": checkpoint_every,
        },
    }  # fmt: skip
    given = {
        name: {key: value for key, value in part.items() if value is not None} if isinstance(part, dict) else part
        for name, part in tree.items()
    }
    with _display(progress) as display:
        return execution.start(given, **objects, **display.hooks())  # type: ignore[arg-type]


def resume(
    run: str = "last",
    out: str = "runs",
    *,
    method: Method | None = None,
    data: Dataset | Population | None = None,
    model: Callable[[], nn.Module] | None = None,
    progress: bool | None = None,
) -> Result:
    """Goes on with a run after its last finished round, bit for bit as if it had never stopped."""
    with _display(progress) as display:
        return execution.resume(run, out, method=method, data=data, model=model, **display.hooks())


def _display(progress: bool | None) -> Progress:
    return Progress(sys.stderr.isatty() if progress is None else progress)


def _name(thing: Any) -> str:
    if isinstance(thing, str):
        return thing
    named = getattr(thing, "name", None)
    return named if isinstance(named, str) else getattr(thing, "__name__", type(thing).__name__).lower()
