"""Importing the package loads nothing heavy until it is used."""

from __future__ import annotations

import subprocess
import sys

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
    found = loaded("from undergrowth import run; import undergrowth.data, undergrowth.engines")
    assert not (found - loaded("import torch")) & rare  # on some machines, torch itself loads triton


@pytest.mark.parametrize(
    "settings",
    [
        {"model": "cnn"},
        {"model": "mlp"},
        {"model": "mlp", "method": "adapt", "options": {"validation": 0.2, "patience": 1}},
        {"model": "mlp", "personal": True},
        {"model": "wrn-10-1", "method": "fedprox"},
        {"model": "resnet-8", "method": "fedft-eds"},
        {"model": "mlp", "method": "scaffold"},
        {"model": "mlp", "method": "qfedavg"},
    ],
    ids=["cnn", "mlp", "validation", "personal", "fedprox", "fedft-eds", "scaffold", "qfedavg"],
)
def test_a_first_run_does_not_load_what_takes_longer_than_the_run(tmp_path, settings):
    statement = f"from undergrowth import run; run(**{settings!r}, rounds=1, out={str(tmp_path)!r})"
    slow = {"sklearn", "scipy", "sympy", "torch._dynamo", "pandas", "ray", "plotly"}
    assert not loaded(statement) & slow


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
