"""The functions that Python users call: `run` and `resume`. `plan` is in `report`, because its result has a page."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from inspect import signature
from os import PathLike
from typing import Any

from torch import nn

from undergrowth.core import InputError, Method, RunWarning, suggest
from undergrowth.data import Dataset, Population, describe, is_hugging_face
from undergrowth.runs import execution
from undergrowth.runs.data_builder import is_data
from undergrowth.runs.engine_choice import AUTO
from undergrowth.runs.formats import RENAMES
from undergrowth.runs.own_task import TaskFunctions, reference_to
from undergrowth.runs.progress import show_progress
from undergrowth.runs.result import Result


def run(
    method: str | Method = "fedavg",
    data: str | Dataset | Population = "digits",
    partition: str | None = None,
    clients: int | None = None,
    model: str | Callable[[], nn.Module] = "cnn",
    fleet: str | PathLike[str] = "uniform",
    topology: str | PathLike[str] | Mapping[str, Any] = "star",
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
    server_link: str | Mapping[str, Any] | Sequence[str | Mapping[str, Any]] | None = None,
    server_device: str | Mapping[str, Any] | None = None,
    node_deadlines: Mapping[str, float] | None = None,
    sampler: str | None = None,
    selector: str | None = None,
    over_select: float | None = None,
    quorum: float | None = None,
    drop_last: bool | None = None,
    links: Mapping[str, Any] | None = None,
    public: float | str | Mapping[str, Any] | None = None,
    stream: Mapping[str, Any] | None = None,
    task: str | Mapping[str, Any] | None = None,
    loss: str | Callable[..., Any] | None = None,
    metrics: Mapping[str, str | Callable[..., Any]] | None = None,
    stop: Mapping[str, Any] | None = None,
    start: Mapping[str, Any] | None = None,
    personal: bool | Sequence[str] | Mapping[str, Any] | None = None,
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
    evaluate_every: int | str | None = None,
    checkpoint_every: int | None = None,
    if_all_refused: str | None = None,
    callbacks: Sequence[Any] | None = None,
    progress: bool = True,
    **unknown: Any,
) -> Result:
    """Runs one experiment and returns its result.

    `method`, `data` and `model` are names (see `undergrowth methods`, `datasets`, `models`) or objects: a Method, a
    Dataset, Population or Hugging Face data set, a callable that returns an nn.Module. Settings that are not given have
    the defaults of an experiment file: 10 rounds of one local epoch, batches of 32, SGD at 0.1, 20 devices, Dirichlet
    0.1.

    `deadline`, `availability`, `dropout`, `failure`: limits and faults of the simulated devices. `server_link`: the
    link of every server of a tree to its parent, such as "metro"; a list has one for each level, from the root down.
    `server_device`: the device on which servers train, such as "edge-server"; by default their training takes no time.
    `node_deadlines`: seconds by the name or the depth of a server, such as {"edge-00": 2}, instead of `deadline`.

    `sampler`, `over_select`, `quorum`: which devices a server asks, and how many answers end a round. `selector`: on
    which of their samples devices train. `links`: codecs, such as {"up": "int8", "down": "fp16"}. `public`: data that
    the server holds, such as 0.1 of the training samples. `stream`: samples that arrive, expire and shift, such as
    {"memory": 100, "arrive": 20, "shift": "sudden", "every": 10}.

    `task`: classification, regression, multi-label or next-token; by default what the data set is for. `loss`: a
    function of outputs and labels that returns a loss for each sample, instead of the task's. `metrics`: further
    functions of all outputs and labels that return a number, by name.

    `start`: what comes before the first round, such as {"weights": FILE} or {"data": {"name": "cifar100"}, "epochs":
    20, "warm_rounds": 1, "warm_epochs": 5}. `stop`: limits, the first of which ends the run, such as
    {"simulated_seconds": 600, "bytes": "1GB", "accuracy": 0.9}. `options`, `data_options`, `model_options`: options of
    the named method, data set and model. Each of the three may also be named as `module:object`, an object in a Python
    file of the current folder; these options are then its arguments.
    `personal`: True to train a local-only model on every device and an adapted one, and to evaluate all of them on
    its test samples; a list of adaptations, such as ["ewc", "kd"]; or {"adapt": ["ewc"], "epochs": 10}.

    `callbacks`: objects whose functions are called at the start, after every round and at the end, such as
    [ug.callbacks.EarlyStopping(patience=5)]; see `ug.callbacks.Callback`.
    `progress`: a progress bar on standard error, or a line a round if that is not a terminal. Notes of the run are
    issued as warnings of the category `ug.RunWarning`.
    """
    arguments = locals()
    arguments |= arguments.pop("unknown")
    raw, objects = parse_arguments(arguments)
    with show_progress(progress) as hooks:
        result = execution.start(raw, **objects, **hooks, callbacks=callbacks)
    _warn_of(result.notes)
    return result


def resume(
    run: str = "last",
    out: str | PathLike[str] = "runs",
    *,
    method: Method | None = None,
    data: Dataset | Population | None = None,
    model: Callable[[], nn.Module] | None = None,
    loss: Callable[..., Any] | None = None,
    metrics: Mapping[str, Callable[..., Any]] | None = None,
    allow_changed_source: bool = False,
    callbacks: Sequence[Any] | None = None,
    progress: bool = True,
) -> Result:
    """Continues a run after its last checkpoint; the result is bit for bit that of an uninterrupted run.

    A run that was given objects needs the same `method`, `data`, `model`, `loss` or `metrics` again. A run that names
    them as `module:object` imports them; if their source has changed since, it is refused unless `allow_changed_source`
    is set.
    """
    functions = None if loss is None and not metrics else TaskFunctions(loss, metrics or {})
    given: dict[str, Any] = {"method": method, "data": data, "model": model, "functions": functions}
    given["allow_changed_source"] = allow_changed_source
    with show_progress(progress) as hooks:
        result = execution.resume(run, out, **given, **hooks, callbacks=callbacks)
    _warn_of(result.notes)
    return result


# The section of an experiment for each argument of `run`.
_PLACES = {
    "data": ("path", "partition", "clients"),
    "fleet": ("deadline", "availability", "dropout", "failure", "server_link", "server_device", "node_deadlines"),
    "train": (
        "rounds", "sample", "epochs", "batch", "lr", "momentum", "weight_decay", "optimiser", "schedule", "sampler",
        "selector", "over_select", "quorum", "drop_last",
    ),
    "run": (
        "seed", "engine", "workers", "placement", "precision", "stack", "chunk", "address", "device", "out", "threads",
        "evaluate_every", "checkpoint_every", "if_all_refused",
    ),
}  # fmt: skip

# The type of object that may replace a name, that type in words, and the command that lists the names.
_KINDS: dict[str, tuple[Callable[[Any], bool], str, str]] = {
    "method": (lambda part: isinstance(part, Method), "a Method", "methods"),
    "data": (is_data, "a Dataset nor a Population", "datasets"),
    "model": (callable, "callable", "models"),
}
# Settings of an experiment that apply to an object as well as to a name.
_OBJECT_OPTIONS: dict[str, set[str]] = {"method": set(), "data": {"augment"}, "model": {"levels", "lora", "statistics"}}
_DICTIONARIES = {
    "options": '{"mu": 0.1}',
    "data_options": '{"train_samples": 500}',
    "model_options": '{"norm": "group"}',
    "links": '{"up": "int8"}',
    "stream": '{"memory": 100}',
    "stop": '{"simulated_seconds": 600}',
    "start": '{"warm_rounds": 1}',
    "task": '{"name": "regression"}',
    "metrics": '{"mae": my_function}',
}


def parse_arguments(arguments: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """The dictionary of the experiment that the arguments of `run` describe, and the objects among the arguments."""
    _refuse_unknown(arguments)
    given = {name: value for name, value in arguments.items() if value is not None}
    raw: dict[str, Any] = {section: {} for section in _PLACES}
    objects: dict[str, Any] = {}
    for name in _KINDS:
        part = arguments[name]
        check_kind(name, part)
        options = _mapping(arguments, "options" if name == "method" else f"{name}_options")
        objects[name] = None if isinstance(part, str) else part
        # The experiment spreads a Dataset over devices, which `holdout` is a setting of, and augments any data.
        allowed = _OBJECT_OPTIONS[name] | ({"holdout"} if isinstance(part, Dataset) else set())
        if is_hugging_face(part):
            allowed, part = {"holdout", "augment", *describe("hf").options}, "hf"
        if objects[name] is not None and options.keys() - allowed:
            raise InputError(f"{name}: options go with a name; this {name} is an object and has its own")
        raw.setdefault(name, {}).update({**options, "name": _name(part)})
    for section, names in _PLACES.items():
        raw[section].update({name: given[name] for name in names if name in given})
    if "fleet" in given:
        raw["fleet"]["name"] = given["fleet"]
    raw |= {name: _mapping(arguments, name) for name in ("links", "start", "stop", "stream")}
    raw["task"], objects["functions"] = _task_arguments(arguments)
    return {**raw, **{name: given[name] for name in ("personal", "public", "topology") if name in given}}, objects


def _refuse_unknown(arguments: Mapping[str, Any]) -> None:
    known = signature(run).parameters.keys() - {"unknown"}
    unknown = sorted(arguments.keys() - known)
    for rename in RENAMES:
        if rename.section in _PLACES and rename.old in unknown:
            raise InputError(f"the argument {rename.old} is now called {rename.new}")
    if unknown and unknown[0] in _PLACES:
        raise InputError(f"{unknown[0]} is not an argument; its settings are, such as {_PLACES[unknown[0]][0]}")
    if unknown:
        hint = f"an option of the method is given as options={{'{unknown[0]}': ...}}"
        raise InputError(f"{unknown[0]} is not an argument; {suggest(unknown[0], known)}; {hint}")


def _task_arguments(arguments: Mapping[str, Any]) -> tuple[dict[str, Any], TaskFunctions | None]:
    """The section `task`, and the functions among the arguments that cannot be named there as module:function."""
    task, loss, metrics = arguments.get("task"), arguments.get("loss"), _mapping(arguments, "metrics")
    section: dict[str, Any] = {"name": task} if isinstance(task, str) else _mapping(arguments, "task")
    named = {name: each if isinstance(each, str) else reference_to(each) for name, each in metrics.items()}
    reference = loss if loss is None or isinstance(loss, str) else reference_to(loss)
    if reference is not None:
        section["loss"] = reference
    if named:
        section["metrics"] = {**section.get("metrics", {}), **{name: text for name, text in named.items() if text}}
    others = {name: each for name, each in metrics.items() if named[name] is None}
    left = loss if reference is None else None
    return section, None if left is None and not others else TaskFunctions(left, others)


# Notes that begin like this tell what was decided, and nothing is wrong.
_INFORMATION = (AUTO, "processes: ", "stopped after round")


def _warn_of(notes: Iterable[str]) -> None:
    for note in notes:
        if not note.startswith(_INFORMATION):
            warnings.warn(note, RunWarning, stacklevel=3)


def check_kind(name: str, part: Any) -> None:
    """Raises `InputError` unless `part` is a name or an object that may stand for the argument `name`."""
    is_right, words, command = _KINDS[name]
    if not isinstance(part, str) and not is_right(part):
        what = "None" if part is None else f"a {type(part).__name__}"
        raise InputError(f"{name}: {what} is neither a name nor {words}; `undergrowth {command}` lists the names")


def _mapping(arguments: Mapping[str, Any], name: str) -> dict[str, Any]:
    given = arguments.get(name)
    if given is not None and not isinstance(given, Mapping):
        raise InputError(f"{name} {given!r} must be a dictionary, such as {name}={_DICTIONARIES[name]}")
    return dict(given or {})


def _name(part: Any) -> str:
    if isinstance(part, str):
        return part
    name = getattr(part, "name", None)
    return name if isinstance(name, str) else str(getattr(part, "__name__", type(part).__name__)).lower()
