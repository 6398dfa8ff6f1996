"""Settings of all tests.

No GPU is visible unless the tests for GPUs are chosen (`-m gpu`): a process that has trained on a GPU cannot be forked.

Torch computes with one thread. The models of the tests are so small that several threads only wait for each other.

Runs that name no engine use `serial`, which starts fastest. Tests of the engine `auto` (`tests/runs/test_choice.py`)
undo this.
"""

from __future__ import annotations

import os

import pytest

os.environ["OMP_NUM_THREADS"] = "1"  # before any conftest.py below this folder imports torch

# Tests that claim equality, bit for bit or up to rounding. `make test-arithmetic` runs them once more as a CPU without
# vector instructions would compute.
EQUALITY = (
    "tests/core/test_model",
    "tests/core/test_reducer",
    "tests/engines/",
    "tests/learning/",
    "tests/methods/",
    "tests/probes/",
    "tests/runs/test_resume",
    "tests/runs/test_own_states",
    "tests/test_conformance.py",
)


def pytest_configure(config: pytest.Config) -> None:
    if config.getoption("markexpr") != "gpu":
        os.environ["CUDA_VISIBLE_DEVICES"] = ""


@pytest.hookimpl(trylast=True)  # after pytest has ordered the tests by its own rules
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if item.nodeid.startswith(EQUALITY):
            item.add_marker(pytest.mark.equality)
    items.sort(key=_method_of)


def _method_of(item: pytest.Item) -> tuple[str, str]:
    """Puts the conformance tests of one method next to each other, because they share its serial run."""
    path, *_ = item.nodeid.partition("::")
    callspec = getattr(item, "callspec", None)
    method = callspec.params.get("method", "") if path == "tests/test_conformance.py" and callspec else ""
    return path, method


@pytest.fixture(scope="session", autouse=True)
def _brief(tmp_path_factory: pytest.TempPathFactory) -> None:
    from undergrowth.runs import choice

    choice.BRIEF = float("inf")
    os.environ["XDG_CACHE_HOME"] = str(tmp_path_factory.mktemp("cache"))  # for what they start
