"""Objects of the user that an experiment names as `module:object`, such as `mymodule:Net`.

The module is imported from the current folder or from an installed package. A run stores the names and a hash of the
source, so that `resume` and `report` find the same objects and notice that they have changed.
"""

from __future__ import annotations

import hashlib
import importlib
import inspect
import os
import sys
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, fields
from functools import cached_property
from pathlib import Path
from types import ModuleType
from typing import Any

from torch import nn

from undergrowth.core import CODE_ERRORS, InputError, suggest
from undergrowth.core.errors import describe_with_type, explain_errors
from undergrowth.methods import METHODS
from undergrowth.models import is_hugging_face_model
from undergrowth.runs.config import Experiment


def is_reference(name: str | None) -> bool:
    """Whether a name in an experiment stands for an object of the user."""
    return name is not None and ":" in name and not is_hugging_face_model(name)


def resolve(section: str, name: str) -> Any:
    """The object that `name` stands for. Raises `InputError` if the module or the object is missing."""
    path, _, qualified = name.partition(":")
    what = f"{section} '{name}'"
    if not all(step.isidentifier() for step in (*path.split("."), *qualified.split("."))):
        written = path.removesuffix(".py").strip("./").replace("/", ".")
        right = all(step.isidentifier() for step in (*written.split("."), *(qualified or "Net").split(".")))
        example = f"{written}:{qualified or 'Net'}" if right else "mymodule:Net"
        raise InputError(f"{what} must be module:object with dotted Python names, such as {example}")
    module = _import(what, path)
    found: Any = module
    for step in qualified.split("."):
        if not hasattr(found, step):
            choices = [key for key in dir(found) if not key.startswith("_")]
            defined = [key for key in choices if getattr(getattr(found, key), "__module__", None) == path]
            where = f"module '{path}'" if found is module else f"'{getattr(found, '__name__', found)}'"
            raise InputError(f"{what}: {where} has no '{step}'; {suggest(step, defined or choices)}")
        found = getattr(found, step)
    return found


def _import(what: str, path: str) -> ModuleType:
    folder = os.getcwd()
    if folder not in sys.path:
        sys.path.insert(0, folder)  # as Python does with the folder of a script
    importlib.invalidate_caches()  # the file may be seconds old
    try:
        module = importlib.import_module(path)
    except ModuleNotFoundError as error:
        if error.name is None or not f"{path}.".startswith(f"{error.name}."):
            raise InputError(f"{what}: importing '{path}' failed: {error}") from error
        files = [each.stem for each in Path(folder).glob("*.py")]
        hint = suggest(path, files)
        end = f"; {hint}" if hint.startswith("did") else ""
        raise InputError(f"{what}: there is no module '{path}' in '{folder}', and none is installed{end}") from None
    except CODE_ERRORS as error:
        raise InputError(f"{what}: importing '{path}' failed: {describe_with_type(error)}") from error
    here = Path(folder, *path.split("."))
    wanted = [each for each in (here / "__init__.py", here.with_suffix(".py")) if each.is_file()]
    loaded = getattr(module, "__file__", None)
    if wanted and loaded is not None and not any(os.path.samefile(loaded, each) for each in wanted):
        raise InputError(
            f"{what}: Python has already imported another module '{path}' ({loaded}); rename '{wanted[0]}'"
        )
    return module


def check_arguments(section: str, name: str, function: Callable[..., Any], options: Mapping[str, Any]) -> None:
    """Refuses the first key of `options` that is not an argument of `function`."""
    try:
        parameters = inspect.signature(function).parameters
    except (TypeError, ValueError):  # written in C: the call itself tells
        return
    kinds = {parameter.kind for parameter in parameters.values()}
    for key in options if inspect.Parameter.VAR_KEYWORD not in kinds else ():
        if key not in parameters:
            hint = suggest(key, parameters) if parameters else "it takes none"
            raise InputError(f"{section}.{key}: '{name}' has no argument '{key}'; {hint}")


