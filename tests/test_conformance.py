"""Every method on every engine, in a star and in a tree: same model, same ledger, resumable, nothing pickled."""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

import pytest
import safetensors.torch
import torch

import undergrowth as ug
from undergrowth.engines import ENGINES
from undergrowth.methods import METHODS
from undergrowth.runs.execution import Execution, start
from undergrowth.runs.result import MODEL_FILE

ENGINES_HERE = [name for name in ENGINES if name not in ("serial", "ray")]  # ray has tests of its own
TOPOLOGIES = {"star": "star", "tree": "tree:2x3"}
ROUNDS = 3

# What a method needs beside the settings of all, and shorter training where it trains long. Server training of models
# without BatchNorm needs small steps: large ones blow up the last bits in which engines differ.
LADDER = {"name": "cnn", "hidden": 16, "ladder": [{"name": "cnn", "hidden": 8}, {"name": "cnn", "hidden": 24}]}
CONSENSUS = {"pretrain_epochs": 2, "server_lr": 0.01, "server_epochs": 2}
FEW_SHOT = {"few_shot_epochs": 2, "shots": 5}
EXTRA: dict[str, dict[str, Any]] = {
    "fedfsc": {"method": {"name": "fedfsc", **FEW_SHOT}},
    "fedfsc-plus": {"method": {"name": "fedfsc-plus", **FEW_SHOT}},
    "fscprox": {"method": {"name": "fscprox", **FEW_SHOT}},
    "fedsplit": {"method": {"name": "fedsplit", "clusters": 4, "meta_epochs": 5}},
    "fedmd": {"public": 0.1, "model": LADDER, "method": {"name": "fedmd", **CONSENSUS}},
    "fedkad": {"public": 0.1, "model": LADDER, "method": {"name": "fedkad", **CONSENSUS}},
    "fedat": {
        "public": 0.1,
        "model": LADDER,
        "method": {"name": "fedat", "beta": 0.1, "transfer_lr": 0.02, "metadata_lr": 0.02, "metadata_share": 0.5},
    },
}

CASES = [(method, shape) for method in METHODS for shape in TOPOLOGIES]


def test_the_number_of_cases_does_not_shrink() -> None:
    assert len(METHODS) >= 24
    assert len(CASES) * len(ENGINES_HERE) >= 24 * 2 * 2


def settings(method: str, engine: str, shape: str, folder: Path) -> dict[str, Any]:
    return {
        "method": method,
        "data": {"clients": 6, "partition": "dirichlet:1", "train_samples": 600},
        "model": {"name": "cnn", "hidden": 16},
        "fleet": "mixed-edge",
        "topology": TOPOLOGIES[shape],
        "train": {"rounds": ROUNDS, "lr": 0.05, "batch": 64},
        "run": {"engine": engine, "workers": 2, "out": str(folder), "seed": 5},
        **EXTRA.get(method, {}),
    }


@pytest.fixture(scope="session")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("conformance")


@pytest.fixture(scope="module", params=CASES, ids="-".join)
def case(request: pytest.FixtureRequest) -> tuple[str, str]:
    """Method and shape. All tests of one case come one after the other, so its serial run is needed once."""
    return request.param


def refuse(*_: Any, **__: Any) -> None:
    raise AssertionError("something was pickled")


@pytest.fixture(scope="module")
def serial(case: tuple[str, str], folder: Path) -> ug.Result:
    method, shape = case
    with pytest.MonkeyPatch.context() as patch:
        for name in ("dumps", "dump", "loads", "load"):
            patch.setattr(pickle, name, refuse)
        return start(settings(method, "serial", shape, folder))


def weights(result: ug.Result) -> dict[str, torch.Tensor]:
    return safetensors.torch.load_file(result.folder / MODEL_FILE)


@pytest.mark.parametrize("engine", ENGINES_HERE)
def test_the_engine_does_not_matter(case: tuple[str, str], engine: str, folder: Path, serial: ug.Result) -> None:
    method, shape = case
    result = start(settings(method, engine, shape, folder))
    for name, value in weights(serial).items():
        torch.testing.assert_close(weights(result)[name], value, rtol=1e-3, atol=1e-4)
    for total in ("bytes_down", "bytes_up", "flops", "simulated_seconds", "joules", "peak_device_bytes"):
        assert getattr(result.ledger, total) == getattr(serial.ledger, total)
    assert list(result.ledger.rows()) == list(serial.ledger.rows())


def test_a_stopped_run_goes_on_bit_for_bit(case: tuple[str, str], folder: Path, serial: ug.Result) -> None:
    method, shape = case
    stopped: list[str] = []

    def stop(row: Any, execution: Execution) -> None:
        stopped.append(execution.run)
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        start(settings(method, "serial", shape, folder), on_round=stop)
    resumed = ug.resume(stopped[0], str(folder), progress=False)
    assert resumed.summary["model_digest"] == serial.summary["model_digest"]


def test_nothing_is_pickled(serial: ug.Result) -> None:
    assert serial.accuracy >= 0


@pytest.mark.parametrize("method", METHODS)
def test_mixed_precision_changes_digits_and_memory_only(method: str, tmp_path: Path) -> None:
    tree = settings(method, "serial", "star", tmp_path)
    whole, mixed = (start({**tree, "run": {**tree["run"], "precision": kind}}) for kind in ("float32", "bf16"))
    assert mixed.loss == pytest.approx(whole.loss, rel=0.2)
    for total in ("bytes_down", "bytes_up", "flops", "simulated_seconds", "joules"):
        assert getattr(mixed.ledger, total) == getattr(whole.ledger, total)
