"""The wheel: what is in it, and that an installation of it works outside the repository."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import sysconfig
import venv
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("wheel")
    build = [sys.executable, "-m", "hatchling", "build", "--target", "wheel", "--directory", str(folder)]
    subprocess.run(build, cwd=ROOT, check=True, capture_output=True)
    (built,) = folder.glob("undergrowth-*.whl")
    return built


@pytest.mark.slow
def test_the_wheel_holds_the_package_only(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        names = archive.namelist()
    assert {name.split("/")[0].split("-")[0] for name in names} == {"undergrowth"}
    assert not [name for name in names if "opponents" in name or "tests" in name]
    packaged = {name for name in names if name.startswith("undergrowth/")}
    sources = {f.relative_to(ROOT / "src").as_posix() for f in (ROOT / "src").rglob("*") if f.is_file()}
    assert packaged == {name for name in sources if "__pycache__" not in name}


@pytest.mark.slow
def test_an_installed_wheel_runs_and_reports_outside_the_repository(wheel: Path, tmp_path: Path) -> None:
    venv.create(tmp_path / "environment", with_pip=False)
    python = tmp_path / "environment" / "bin" / "python"
    pip = [sys.executable, "-m", "pip", "--python", str(python), "install", "--quiet", "--no-deps", "--no-index"]
    subprocess.run([*pip, str(wheel)], check=True)
    # The dependencies are those of the present environment. Its own .pth files, and so its undergrowth, are not read.
    (site,) = (tmp_path / "environment").glob("lib/*/site-packages")
    (site / "dependencies.pth").write_text(sysconfig.get_path("purelib"))
    clean = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    folder = tmp_path / "elsewhere"
    folder.mkdir()

    def execute(*command: str | Path) -> str:
        done = subprocess.run(command, cwd=folder, env=clean, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        return done.stdout

    assert execute(python, "-c", "import undergrowth; print(undergrowth.__file__)").startswith(str(site))
    program = python.with_name("undergrowth")
    words = ("--model", "logistic", "--clients", "4", "--rounds", "2", "-s", "fleet=mixed-edge", "--json")
    assert json.loads(execute(program, "run", *words).splitlines()[-1])["rounds"] == 2
    execute(program, "report", "last", "-o", "page.html")
    assert "<html" in (folder / "page.html").read_text()[:1000]
