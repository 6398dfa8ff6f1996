"""The house rules that a machine can check: who imports whom, how long files are, what they are called."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest

import undergrowth
from undergrowth.methods import METHODS

PACKAGE = Path(undergrowth.__file__).parent
ROOT = Path(__file__).parents[1]
SOURCES = sorted(PACKAGE.rglob("*.py"))
TESTS = sorted((ROOT / "tests").rglob("*.py"))
FORBIDDEN = {"utils", "util", "helpers", "helper", "common", "misc", "manager"}


def lint(*arguments: str) -> subprocess.CompletedProcess[str]:
    code = "from importlinter.cli import lint_imports_command; lint_imports_command()"
    command = [sys.executable, "-c", code, "--no-cache", *arguments]
    return subprocess.run(command, capture_output=True, text=True, cwd=ROOT)


def test_a_module_imports_only_from_packages_above_it():
    found = lint("--config", str(ROOT / ".importlinter"))
    assert found.returncode == 0, found.stdout + found.stderr
    assert "0 broken" in found.stdout


def test_the_contract_would_notice_an_import_in_the_wrong_direction(tmp_path):
    """Turned around, the order must be broken: else the check sees nothing."""
    lines = (ROOT / ".importlinter").read_text().splitlines()
    first, last = lines.index("layers =") + 1, lines.index("    core") + 1
    upside_down = tmp_path / "upside-down"
    upside_down.write_text("\n".join([*lines[:first], *reversed(lines[first:last]), *lines[last:]]))
    found = lint("--config", str(upside_down), "--contract", "order")
    assert found.returncode == 1
    assert "undergrowth.learning is not allowed to import undergrowth.core" in found.stdout


def length(path: Path) -> int:
    return len(path.read_text(encoding="utf-8").splitlines())


@pytest.mark.parametrize("folder", [SOURCES, TESTS], ids=["src", "tests"])
def test_no_file_is_longer_than_three_hundred_lines(folder):
    assert {path.name: length(path) for path in folder if length(path) > 300} == {}


def test_a_method_file_has_at_most_250_lines():
    files = (PACKAGE / "methods").rglob("*.py")
    assert {path.name: length(path) for path in files if length(path) > 250} == {}


def test_no_file_or_name_says_nothing_about_what_it_is():
    named = [path for path in SOURCES + TESTS if set(path.stem.lower().split("_")) & FORBIDDEN]
    folders = [path for path in PACKAGE.rglob("*") if path.is_dir() and path.name in FORBIDDEN]
    assert named + folders == []
    for path in SOURCES:
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.ClassDef):
                assert not any(node.name.lower().endswith(word) for word in FORBIDDEN), f"{path.name}: {node.name}"
            elif isinstance(node, ast.FunctionDef):
                assert node.name.strip("_") not in FORBIDDEN, f"{path.name}: {node.name}"


def test_every_module_says_what_it_is_for():
    silent = [str(path.relative_to(PACKAGE)) for path in SOURCES if not ast.get_docstring(ast.parse(path.read_text()))]
    assert silent == []


@pytest.mark.parametrize("name", METHODS)
def test_every_method_file_has_a_runnable_example_and_names_its_method(name):
    documented = sys.modules[METHODS[name].__module__].__doc__ or ""
    assert ">>> import undergrowth as ug" in documented
    assert ">>> result = ug.run(method=" in documented
    assert name in documented.lower()


def test_a_method_does_not_inherit_from_another_method():
    for method in METHODS.values():
        assert not [base for base in method.__mro__[1:] if base in METHODS.values()]


def test_nothing_is_left_to_be_done():
    words = ("TO" + "DO", "FIX" + "ME", "XX" + "X")
    left = [f"{path.name}: {word}" for path in SOURCES for word in words if word in path.read_text(encoding="utf-8")]
    assert left == []
