"""A method is one place: the files that its reader opens, how its client is composed, where options are declared."""

from __future__ import annotations

import ast
import importlib
from dataclasses import FrozenInstanceError, fields, is_dataclass
from functools import cache
from pathlib import Path
from typing import Any

import pytest

import undergrowth
from undergrowth.core import LoopClient, Method, Updates
from undergrowth.learning import GradientClient, ReferenceClient
from undergrowth.methods import METHODS

PACKAGE = Path(undergrowth.__file__).parent
LEARNING, CORE = "undergrowth.learning", "undergrowth.core"
ALL_METHODS = pytest.mark.parametrize("name", METHODS)


def file_of(module: str) -> Path:
    path = PACKAGE.parent / module.replace(".", "/")
    return path / "__init__.py" if path.is_dir() else path.with_suffix(".py")


@cache
def imports(path: Path) -> tuple[tuple[str, str], ...]:
    """Module and name of everything that a file imports from this package, also for type checking only."""
    found = []
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("undergrowth"):
            found += [(str(node.module), alias.name) for alias in node.names]
    return tuple(found)


def defining_module(module: str, name: str) -> str:
    """The module that a name of a package's `__init__` comes from."""
    return next((origin for origin, other in imports(file_of(module)) if other == name), module)


def named_parts(path: Path) -> set[str]:
    """The modules of `learning` whose names a file uses."""
    pairs = [(module, name) for module, name in imports(path) if module.startswith(LEARNING)]
    return {defining_module(module, name) if module == LEARNING else module for module, name in pairs} - {CORE}


def method_files(name: str) -> set[Path]:
    path = file_of(METHODS[name].__module__)
    return set(path.parent.glob("*.py")) if path.name == "__init__.py" else {path}


def reachable_parts(files: set[Path]) -> set[str]:
    """The modules of `learning` that files use, directly or through other parts."""
    found: set[str] = set()
    new = set().union(*(named_parts(path) for path in files))
    while new:
        found |= new
        new = set().union(*(named_parts(file_of(module)) for module in new)) - found
    return found


@pytest.mark.parametrize(("name", "most"), [("fedavg", 4), ("fedkad", 6)])
def test_few_files_hold_a_method_and_the_parts_that_it_names(name: str, most: int) -> None:
    files = method_files(name)
    assert len(files) + len(set().union(*(named_parts(path) for path in files))) <= most


@ALL_METHODS
def test_a_method_and_everything_below_it_is_at_most_this_many_files(name: str) -> None:
    most = {"fedavg": 8, "fedprox": 8, "fedkad": 11}.get(name, 14)
    assert len(method_files(name)) + len(reachable_parts(method_files(name))) <= most


def test_a_part_of_learning_is_used_by_two_methods_at_least() -> None:
    users: dict[str, set[str]] = {}
    for method in {METHODS[name].__module__: name for name in METHODS}.values():
        for module in reachable_parts(method_files(method)):
            users.setdefault(module, set()).add(method)
    modules = {f"{LEARNING}.{path.stem}" for path in (PACKAGE / "learning").glob("*.py")} - {f"{LEARNING}.__init__"}
    of_the_run = {f"{LEARNING}.{part}" for part in ("adapters", "augmentation", "metrics", "own_training", "samplers")}
    assert {module for module in modules if len(users.get(module, ())) < 2} == of_the_run


def clients_of(method: Method) -> list[Any]:
    client = method.client
    if not isinstance(client, Updates):
        return [client]
    parts = [getattr(client, name, None) for name in ("full", "few_shot", "training", "measuring")]
    return [part for part in parts if isinstance(part, LoopClient)]


@ALL_METHODS
def test_a_client_has_at_most_one_class_between_itself_and_the_loop_client(name: str) -> None:
    """Two, if the first is the client of methods that compare with the received model."""
    for client in clients_of(METHODS[name]()):
        bases = type(client).__mro__[1 : type(client).__mro__.index(LoopClient)]
        assert bases in ((), (GradientClient,), (ReferenceClient, GradientClient))


@ALL_METHODS
def test_options_are_declared_once(name: str) -> None:
    """A client or server has the method as `options`; no field of it has the name of an option."""
    method = METHODS[name]()
    options = {field.name for field in fields(method)} if is_dataclass(method) else set()  # type: ignore[arg-type]
    shared = {field.name for field in fields(GradientClient)}
    for part in (method.server, *clients_of(method)):
        assert not options & {field.name for field in fields(part)} - shared


@ALL_METHODS
def test_the_runs_training_settings_hold_unless_an_option_is_given(name: str) -> None:
    method = METHODS[name]()
    for setting in ("epochs", "lr", "batch"):
        assert getattr(method, setting, None) is None


@ALL_METHODS
def test_rules_are_frozen(name: str) -> None:
    method = METHODS[name]()
    for part in (method, method.server, *clients_of(method)):
        with pytest.raises(FrozenInstanceError):
            part.anything = 1


def test_every_method_class_can_be_imported_from_its_module() -> None:
    for method in METHODS.values():
        assert getattr(importlib.import_module(method.__module__), method.__name__) is method