def construct(section: str, name: str, options: Mapping[str, Any], fits: Callable[[Any], bool], words: str) -> Any:
    """The object itself if it `fits`, or what it returns when it is called with `options`. `words`: what would fit."""
    found = resolve(section, name)
    if not isinstance(found, type) and fits(found):
        if options:
            raise InputError(f"{section}.{next(iter(options))}: '{name}' is an object and takes no arguments")
        return found
    made = call(section, name, found, options, words)
    if not fits(made):
        raise InputError(f"{section} '{name}' made a {type(made).__name__}; it must be or return {words}")
    return made


def call(section: str, name: str, found: Any, options: Mapping[str, Any], words: str) -> Any:
    """What `found` returns. Any exception in it becomes an `InputError`."""
    if not callable(found):
        raise InputError(f"{section} '{name}' is of type {type(found).__name__}; it must be or return {words}")
    check_arguments(section, name, found, options)
    written = ", ".join(f"{key}={value!r}" for key, value in options.items())
    with explain_errors(f"{section}: {name}({written}) failed"):
        return found(**options)


@dataclass(frozen=True)
class OwnModelBuilder:
    """Builds a new module of the user at every call. The module's file is imported at the first call."""

    name: str
    options: Mapping[str, Any]

    @cached_property
    def found(self) -> Any:
        found = resolve("model", self.name)
        if isinstance(found, nn.Module):
            raise InputError(f"model '{self.name}' is an nn.Module; name a class or function that returns a new one")
        return found

    def __call__(self) -> nn.Module:
        made = call("model", self.name, self.found, self.options, "an nn.Module")
        if not isinstance(made, nn.Module):
            raise InputError(f"model '{self.name}' returned a {type(made).__name__}; it must return an nn.Module")
        return made

    @property
    def ladder(self) -> Mapping[str, Callable[[], nn.Module]]:
        """Models for weak devices, from the attribute of the same name."""
        ladder: Mapping[str, Callable[[], nn.Module]] = getattr(self.found, "ladder", {})
        return ladder


def references(experiment: Experiment) -> dict[str, str]:
    """The references of an experiment, each with the section that it is in."""
    named = [
        (experiment.method.name, "method"),
        (experiment.data.name, "data"),
        (experiment.public.name, "public"),
        (experiment.start.data and experiment.start.data.name, "start"),
        (experiment.model.name, "model"),
        *((rung.name, "model") for rung in experiment.model.ladder),
        *((name, "method") for name in importable_options(experiment.method.name, experiment.method.options).values()),
        (experiment.task.loss, "loss"),
        *((name, "metrics") for name in experiment.task.metrics.values()),
    ]
    return {name: section for name, section in named if name and is_reference(name)}


def importable_options(method: str, options: Mapping[str, Any]) -> dict[str, str]:
    """The options of a built-in method whose values stand for objects of the user."""
    kind = METHODS.get(method)
    allowed = {field.name for field in fields(kind) if field.metadata.get("importable")} if kind else set()  # type: ignore[arg-type]
    return {key: name for key, name in options.items() if key in allowed and isinstance(name, str) and ":" in name}


def source_records(experiment: Experiment, objects: Mapping[str, Any]) -> list[dict[str, str]]:
    """Module, qualified name and SHA-256 of the source of every reference; `objects` replaced names of sections."""
    return [
        {"section": section, "module": name.partition(":")[0], "name": name.partition(":")[2], "sha256": _hash(name)}
        for name, section in references(experiment).items()
        if objects.get(section) is None
    ]


def changed_sources(records: Iterable[Mapping[str, str]]) -> list[str]:
    """The references whose source is not that of the records."""
    names = {f"{record['module']}:{record['name']}": record for record in records}
    return [name for name, record in names.items() if _hash(name, record["section"]) != record["sha256"]]


def _hash(name: str, section: str = "source") -> str:
    """Hash of the file of the module that is named, and of the file that defines the object if that is another."""
    found = resolve(section, name)
    modules = {name.partition(":")[0], getattr(found, "__module__", None)}
    files = {getattr(sys.modules.get(each or ""), "__file__", None) for each in modules}
    digest = hashlib.sha256()
    for file in sorted(file for file in files if file):
        digest.update(Path(file).read_bytes())
    return digest.hexdigest()
