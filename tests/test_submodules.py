"""Every submodule can be reached as an attribute of its package: no function or class has the same name."""

from __future__ import annotations

import importlib
import pkgutil

import undergrowth

OPTIONAL = {"flwr", "pfl", "ray", "triton"}  # imported by submodules that only work with an extra


def submodules() -> list[str]:
    """Names of all modules of the package that can be imported on this machine."""
    names = []
    for found in pkgutil.walk_packages(undergrowth.__path__, "undergrowth.", onerror=lambda name: None):
        try:
            importlib.import_module(found.name)
        except ModuleNotFoundError as error:
            assert error.name in OPTIONAL, found.name
        else:
            names.append(found.name)
    return names


def test_no_submodule_is_hidden() -> None:
    names = submodules()
    assert len(names) > 200
    hidden = []
    for name in names:
        package, _, attribute = name.rpartition(".")
        if getattr(importlib.import_module(package), attribute) is not importlib.import_module(name):
            hidden.append(name)
    assert hidden == []
