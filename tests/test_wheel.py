"""The wheel works without the repository: installed into an environment of its own, it runs and reports."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import sysconfig
import venv
import zipfile
from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[1]


def call(*command: Any, **options: Any) -> str:
    clean = {name: value for name, value in os.environ.items() if name != "PYTHONPATH" and "COV" not in name}
    done = subprocess.run([str(part) for part in command], capture_output=True, text=True, env=clean, **options)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("wheel")
    pip = (sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--no-build-isolation")
    call(*pip, "--wheel-dir", folder, ROOT)
    (made,) = folder.glob("undergrowth-*.whl")
    return made


@pytest.fixture(scope="module")
def environment(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An environment with the wheel alone. Its dependencies are those of this one, found by their path.

    The path does not lead to the repository: an editable installation is a `.pth` file, and those are read only in the
    environment's own folder.
    """
    folder = tmp_path_factory.mktemp("environment")
    venv.create(folder, with_pip=False)
    python = folder / "bin/python"
    packages = Path(call(python, "-c", "import sysconfig; print(sysconfig.get_path('purelib'))").strip())
    call(sys.executable, "-m", "pip", "--python", python, "install", "--quiet", "--no-deps", wheel)
    (packages / "dependencies.pth").write_text(sysconfig.get_path("purelib"))
    return folder


def test_the_wheel_holds_the_package_and_nothing_else(wheel: Path) -> None:
    names = zipfile.ZipFile(wheel).namelist()
    assert {name.partition("/")[0].partition("-")[0] for name in names} == {"undergrowth"}
    assert not [name for name in names if "opponents" in name]
    there = {f"undergrowth/{path.relative_to(ROOT / 'src/undergrowth')}" for path in (ROOT / "src").rglob("*.yaml")}
    assert there <= set(names)


def test_the_installed_wheel_runs_and_reports(environment: Path, tmp_path: Path) -> None:
    command = environment / "bin/undergrowth"
    where = call(environment / "bin/python", "-c", "import undergrowth; print(undergrowth.__file__)", cwd=tmp_path)
    assert Path(where.strip()).is_relative_to(environment)
    said = call(command, "run", "--model", "logistic", "--clients", "4", "--rounds", "2", "--json", cwd=tmp_path)
    run = json.loads(said.splitlines()[-1])
    assert 0 <= run["accuracy"] <= 1
    call(command, "report", run["run"], "-o", "page.html", cwd=tmp_path)
    assert "<html" in (tmp_path / "page.html").read_text(encoding="utf-8").lower()
