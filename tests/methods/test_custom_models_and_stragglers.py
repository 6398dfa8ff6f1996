"""FedAT and FedKAD, with models that fit their devices, compared with FedAvg, which drops late devices."""

from __future__ import annotations

import math
from collections import OrderedDict
from pathlib import Path
from statistics import mean
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import undergrowth as ug
from undergrowth.core import Method
from undergrowth.data import load
from undergrowth.methods import FedAT, FedAvg, FedKAD
from undergrowth.runs.config import parse_experiment
from undergrowth.runs.federation import Federation
from undergrowth.runs.federation_builder import federate
from undergrowth.runs.preview import price_devices

SOME_CLASSES = {"share": 0.1, "missing": [0, 5, 8]}  # as in §5.4.2 of the source


class Net(nn.Sequential):
    """Small convolutions, and a hidden layer that makes the model large or small on the links."""

    levels = {"low": "convolution2", "mid": "pool2", "up": "hidden", "head": "head"}  # noqa: RUF012

    def __init__(self, hidden: int) -> None:
        stages = {
            "convolution1": nn.Sequential(nn.Conv2d(1, 8, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2)),
            "convolution2": nn.Sequential(nn.Conv2d(8, 16, 3, padding=1), nn.ReLU()),
            "pool2": nn.MaxPool2d(2),
            "hidden": nn.Sequential(nn.Flatten(), nn.Linear(64, hidden), nn.ReLU()),
            "head": nn.Linear(hidden, 10),
        }
        super().__init__(OrderedDict(stages))


def model() -> nn.Module:
    return Net(1024)


model.ladder = {"16": lambda: Net(16), "128": lambda: Net(128)}  # type: ignore[attr-defined]


def federation_of(seed: int, public: Any) -> Federation:
    tree = {
        "data": {"clients": 10, "partition": "dirichlet:0.1"},
        "fleet": "mixed-edge",
        "train": {"epochs": 5},
        "run": {"seed": seed},
        "public": public,
    }
    return federate(parse_experiment(tree), FedAvg(), model=model)


def deadline_of(seed: int, public: Any) -> float:
    """The seconds in which four of ten devices can do a round of FedAvg."""
    prospects = price_devices(federation_of(seed, public))
    return sorted(prospect.timing.seconds for prospect in prospects)[3] * 1.0001


def run_both(method: Method, public: Any, rounds: int, seed: int, out: Path) -> tuple[ug.Result, ug.Result]:
    """FedAvg, and `method` with models that fit.

    60 % of the devices cannot train the run's model by the deadline. All can train one of the ladder; on some seeds,
    all but one.
    """
    settings = {
        "clients": 10, "rounds": rounds, "epochs": 5, "partition": "dirichlet:0.1", "fleet": "mixed-edge",
        "seed": seed, "model": model, "public": public, "engine": "vector", "evaluate_every": rounds,
        "out": str(out), "deadline": deadline_of(seed, public),
    }  # fmt: skip
    dropped, kept = ug.run(FedAvg(), **settings), ug.run(method, **settings)
    assert dropped.history[-1]["late"] == 6 and kept.history[-1]["late"] <= 1
    return dropped, kept


@pytest.mark.slow
def test_fedkad_is_more_accurate_than_fedavg_without_late_devices(tmp_path: Path) -> None:
    """The settings were found on these seeds; docs/decisions/0016 has what was tried."""
    method, public = FedKAD(server_epochs=10, server_batch=16), {"share": 0.1, "labelled": False}
    pairs = [run_both(method, public, 3, seed, tmp_path) for seed in (0, 1, 2)]
    dropped, kept = (mean(result.accuracy for result in each) for each in zip(*pairs, strict=True))
    assert kept > dropped + 0.1


def accuracy_of_generic_data(method: FedAT, kept: ug.Result, seed: int) -> float:
    """The accuracy of the run's model after as many steps of SGD on the generic data alone as FedAT's copies had."""
    task = federation_of(seed, SOME_CLASSES).task
    public, test, module = task.public, load("digits").central_test(), task.model.build()
    transfer = 2 * method.transfer_epochs * math.ceil(len(public) / method.server_batch)  # steps 1 and 3
    metadata = [method.metadata_epochs * math.ceil(row["samples"] / method.server_batch) for row in kept.clients]
    left = len(kept.history) * sum(transfer + each for each in metadata)
    module.load_state_dict(task.model.initial(seed))
    optimiser, generator = torch.optim.SGD(module.parameters(), method.transfer_lr), torch.Generator().manual_seed(seed)
    while left > 0:
        for rows in torch.randperm(len(public), generator=generator).split(method.server_batch)[:left]:
            optimiser.zero_grad()
            F.cross_entropy(module(public.x[rows]), public.y[rows]).backward()
            optimiser.step()
            left -= 1
    with torch.no_grad():
        return float((module(test.x).argmax(1) == test.y).float().mean())


@pytest.mark.slow
def test_fedat_is_more_accurate_than_fedavg_without_late_devices_and_than_its_public_data_alone(tmp_path: Path) -> None:
    """The mean of three seeds on which nothing was chosen.

    Four settings were tried on seeds 10 to 12; two more were begun and discarded. On seeds 20 to 25 FedAT is ahead of
    its generic data by 0.056 on average, but behind on 21 and 24: this asserts the order of the means alone. See
    docs/decisions/0023.
    """
    method, accuracies = FedAT(beta=16.0, metadata_epochs=10, server_batch=16), []
    for seed in (20, 21, 22):
        dropped, kept = run_both(method, SOME_CLASSES, 8, seed, tmp_path)
        accuracies.append((dropped.accuracy, accuracy_of_generic_data(method, kept, seed), kept.accuracy))
    dropped_mean, generic_mean, kept_mean = (mean(each) for each in zip(*accuracies, strict=True))
    assert kept_mean > dropped_mean + 0.1
    assert kept_mean > generic_mean


@pytest.mark.slow
@pytest.mark.parametrize("seed", [3, 4])
def test_fedat_learns_classes_that_only_devices_have_from_the_metadata_of_all(seed: int, tmp_path: Path) -> None:
    """Eight settings were tried on seeds 0 to 2, and nothing was chosen on seeds 3 to 5; see docs/decisions/0064.

    The loss among the classes that the public data have was chosen on CIFAR-10; on digits it gains 0.03 on average,
    which two seeds need not show.
    """
    options = {"metadata_of": "all", "shared_start": True, "upper_statistics": "updated"}
    missing: list[int] = SOME_CLASSES["missing"]  # type: ignore[assignment]
    test, found = load("digits").central_test(), []
    for changes in ({}, options, {**options, "public_classes": "present"}):
        result = ug.run(
            FedAT(beta=62.0, server_batch=16, **changes), "digits", "dirichlet:0.1", 10, "wrn-16-1", rounds=12,
            epochs=5, batch=16, lr=0.05, public={"samples": 150, "missing": missing}, seed=seed, out=tmp_path,
            model_options={"ladder": ["wrn-10-1", "wrn-16-1"]},
        )  # fmt: skip
        with torch.no_grad():
            right = result.model(test.x).argmax(1) == test.y
        found.append(
            (result.history[-1]["accuracy"], float(right[torch.isin(test.y, torch.tensor(missing))].float().mean()))
        )
    (before, lost), (after, learned), (best, kept) = found
    assert min(after, best) > before + 0.08
    assert lost < 0.15 < 0.3 < learned
    assert kept > 0.5
