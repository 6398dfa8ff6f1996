"""Every method on a real GPU: stacked clients end where the serial engine ends, and both engines go on bit for bit."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest
import torch

import undergrowth as ug
from undergrowth.methods import METHODS
from undergrowth.runs.execution import start

from .stopping import facts, stopped_and_resumed
from .test_conformance import settings, weights

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")]

ON = ("serial", "vector")
ROUNDS, STOP = 4, 2


def on_a_gpu(method: str, engine: str, folder: Path) -> dict[str, Any]:
    """Small batches: so many steps that stacks of clients record them, a whole run earlier than a resumed one."""
    tree = settings(method, engine, "star", folder)
    tree["train"] = {"rounds": ROUNDS, "lr": 0.01, "batch": 8}
    tree["run"]["device"] = "cuda"
    return tree


@pytest.fixture(scope="module", params=METHODS)
def method(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(scope="module")
def whole(method: str, tmp_path_factory: pytest.TempPathFactory) -> dict[str, ug.Result]:
    folder = tmp_path_factory.mktemp(method)
    return {engine: start(on_a_gpu(method, engine, folder)) for engine in ON}


def test_the_engine_does_not_matter(whole: dict[str, ug.Result]) -> None:
    serial, vector = whole["serial"], whole["vector"]
    for name, value in weights(serial).items():
        torch.testing.assert_close(weights(vector)[name], value, rtol=1e-3, atol=1e-4)
    assert list(vector.ledger.rows()) == list(serial.ledger.rows())


@pytest.mark.parametrize("engine", ON)
def test_a_stopped_run_goes_on_bit_for_bit(
    method: str, engine: str, whole: dict[str, ug.Result], tmp_path: Path
) -> None:
    resumed = stopped_and_resumed(on_a_gpu(method, engine, tmp_path), STOP, str(tmp_path))
    assert facts(resumed) == facts(whole[engine])


@pytest.mark.parametrize("method", ["local", "central", "fedat"])
@pytest.mark.parametrize("engine", ON)
def test_devices_look_for_samples_with_weights_that_they_made_themselves(
    method: str, engine: str, tmp_path: Path
) -> None:
    tree = on_a_gpu(method, engine, tmp_path)
    tree["train"]["selector"] = "entropy:0.5"
    tree["run"]["precision"] = "bf16"
    assert math.isfinite(start(tree).loss)
