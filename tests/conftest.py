"""Settings of all tests.

No GPU is visible unless the tests for GPUs are chosen (`-m gpu`): a process that has trained on a GPU cannot be forked.

Torch computes with one thread. The models of the tests are so small that several threads only wait for each other.
"""

from __future__ import annotations

import gc
import os
import signal
from collections.abc import Iterator

import pytest

# A shell ignores Ctrl-C in the background, and processes that tests start would inherit that.
signal.signal(signal.SIGINT, signal.default_int_handler)
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

# More than ten seconds each: a Ray cluster for each file, 100 000 devices, runs long enough to compare what they learn.
SLOW = (
    "tests/engines/test_ray",
    "tests/runs/test_scale.py",
    "tests/methods/test_fedft.py::test_tuning_stragglers_gives_more_accuracy_than_dropping_them",
)

# Tests that train with every method. `make test` runs them with these methods, which differ most in what the test is
# about: what a client carries from step to step, or which samples it sees. `make test-all` runs them with all.
EVERY_METHOD = {
    "tests/engines/test_recording.py::test_recorded_steps_of_every_method": {"local", "fedfsc", "heterofl"},
    "tests/learning/test_selectors_in_runs.py::test_every_method_takes_it_and_its_costs_fall": {
        "fedavg", "fedbuff", "fedft-eds", "fedat",
    },
}  # fmt: skip


def pytest_configure(config: pytest.Config) -> None:
    if config.getoption("markexpr") != "gpu":
        os.environ["CUDA_VISIBLE_DEVICES"] = ""
    # Warnings are errors, but notes of a run are none: tests that are about one expect it.
    config.addinivalue_line("filterwarnings", "ignore::undergrowth.core.RunWarning")


def pytest_collection_finish() -> None:
    """Makes garbage collections rarer: nearly all that they visit are modules and tests, a seventh of the time."""
    gc.freeze()
    gc.set_threshold(50_000, 20, 50)


@pytest.hookimpl(wrapper=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> Iterator[None]:
    """Adds marks before pytest selects by them, and orders the tests after pytest has ordered them by its own rules."""
    for item in items:
        if item.nodeid.startswith(EQUALITY):
            item.add_marker(pytest.mark.equality)
        methods = EVERY_METHOD.get(item.nodeid.partition("[")[0])
        if (methods and _method_of(item) not in methods) or item.nodeid.startswith(SLOW):
            item.add_marker(pytest.mark.slow)
    yield
    # The conformance tests of one method share its serial run, so they follow each other.
    items.sort(key=lambda item: (item.path, _method_of(item) if item.path.stem == "test_conformance" else ""))


def _method_of(item: pytest.Item) -> str:
    """The parameter `method` of a test, or an empty text."""
    callspec = getattr(item, "callspec", None)
    return str(callspec.params.get("method", "")) if callspec else ""
