"""Every method on a GPU: stacked clients learn what the serial engine learns, and both engines resume bit for bit."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest
import torch

import undergrowth as ug
from undergrowth.core.names import AUGMENT, KEYS
from undergrowth.engines.vector.recording import Recording
from undergrowth.methods import METHODS

from .conformance import RANDOM, experiment, random_experiment, run, start, weights
from .double_precision import ATOL, RTOL
from .stopping import facts, stopped_and_resumed

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")]

ENGINES_ON_A_GPU = ("serial", "vector")
ROUNDS, STOP = 4, 2

# BatchNorm, Adam and mutual learning carry rounding in float32 to 1e-2 of the weights of these. In float64 it stays
# below 1e-6.
COMPARED_IN_DOUBLE_PRECISION = ("fedbn", "reft", "fedkd", "mutual-groups")


def experiment_on_a_gpu(method: str, engine: str, folder: Path) -> dict[str, Any]:
    """An experiment in float32 with small batches: a stack records its steps once it has done many of them.

    A resumed run starts to record later than a whole one.
    """
    raw = experiment(method, folder, engine=engine, device="cuda")
    raw["data"]["train_samples"] = 600
    raw["train"] = {"rounds": ROUNDS, "lr": 0.01, "batch": 8}
    return raw


@pytest.fixture(scope="module", params=METHODS)
def method(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(scope="module")
def whole(method: str, tmp_path_factory: pytest.TempPathFactory) -> dict[str, ug.Result]:
    folder = tmp_path_factory.mktemp(method)
    return {engine: start(experiment_on_a_gpu(method, engine, folder)) for engine in ENGINES_ON_A_GPU}


@pytest.fixture
def made(monkeypatch: pytest.MonkeyPatch) -> list[Recording]:
    """The recordings that are made during a test."""
    found: list[Recording] = []
    plain = Recording._record

    def record(self: Recording) -> torch.cuda.CUDAGraph:
        found.append(self)
        return plain(self)

    monkeypatch.setattr(Recording, "_record", record)
    return found


def assert_equal_results(vector: ug.Result, serial: ug.Result, rtol: float, atol: float) -> None:
    found = weights(vector)
    for name, value in weights(serial).items():
        torch.testing.assert_close(found[name], value, rtol=rtol, atol=atol)


def test_the_engine_does_not_matter(method: str, whole: dict[str, ug.Result], tmp_path: Path) -> None:
    serial, vector = whole["serial"], whole["vector"]
    assert list(vector.ledger.rows()) == list(serial.ledger.rows())
    if method not in COMPARED_IN_DOUBLE_PRECISION:
        assert_equal_results(vector, serial, rtol=1e-3, atol=1e-4)
        return
    serial, vector = (run(experiment_on_a_gpu(method, engine, tmp_path)) for engine in ENGINES_ON_A_GPU)
    assert_equal_results(vector, serial, RTOL, ATOL)


@pytest.mark.parametrize("engine", ENGINES_ON_A_GPU)
def test_a_stopped_run_is_resumed_bit_for_bit(
    method: str, engine: str, whole: dict[str, ug.Result], tmp_path: Path
) -> None:
    resumed = stopped_and_resumed(experiment_on_a_gpu(method, engine, tmp_path), STOP, str(tmp_path))
    assert facts(resumed) == facts(whole[engine])


@pytest.mark.parametrize("method", RANDOM)
def test_the_engine_does_not_matter_with_augmentation(method: str, tmp_path: Path) -> None:
    results = []
    for engine in ENGINES_ON_A_GPU:
        raw = experiment_on_a_gpu(method, engine, tmp_path)
        raw["data"]["augment"] = "crop+flip+cutout:3"
        results.append(start(raw))
    serial, vector = results
    assert vector.history[-1]["not_stacked"] == 0
    assert_equal_results(vector, serial, rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("method", RANDOM)
def test_the_engine_does_not_matter_with_dropout(method: str, tmp_path: Path) -> None:
    results = []
    for engine in ENGINES_ON_A_GPU:
        raw = random_experiment(method, tmp_path)
        raw["run"] |= {"engine": engine, "device": "cuda"}
        results.append(run(raw))
    serial, vector = results
    assert list(vector.ledger.rows()) == list(serial.ledger.rows())
    assert_equal_results(vector, serial, RTOL, ATOL)


@pytest.mark.parametrize("precision", ["float32", "bf16"])
@pytest.mark.parametrize("method", ["fedavg", "fedfsc", "fedmd"])
def test_a_run_with_dropout_is_stacked_recorded_and_resumed_bit_for_bit(
    method: str, precision: str, tmp_path: Path, made: list[Recording]
) -> None:
    raw = random_experiment(method, tmp_path)
    raw["data"]["train_samples"] = 600
    raw["train"] |= {"rounds": ROUNDS, "batch": 8}
    raw["run"] = {"engine": "vector", "device": "cuda", "precision": precision, "seed": 5}
    whole = start({**raw, "run": {**raw["run"], "out": str(tmp_path / "whole")}})
    assert whole.history[-1]["not_stacked"] == 0
    assert any(KEYS in each.batch and each.possible for each in made)
    resumed = stopped_and_resumed(raw, STOP, str(tmp_path / "stopped"))
    assert facts(resumed) == facts(whole)


def test_frozen_statistics_in_a_stack(tmp_path: Path) -> None:
    results = []
    for engine in ENGINES_ON_A_GPU:
        raw = experiment_on_a_gpu("ft", engine, tmp_path)
        raw["model"] = {"name": "resnet-8", "width": 4, "statistics": "frozen"}
        results.append(start(raw))
    serial, vector = results
    assert vector.history[-1]["not_stacked"] == 0
    assert_equal_results(vector, serial, rtol=1e-3, atol=1e-4)


def test_augmentation_is_recorded_and_does_not_make_the_cpu_wait(tmp_path: Path, made: list[Recording]) -> None:
    """A step that waits for the GPU cannot be recorded."""
    raw = experiment_on_a_gpu("fedavg", "vector", tmp_path)
    raw["data"]["augment"] = "crop+flip+cutout:3"
    start(raw)
    assert made and all(AUGMENT in each.batch and each.possible for each in made)


@pytest.mark.parametrize("method", ["local", "central", "fedat"])
@pytest.mark.parametrize("engine", ENGINES_ON_A_GPU)
def test_devices_select_samples_with_weights_that_they_made_themselves(
    method: str, engine: str, tmp_path: Path
) -> None:
    raw = experiment_on_a_gpu(method, engine, tmp_path)
    raw["train"]["selector"] = "entropy:0.5"
    raw["run"]["precision"] = "bf16"
    assert math.isfinite(start(raw).loss)
