"""Runs in several threads of one process: they share torch's settings and random state, so one waits for the other."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from operator import attrgetter
from pathlib import Path

import pytest
import torch
from torch import nn

import undergrowth as ug
from undergrowth.engines import torch_settings

from .objects import digest


def dropping() -> nn.Module:
    """A model whose training draws from torch's own random state."""
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 16), nn.ReLU(), nn.Dropout(0.5), nn.Linear(16, 10))


def run(folder: Path, seed: int) -> str:
    settings = {"clients": 3, "rounds": 3, "engine": "serial", "data_options": {"train_samples": 90}}
    return digest(ug.run(model=dropping, seed=seed, out=str(folder), **settings))  # type: ignore[arg-type]


def test_runs_at_the_same_time_give_what_each_gives_alone(tmp_path: Path) -> None:
    expected = [run(tmp_path / "alone", seed) for seed in range(2)]
    with ThreadPoolExecutor(2) as pool:
        assert list(pool.map(lambda seed: run(tmp_path / "together", seed), range(2))) == expected


def test_settings_of_the_process_do_not_reach_a_run(tmp_path: Path) -> None:
    expected, precision = run(tmp_path, 0), torch.get_float32_matmul_precision()
    try:
        torch.set_float32_matmul_precision("medium")
        torch.set_default_dtype(torch.float64)
        with torch.inference_mode(), torch.autocast("cpu", torch.bfloat16), torch.device("meta"):
            assert run(tmp_path, 0) == expected
            assert ug.plan("fedavg", model=dropping, clients=3)
            weight = ug.load("last", str(tmp_path), model=dropping).model.get_parameter("1.weight")
            assert (weight.device.type, weight.dtype) == ("cpu", torch.float32)
        assert torch.get_float32_matmul_precision() == "medium" and torch.get_default_dtype() == torch.float64
    finally:
        torch.set_float32_matmul_precision(precision)
        torch.set_default_dtype(torch.float32)


@pytest.mark.skipif(not hasattr(torch.backends, "fp32_precision"), reason="torch has one set of names only")
@pytest.mark.parametrize("place", ["backends", "backends.cuda.matmul", "backends.cudnn", "backends.mkldnn.matmul"])
def test_a_precision_that_is_set_by_its_newer_name_does_not_reach_a_run(place: str, tmp_path: Path) -> None:
    expected, owner = run(tmp_path, 0), attrgetter(place)(torch)
    before, owner.fp32_precision = owner.fp32_precision, "tf32"
    try:
        assert run(tmp_path, 0) == expected
        assert owner.fp32_precision == "tf32"
    finally:
        owner.fp32_precision = before
    assert torch.get_float32_matmul_precision() == "highest" and torch.backends.cudnn.allow_tf32


def test_a_precision_that_this_version_of_torch_does_not_have_is_left_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    expected = run(tmp_path, 0)
    monkeypatch.setattr(torch_settings, "_PLACES", ("backends.cudnn.of_a_later_version", *torch_settings._PLACES))
    assert run(tmp_path, 0) == expected
