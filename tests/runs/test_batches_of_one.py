"""Batches of one sample, on which batch normalisation cannot be trained: as a setting they are refused before anything
starts, and a device with one sample teaches the others nothing."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import pytest
import torch
from torch import nn

import undergrowth as ug
from undergrowth.core import Context, InputError, Method, Model, Shard, Task, Train
from undergrowth.data import load
from undergrowth.methods import FedAT, FedKAD, FedMD
from undergrowth.models import builder

PUBLIC = {"public": 0.2}
SERVER = {"server_batch": 1}


def normalised() -> nn.Module:
    return nn.Sequential(
        nn.Sequential(nn.Flatten(), nn.Linear(64, 16), nn.BatchNorm1d(16), nn.ReLU()),
        nn.Sequential(nn.Linear(16, 8), nn.BatchNorm1d(8), nn.ReLU()),
        nn.Linear(8, 10),
    )


@pytest.mark.parametrize(
    ("method", "settings", "key"),
    [
        ("fedavg", {"batch": 1}, "train.batch"),
        ("fedat", {"options": SERVER, **PUBLIC}, "method.server_batch"),
        ("fedkad", {"options": SERVER, **PUBLIC}, "method.server_batch"),
        ("fedmd", {"options": SERVER, **PUBLIC}, "method.server_batch"),
        ("reft", {"options": SERVER, **PUBLIC}, "method.server_batch"),
        ("fedkd", {"options": SERVER, **PUBLIC}, "method.server_batch"),
        ("fedsplit", {"options": {"meta_batch": 1, "level": "low"}}, "method.meta_batch"),
        ("fedavg", {"personal": {"batch": 1}}, "personal.batch"),
        ("fedmezo", {"personal": True, "batch": 1}, "train.batch"),  # which itself trains on any batch
    ],
)
def test_it_is_refused_before_the_run_exists(tmp_path: Path, method: str, settings: dict[str, Any], key: str) -> None:
    common = {"method": method, "model": normalised, "clients": 3, "rounds": 1, **settings}
    said = f"^{key} 1: the batch normalisation of this model needs at least 2 samples$"
    with pytest.raises(InputError, match=said):
        ug.run(out=tmp_path / "runs", **common)
    assert not (tmp_path / "runs").exists()
    if "personal" not in settings:  # which a plan does not price
        with pytest.raises(InputError, match=said):
            ug.plan(**common)


def test_a_model_of_the_ladder_counts_too_if_the_server_trains_it() -> None:
    """`fedmd` trains the model of the run alone."""
    data = load("digits")
    model = Model(builder("mlp", data.shape, data.classes))
    ladder = {"normalised": model.with_not_alone(frozenset({None}))}
    task = Task(model, data.classes, Train(), public=data.shard(torch.arange(4)), ladder=ladder)
    methods: list[Method] = [FedAT(server_batch=1), FedKAD(server_batch=1)]
    for method in methods:
        with pytest.raises(InputError, match=r"^method\.server_batch 1"):
            method.server.init(task, Context(0, "server", 0))
    FedMD(server_batch=1).server.init(task, Context(0, "server", 0))


def test_a_part_without_batch_normalisation_is_not_refused(tmp_path: Path) -> None:
    options = {"meta_batch": 1, "meta_epochs": 1, "level": "head", "clusters": 1}
    result = ug.run(
        method="fedsplit", options=options, model=normalised, clients=2, rounds=1, out=tmp_path, data="digits"
    )
    assert result.summary["rounds"] == 1


@dataclass
class WithOneSample:
    """Two devices with 20 samples, and with `alone` another one with one sample. The server has public data."""

    alone: bool
    name: ClassVar[str] = "own"
    shape: ClassVar[tuple[int, ...]] = (1, 8, 8)
    classes: ClassVar[int] = 10

    @property
    def devices(self) -> tuple[str, ...]:
        return ("alone", "b", "c") if self.alone else ("b", "c")

    @property
    def public(self) -> Shard:
        return self.central_test()

    def size(self, device: str) -> int:
        return 1 if device == "alone" else 20

    def train(self, device: str) -> Shard:
        first = 40 + 20 * ["alone", "b", "c"].index(device)
        return load("digits").shard(torch.arange(first, first + self.size(device)))

    def test(self, device: str) -> Shard:
        return load("digits").shard(torch.arange(0))

    def central_test(self) -> Shard:
        return load("digits").shard(torch.arange(30))


@pytest.mark.parametrize(
    ("method", "options"),
    [
        ("reft", {"server_epochs": 1, "server_batch": 8}),
        ("fedkd", {"server_epochs": 1, "server_batch": 8}),
        ("fedmd", {"server_epochs": 1, "pretrain_epochs": 0}),
        ("fedkad", {"server_epochs": 1, "pretrain_epochs": 0, "level": "low"}),
        ("fedat", {"metadata_of": "all", "beta": 1.0}),
    ],
)
@pytest.mark.filterwarnings("ignore::undergrowth.core.RunWarning")
def test_a_device_with_one_sample_teaches_nothing(tmp_path: Path, method: str, options: dict[str, Any]) -> None:
    def digest(alone: bool) -> str:
        settings = {"data": WithOneSample(alone), "model": normalised, "rounds": 1, "options": options}
        return str(ug.run(method=method, out=tmp_path, **settings).summary["model_digest"])

    assert digest(alone=True) == digest(alone=False)
