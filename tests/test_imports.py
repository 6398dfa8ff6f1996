"""Importing the package costs little beside torch, and nothing at all until something is used."""

from __future__ import annotations

import subprocess
import sys

import pytest

TIMED = "import time; began = time.process_time(); {statement}; print(time.process_time() - began)"


def seconds(statement: str) -> float:
    command = [sys.executable, "-c", TIMED.format(statement=statement)]
    return float(subprocess.run(command, capture_output=True, text=True, check=True).stdout)


def test_importing_the_package_takes_next_to_nothing_and_what_runs_need_half_as_long_again_as_torch():
    """Turn by turn, and the best of each: others use the machine too."""
    statements = ("import undergrowth", "from undergrowth import run, resume, load, methods", "import torch")
    package, needed, torch = map(min, zip(*([seconds(each) for each in statements] for _ in range(3))))
    assert package < 0.2 * torch
    assert needed <= 1.6 * torch  # CPU time, and a tenth for noise


def loaded(statement: str) -> set[str]:
    command = [sys.executable, "-c", f"{statement}; import sys; print(' '.join(sys.modules))"]
    return set(subprocess.run(command, capture_output=True, text=True, check=True).stdout.split())


def test_the_package_alone_loads_nothing_heavy():
    heavy = {"torch", "numpy", "pydantic", "sklearn", "plotly", "rich", "safetensors", "yaml", "typer"}
    assert not loaded("import undergrowth") & heavy


def test_what_only_some_runs_need_is_not_loaded_for_all():
    rare = {"sklearn", "plotly", "typer", "PIL", "scipy", "pandas", "ray"}
    assert not loaded("from undergrowth import run; import undergrowth.data, undergrowth.engines") & rare


def test_every_name_of_the_package_can_be_had():
    names = [
        "run",
        "resume",
        "load",
        "Result",
        "InputError",
        "RunError",
        "core",
        "data",
        "devices",
        "engines",
        "learning",
        "methods",
        "models",
    ]
    code = f"import undergrowth as ug; [getattr(ug, name) for name in {names}]; assert set({names}) <= set(dir(ug))"
    subprocess.run([sys.executable, "-W", "error", "-c", code], check=True)


def test_a_name_that_is_not_there_is_an_attribute_error():
    import undergrowth

    with pytest.raises(AttributeError, match="has no attribute 'runn'"):
        _ = undergrowth.runn
