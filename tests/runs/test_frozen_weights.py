"""Parameters that require no gradient: never sent, averaged or stored by device, and part of the final model."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import safetensors.torch
import torch
from torch import Tensor, nn
from torch.nn import functional

import undergrowth as ug
from tests.double_precision import ATOL, RTOL, DoubleDataset, double_data
from undergrowth.core import Context, InputError, Model
from undergrowth.runs.config import parse_experiment
from undergrowth.runs.federation_builder import federate

TRAINED = ("body.bias", "norm.weight", "norm.bias", "out.weight", "out.bias")
SETTINGS: dict[str, Any] = {"clients": 3, "partition": "iid", "rounds": 2, "batch": 16, "lr": 0.2, "seed": 4}


class Half(nn.Module):
    """A frozen base with BatchNorm and dropout, a linear layer of which only the bias is trained, a trained rest."""

    def __init__(self, frozen: bool = True, shift: float = 0.0) -> None:
        super().__init__()
        self.base = nn.Sequential(
            nn.Conv2d(1, 4, 3, stride=2), nn.BatchNorm2d(4), nn.BatchNorm2d(4, affine=False), nn.ReLU(), nn.Dropout(0.5)
        )
        self.base[1].running_mean.fill_(0.3 + shift)
        self.body = nn.Linear(36, 8)
        self.norm = nn.BatchNorm1d(8)
        self.out = nn.Linear(8, 10)
        self.register_buffer("scale", torch.tensor(0.5), persistent=False)
        if frozen:
            self.base.requires_grad_(False)
            self.body.weight.requires_grad_(False)
        self.double()

    def forward(self, x: Tensor) -> Tensor:
        hidden = self.norm(self.body(self.base(x).flatten(1))) * self.scale
        return self.out(functional.relu(hidden))


@pytest.fixture(scope="module")
def data() -> DoubleDataset:
    return double_data("digits", train_samples=97)


def fedavg(data: DoubleDataset) -> nn.Module:
    """FedAvg of the parameters that require a gradient, and of the statistics of their layers, in plain PyTorch."""
    settings = {"rounds": 2, "batch": 16, "lr": 0.2}
    raw = {"data": {"clients": 3, "partition": "iid"}, "train": settings, "run": {"seed": 4}}
    population = federate(parse_experiment(raw), data=data, model=Half).population
    task_model = Model(Half)
    module = task_model.build()
    shared = dict(task_model.complete(task_model.initial(Context(4, "server", 0).key("model"))))
    moving = [*TRAINED, "norm.running_mean", "norm.running_var"]
    for number in range(2):
        sums: dict[str, Tensor] = dict.fromkeys(moving, torch.zeros(()))
        for device in population.devices:
            module.load_state_dict(shared)
            module.train()
            module.base.eval()
            shard = population.train(device)
            optimiser = torch.optim.SGD([p for p in module.parameters() if p.requires_grad], lr=0.2)
            order = torch.randperm(len(shard), generator=Context(4, device, number, number).generator("order"))
            for rows in order.split(16):
                if len(rows) == 1:  # batch normalisation cannot train on one sample
                    continue
                optimiser.zero_grad()
                functional.cross_entropy(module(shard.x[rows]), shard.y[rows]).backward()
                optimiser.step()
            for name in moving:
                sums[name] = sums[name] + len(shard) * module.state_dict()[name].detach()
        total = sum(population.size(device) for device in population.devices)
        shared = {**shared, **{name: value / total for name, value in sums.items()}}
    module.load_state_dict(shared)
    return module.eval()


@pytest.mark.parametrize("engine", ["serial", "processes", "vector"])
def test_fedavg_of_the_trained_part_on_every_engine(engine: str, data: DoubleDataset, tmp_path: Path) -> None:
    result = ug.run("fedavg", data, model=Half, engine=engine, workers=2, out=str(tmp_path), **SETTINGS)
    if engine == "vector":
        assert result.history[-1]["stacked"] == 3
    expected, found = fedavg(data).state_dict(), result.model.state_dict()
    for name, value in expected.items():
        if not name.endswith("num_batches_tracked"):
            torch.testing.assert_close(found[name], value, rtol=RTOL, atol=ATOL, msg=name)
    frozen = Model(Half).constants
    assert all(torch.equal(found[name], value) for name, value in frozen.items() if name in found)


@pytest.mark.slow
def test_fedavg_of_the_trained_part_on_ray(data: DoubleDataset, tmp_path: Path) -> None:
    pytest.importorskip("ray")
    test_fedavg_of_the_trained_part_on_every_engine("ray", data, tmp_path)


def test_what_is_frozen_is_no_weight() -> None:
    model = Model(Half)
    assert model.parameters == TRAINED
    assert set(model.shapes) - set(TRAINED) == {
        f"norm.{n}" for n in ("running_mean", "running_var", "num_batches_tracked")
    }
    assert set(model.constants) == {*Half().state_dict(), "scale"} - set(model.shapes)
    assert torch.equal(model.constants["base.0.weight"], Model(Half).constants["base.0.weight"]), "in every process"


def test_a_frozen_layer_stays_in_evaluation_mode() -> None:
    model, x = Model(Half), torch.randn(6, 1, 8, 8, dtype=torch.float64)
    before = {name: value.clone() for name, value in model.constants.items()}
    outputs = [model.run(model.initial(0), x, training=True).logits for _ in range(2)]
    assert torch.equal(*outputs), "no dropout"
    assert all(torch.equal(value, before[name]) for name, value in model.constants.items())


def test_the_price_shows_what_is_frozen(data: DoubleDataset) -> None:
    def whole() -> nn.Module:
        return Half(frozen=False)

    (frozen,), (all_trained,) = (ug.plan("fedavg", data=data, model=model, **SETTINGS) for model in (Half, whole))
    weights = 8 * (8 + 8 + 8 + 80 + 10 + 16) + 8
    assert (frozen["bytes_down"], frozen["bytes_up"]) == (weights, weights + 8)
    forward = 2 * (9 * 9 * 4 + 36 * 8 + 80)
    # Backward: no gradient of the convolution and of the body's weights, and none of the body's input.
    samples = frozen["flops"] / (forward + 2 * 2 * 80)
    assert samples == int(samples) and 25 < samples <= 33
    assert all_trained["flops"] == samples * (forward + 2 * (9 * 9 * 4 + 2 * 36 * 8 + 2 * 80))
    assert frozen["memory_bytes"] < all_trained["memory_bytes"]


def test_the_model_file_is_complete_and_checkpoints_have_no_copies(data: DoubleDataset, tmp_path: Path) -> None:
    result = ug.run("moon", data, model=Half, out=str(tmp_path), **SETTINGS)
    file = safetensors.torch.load_file(result.folder / "model.safetensors")
    assert set(file) == set(Half().state_dict())
    for path in (result.folder / "checkpoints").glob("*.safetensors"):
        shapes = [value.shape for value in safetensors.torch.load_file(path).values()]
        assert shapes and torch.Size((8, 36)) not in shapes and torch.Size((4, 1, 3, 3)) not in shapes


def test_a_resumed_run_needs_the_same_frozen_weights(data: DoubleDataset, tmp_path: Path, interrupted, out) -> None:
    raw = {"data": {"clients": 3, "partition": "iid"}, "train": {"rounds": 2}}
    interrupted(raw, 1, data=data, model=Half)
    with pytest.raises(InputError, match="model: its frozen weights are not those of run"):
        ug.resume("last", out, data=data, model=lambda: Half(shift=0.1))
    resumed = ug.resume("last", out, data=data, model=Half)
    whole = ug.run("fedavg", data, model=Half, clients=3, partition="iid", rounds=2, out=str(tmp_path / "whole"))
    assert resumed.summary["model_digest"] == whole.summary["model_digest"]


def test_a_part_without_trained_parameters_is_refused(data: DoubleDataset, tmp_path: Path) -> None:
    def model() -> nn.Module:
        half = Half()
        half.out.requires_grad_(False)
        return half

    with pytest.raises(InputError, match="split 'head': no parameter above it can be trained, because all are frozen"):
        ug.run("fedft", data, model=model, options={"split": "head"}, out=str(tmp_path), **SETTINGS)
