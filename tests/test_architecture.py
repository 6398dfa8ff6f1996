"""The house rules that a machine can check: which package imports which, the length of files, and names."""

from __future__ import annotations

import ast
import importlib
import pkgutil
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

import undergrowth
from undergrowth.methods import METHODS

from . import conftest

PACKAGE = Path(undergrowth.__file__).parent
ROOT = Path(__file__).parents[1]
SOURCES = sorted(PACKAGE.rglob("*.py"))
TESTS = sorted((ROOT / "tests").rglob("*.py"))
PACKAGES = [f"undergrowth.{each.name}" for each in pkgutil.iter_modules([str(PACKAGE)]) if each.ispkg]
MAX_LINES, MAX_LINES_OF_A_METHOD = 350, 250
FORBIDDEN = {"utils", "util", "helpers", "helper", "common", "misc", "manager"}


def lint(*arguments: str) -> subprocess.CompletedProcess[str]:
    code = "from importlinter.cli import lint_imports_command; lint_imports_command()"
    command = [sys.executable, "-c", code, "--no-cache", *arguments]
    return subprocess.run(command, capture_output=True, text=True, cwd=ROOT)


def test_a_module_imports_only_from_packages_below_its_own():
    found = lint("--config", str(ROOT / ".importlinter"))
    assert found.returncode == 0, found.stdout + found.stderr
    assert "0 broken" in found.stdout


def test_the_contract_notices_an_import_in_the_wrong_direction(tmp_path):
    """The check is worth something only if the reversed order breaks the contract."""
    lines = (ROOT / ".importlinter").read_text().splitlines()
    first, last = lines.index("layers =") + 1, lines.index("    core") + 1
    reverse = tmp_path / "reverse"
    reverse.write_text("\n".join([*lines[:first], *reversed(lines[first:last]), *lines[last:]]))
    found = lint("--config", str(reverse), "--contract", "order")
    assert found.returncode == 1
    assert "undergrowth.learning is not allowed to import undergrowth.core" in found.stdout


def length(path: Path) -> int:
    return len(path.read_text(encoding="utf-8").splitlines())


@pytest.mark.parametrize("folder", [SOURCES, TESTS], ids=["src", "tests"])
def test_no_file_is_too_long(folder):
    assert {path.name: length(path) for path in folder if length(path) > MAX_LINES} == {}


def test_no_file_of_a_method_is_too_long():
    files = (PACKAGE / "methods").rglob("*.py")
    assert {path.name: length(path) for path in files if length(path) > MAX_LINES_OF_A_METHOD} == {}


def test_names_say_what_a_thing_is():
    named = [path for path in SOURCES + TESTS if set(path.stem.lower().split("_")) & FORBIDDEN]
    folders = [path for path in PACKAGE.rglob("*") if path.is_dir() and path.name in FORBIDDEN]
    assert named + folders == []
    for path in SOURCES:
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.ClassDef):
                assert not any(node.name.lower().endswith(word) for word in FORBIDDEN), f"{path.name}: {node.name}"
            elif isinstance(node, ast.FunctionDef):
                assert node.name.strip("_") not in FORBIDDEN, f"{path.name}: {node.name}"


@pytest.mark.parametrize("name", PACKAGES)
def test_no_submodule_is_hidden_by_something_of_its_name(name):
    """After `from undergrowth import devices`, `devices.fleet` must not be a function if there is a module `fleet`."""
    package = importlib.import_module(name)
    submodules = [each.name for each in pkgutil.iter_modules(package.__path__)]
    hidden = [each for each in submodules if not isinstance(vars(package).get(each, package), ModuleType)]
    assert hidden == []


def test_every_module_has_a_docstring():
    silent = [str(path.relative_to(PACKAGE)) for path in SOURCES if not ast.get_docstring(ast.parse(path.read_text()))]
    assert silent == []


@pytest.mark.parametrize("name", METHODS)
def test_every_method_has_a_runnable_example_and_is_named_in_its_docstring(name):
    documented = sys.modules[METHODS[name].__module__].__doc__ or ""
    assert ">>> import undergrowth as ug" in documented
    assert ">>> result = ug.run(method=" in documented
    assert name in documented.lower()


def test_a_method_does_not_inherit_from_another_method():
    for method in METHODS.values():
        assert not [base for base in method.__mro__[1:] if base in METHODS.values()]


def test_marks_are_set_for_tests_that_exist():
    """A test that is renamed must not lose the mark that `tests/conftest.py` sets by its name."""
    for pattern in (*conftest.EQUALITY, *conftest.SLOW, *conftest.EVERY_METHOD):
        path, _, name = pattern.partition("::")
        files = [file for file in TESTS if str(file.relative_to(ROOT)).startswith(path)]
        assert any(f"def {name}" in file.read_text(encoding="utf-8") for file in files), pattern


def test_nothing_is_left_to_be_done():
    words = ("TO" + "DO", "FIX" + "ME", "XX" + "X")
    left = [f"{path.name}: {word}" for path in SOURCES for word in words if word in path.read_text(encoding="utf-8")]
    assert left == []
