"""Importing the package loads nothing heavy until it is used."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest


def loaded(statement: str) -> set[str]:
    """The modules that a fresh Python has loaded after `statement`."""
    command = [sys.executable, "-c", f"{statement}; import sys; print(' '.join(sys.modules))"]
    return set(subprocess.run(command, capture_output=True, text=True, check=True).stdout.split())


def test_the_package_alone_loads_nothing_heavy():
    heavy = {"torch", "numpy", "pydantic", "sklearn", "plotly", "rich", "safetensors", "yaml", "typer"}
    assert not loaded("import undergrowth") & heavy


def test_what_only_some_runs_need_is_not_loaded_for_all():
    rare = {"sklearn", "plotly", "typer", "PIL", "scipy", "pandas", "ray", "triton"}
    # Torch's own counter of FLOPs loads triton where it is installed.
    before = "import sys, torch.utils.flop_counter; before = set(sys.modules); from undergrowth import run"
    found = loaded(
        f"{before}; import undergrowth.data, undergrowth.engines; [sys.modules.pop(name) for name in before]"
    )
    assert not found & rare


FIRST_RUNS = {
    "cnn": {"model": "cnn"},
    "mlp": {"model": "mlp"},
    "validation": {"model": "mlp", "method": "adapt", "options": {"validation": 0.2, "patience": 1}},
    "personal": {"model": "mlp", "personal": True},
    "fedprox": {"model": "wrn-10-1", "method": "fedprox"},
    "fedft-eds": {"model": "resnet-8", "method": "fedft-eds"},
    "scaffold": {"model": "mlp", "method": "scaffold"},
    "qfedavg": {"model": "mlp", "method": "qfedavg"},
}


def test_a_first_run_does_not_load_what_takes_longer_than_the_run(tmp_path: Path) -> None:
    """In one process, because a start takes longer than these runs: the first run that loads something is named."""
    code = f"""
import sys
from undergrowth import run
from undergrowth.models import builder, describe
builder("wrn-16-1", (3, 8, 8), 2), builder("lstm", (5,), 3), describe("vgg-16")
assert "torch._dynamo" not in sys.modules, "checking a model loads the compiler, which takes a second at every start"
for name, settings in {FIRST_RUNS!r}.items():
    run(**settings, rounds=1, progress=False, out={str(tmp_path)!r})
    slow = {{"sklearn", "scipy", "sympy", "torch._dynamo", "pandas", "ray", "plotly"}} & sys.modules.keys()
    assert not slow, f"{{name}} loads {{slow}}"
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert not done.returncode, done.stderr


def test_every_public_name_can_be_imported():
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


def test_an_unknown_name_is_an_attribute_error():
    import undergrowth

    with pytest.raises(AttributeError, match="has no attribute 'runn'"):
        _ = undergrowth.runn
