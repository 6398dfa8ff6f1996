"""What Python users call: run, resume, load."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from os import PathLike
from typing import Any

from torch import nn

from undergrowth.core import InputError, Method, nearest
from undergrowth.data import Dataset, Population
from undergrowth.runs import run as execution
from undergrowth.runs.config import experiment
from undergrowth.runs.plan import plan_rows
from undergrowth.runs.progress import Progress
from undergrowth.runs.result import Result


def run(
    method: str | Method = "fedavg",
    data: str | Dataset | Population = "digits",
    partition: str | None = None,
    clients: int | None = None,
    model: str | Callable[[], nn.Module] = "cnn",
    fleet: str | PathLike[str] = "uniform",
    topology: str | PathLike[str] = "star",
    *,
    path: str | PathLike[str] | None = None,
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
    selector: str | None = None,
    over_select: float | None = None,
    quorum: float | None = None,
    links: Mapping[str, Any] | None = None,
    public: float | str | Mapping[str, Any] | None = None,
    seed: int | None = None,
    engine: str | None = None,
    workers: int | None = None,
    placement: str | None = None,
    precision: str | None = None,
    stack: bool | None = None,
    chunk: int | None = None,
    address: str | None = None,
    device: str | None = None,
    out: str | PathLike[str] | None = None,
    options: Mapping[str, Any] | None = None,
    data_options: Mapping[str, Any] | None = None,
    model_options: Mapping[str, Any] | None = None,
    threads: int | None = None,
    evaluate_every: int | None = None,
    checkpoint_every: int | None = None,
    progress: bool | None = None,
) -> Result:
    """Runs one experiment and returns its result.

    method, data and model are names (see `undergrowth methods`, `datasets`, `models`) or objects: a Method, a Dataset
    or Population, a callable that returns an nn.Module. Settings left out have the defaults of an experiment
    file: 10 rounds of one local epoch, batches of 32, SGD at 0.1, 20 devices, Dirichlet 0.1.
    deadline, availability, dropout, failure: what the fleet's devices are up against. selection, over_select, quorum:
    whom a server asks and waits for. selector: on which of their samples devices train. links: codecs, such as
    {"up": "int8", "down": "fp16"}. public: data that the server holds, such as 0.1 of the training samples.
    `options`, `data_options` and `model_options` go to what is named. `progress`: a live display on standard
    error; by default when that is a terminal.
    """
    tree, objects = describe(locals())
    with _display(progress) as display:
        return execution.start(tree, **objects, **display.hooks())


def plan(method: str | Method | Sequence[str | Method] | None = None, **arguments: Any) -> list[dict[str, Any]]:
    """What taking part would cost, without training: a row for every method and class of devices.

    Takes the arguments of `run`; `method` may also be a list, or be left out for all methods.
    """
    several = isinstance(method, Iterable) and not isinstance(method, str)
    methods: list[Any] = list(method) if several else [] if method is None else [method]  # type: ignore[arg-type]
    for one in methods:
        _check_kind("method", one)
    named = next((name for name in methods if isinstance(name, str)), "fedavg")
    tree, objects = describe({"data": "digits", "model": "cnn", **arguments, "method": named})
    return list(plan_rows(experiment(tree), methods, objects["data"], objects["model"]))


def resume(
    run: str = "last",
    out: str | PathLike[str] = "runs",
    *,
    method: Method | None = None,
    data: Dataset | Population | None = None,
    model: Callable[[], nn.Module] | None = None,
    progress: bool | None = None,
) -> Result:
    """Goes on with a run after its last finished round, bit for bit as if it had never stopped."""
    with _display(progress) as display:
        return execution.resume(run, out, method=method, data=data, model=model, **display.hooks())


# Where each argument of `run` stands in an experiment.
_PLACES = {
    "data": ("path", "partition", "clients"),
    "fleet": ("deadline", "availability", "dropout", "failure"),
    "train": (
        "rounds", "sample", "epochs", "batch", "lr", "momentum", "weight_decay", "optimiser", "schedule", "selection",
        "selector", "over_select", "quorum",
    ),
    "run": (
        "seed", "engine", "workers", "placement", "precision", "stack", "chunk", "address", "device", "out",
        "threads",
        "evaluate_every", "checkpoint_every",
    ),
}  # fmt: skip

# What may stand for a name, in words, and the command that lists the names.
_KINDS: dict[str, tuple[Any, str, str]] = {
    "method": (Method, "a Method", "methods"),
    "data": ((Dataset, Population), "a Dataset nor a Population", "datasets"),
    "model": (Callable, "callable", "models"),
}
_DICTIONARIES = {
    "options": '{"mu": 0.1}',
    "data_options": '{"train_samples": 500}',
    "model_options": '{"norm": "group"}',
    "links": '{"up": "int8"}',
}


def describe(arguments: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """The experiment that the arguments of `run` describe, and the objects among them."""
    known = {*_PLACES, *(name for names in _PLACES.values() for name in names), *_KINDS, "links", "public", "topology"}
    tree: dict[str, Any] = {section: {} for section in _PLACES}
    objects: dict[str, Any] = {}
    for name in _KINDS:
        thing = arguments[name]
        _check_kind(name, thing)
        options = _mapping(arguments, "options" if name == "method" else f"{name}_options")
        objects[name] = None if isinstance(thing, str) else thing
        of_any = {"holdout"} if isinstance(thing, Dataset) else set()  # how it is spread is not the object's own
        if objects[name] is not None and options.keys() - of_any:
            raise InputError(f"{name}: options go with a name; this {name} is an object and has its own")
        tree.setdefault(name, {}).update({**options, "name": _name(thing)})
    for section, names in _PLACES.items():
        tree[section].update({name: arguments[name] for name in names if arguments.get(name) is not None})
    if arguments.get("fleet") is not None:
        tree["fleet"]["name"] = arguments["fleet"]
    tree["links"] = _mapping(arguments, "links")
    if arguments.get("public") is not None:
        tree["public"] = arguments["public"]
    if arguments.get("topology") is not None:
        tree["topology"] = arguments["topology"]
    extra = set(arguments) - known - {"options", "data_options", "model_options", "progress"}
    if extra:
        raise InputError(f"{min(extra)} is not an argument; {nearest(min(extra), known)}")
    return tree, objects


def _display(progress: bool | None) -> Progress:
    return Progress(sys.stderr.isatty() if progress is None else progress)


def _check_kind(name: str, thing: Any) -> None:
    kind, words, command = _KINDS[name]
    if not isinstance(thing, str) and not isinstance(thing, kind):
        what = "None" if thing is None else f"a {type(thing).__name__}"
        raise InputError(f"{name}: {what} is neither a name nor {words}; `undergrowth {command}` lists the names")


def _mapping(arguments: Mapping[str, Any], name: str) -> dict[str, Any]:
    given = arguments.get(name)
    if given is not None and not isinstance(given, Mapping):
        raise InputError(f"{name} {given!r} must be a dictionary, such as {name}={_DICTIONARIES[name]}")
    return dict(given or {})


def _name(thing: Any) -> str:
    if isinstance(thing, str):
        return thing
    named = getattr(thing, "name", None)
    return named if isinstance(named, str) else getattr(thing, "__name__", type(thing).__name__).lower()
