"""`model.statistics: frozen`: BatchNorm normalises by the statistics that the run starts with, in training too."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

import undergrowth as ug
from tests.double_precision import ATOL, RTOL, DoubleDataset, double_data
from undergrowth.core import Context, InputError, Model
from undergrowth.core.binding import BoundModule
from undergrowth.models import WithFrozenStatistics, builder
from undergrowth.models.adaptation import freeze_statistics
from undergrowth.runs.config import parse_experiment
from undergrowth.runs.federation_builder import federate

FROZEN = {"statistics": "frozen"}
STATISTICS = ("running_mean", "running_var", "num_batches_tracked")
SETTINGS: dict[str, Any] = {
    "clients": 3, "partition": "classes:4", "rounds": 2, "batch": 16, "lr": 0.1, "momentum": 0.9, "seed": 4,
}  # fmt: skip


class Pretrained(nn.Module):
    """A convolution and a linear layer, each with BatchNorm whose statistics and weights are not those of a start."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Conv2d(1, 4, 3, stride=2)
        self.norm = nn.BatchNorm2d(4)
        self.hidden = nn.Linear(36, 8)
        self.second = nn.BatchNorm1d(8)
        self.out = nn.Linear(8, 10)
        for layer in (self.norm, self.second):
            layer.running_mean.copy_(torch.linspace(-0.2, 0.3, layer.num_features))
            layer.running_var.copy_(torch.linspace(0.5, 2.0, layer.num_features))
            nn.init.uniform_(layer.weight, 0.5, 1.5)
        self.double()

    def forward(self, x: Tensor) -> Tensor:
        hidden = functional.relu(self.norm(self.body(x))).flatten(1)
        return self.out(functional.relu(self.second(self.hidden(hidden))))


@pytest.fixture(scope="module")
def data() -> DoubleDataset:
    return double_data("digits", train_samples=97)


def fine_tuned(data: DoubleDataset) -> dict[str, Tensor]:
    """FedAvg of a module whose BatchNorm layers are in evaluation mode, in plain PyTorch."""
    raw = {"data": {"clients": 3, "partition": "classes:4"}, "train": {"batch": 16}, "run": {"seed": 4}}
    population = federate(parse_experiment(raw), data=data, model=Pretrained).population
    start = Model(Pretrained)
    shared = start.initial(Context(4, "server", 0).key("model"))
    module = Pretrained()
    for number in range(2):
        sums: dict[str, Tensor] = {}
        for device in population.devices:
            module.load_state_dict(shared)
            module.train()
            module.norm.eval()
            module.second.eval()
            shard = population.train(device)
            optimiser = torch.optim.SGD(module.parameters(), lr=0.1, momentum=0.9)
            order = torch.randperm(len(shard), generator=Context(4, device, number, number).generator("order"))
            for rows in order.split(16):
                optimiser.zero_grad()
                functional.cross_entropy(module(shard.x[rows]), shard.y[rows]).backward()
                optimiser.step()
            for name, value in module.state_dict().items():
                sums[name] = sums.get(name, 0) + len(shard) * value.detach().double()
        total = sum(population.size(device) for device in population.devices)
        shared = {name: value / total for name, value in sums.items()}
    return shared


@pytest.mark.parametrize("engine", ["serial", "vector", "processes"])
def test_fine_tuning_equals_a_plain_loop_with_batch_norm_in_evaluation_mode(
    engine: str, data: DoubleDataset, tmp_path: Path
) -> None:
    result = ug.run("ft", data=data, model=Pretrained, model_options=FROZEN, engine=engine, out=tmp_path, **SETTINGS)
    expected, found = fine_tuned(data), result.model.state_dict()
    assert not torch.equal(found["norm.weight"], Pretrained().norm.weight), "they are trained"
    for name, value in expected.items():
        torch.testing.assert_close(found[name].double(), value, rtol=RTOL, atol=ATOL)
    if engine == "vector":
        assert result.history[-1]["not_stacked"] == 0


def test_statistics_are_not_sent(data: DoubleDataset, tmp_path: Path) -> None:
    settings = {**SETTINGS, "rounds": 1, "engine": "serial", "out": tmp_path, "data": data, "model": Pretrained}
    frozen, running = (next(ug.run("ft", model_options=each, **settings).ledger.rows()) for each in (FROZEN, None))
    statistics = 8 * 2 * (4 + 8) + 8 * 2  # means and variances in float64, two counters
    assert running.bytes_down - frozen.bytes_down == statistics == running.bytes_up - frozen.bytes_up


def test_fine_tuning_with_running_statistics_notes_the_setting(data: DoubleDataset) -> None:
    for method, options, noted in (("ft", {}, True), ("fedncm-ft", {}, True), ("ft", FROZEN, False)):
        raw = {"method": method, "data": {"clients": 3}, "model": {"name": "cnn", **options}}
        notes = federate(parse_experiment(raw), data=data, model=Pretrained).notes
        assert any("model.statistics=frozen" in note for note in notes) == noted


def test_the_mode_is_that_of_the_layer_after_any_other_mode() -> None:
    bound = BoundModule(freeze_statistics(Pretrained()))
    for mode in (True, False, "head", True):
        bound.set_mode(mode)
        assert not bound.module.norm.training and not bound.module.second.training
    assert bound.module.training and bound.module.out.training
    assert not any(name.endswith(STATISTICS) for name in bound.shapes)
    assert {"norm.weight", "second.bias"} <= set(bound.parameters)


def test_statistics_are_those_of_the_pretraining(tmp_path: Path) -> None:
    """Training at the server measures them; the rounds leave them as they are then."""
    settings: dict[str, Any] = {"data_options": {"train_samples": 60}, "clients": 2, "rounds": 1, "batch": 16}
    result = ug.run(
        "ft", model="wrn-10-1", model_options=FROZEN, start={"data": {"name": "digits", "train_samples": 60}},
        out=tmp_path, **settings,
    )  # fmt: skip
    before, after = result.start["pretraining"].model.state_dict(), result.model.state_dict()
    names = [name for name in after if name.endswith("running_var")]
    assert names and all(torch.equal(before[name], after[name]) for name in names)
    assert not all(torch.equal(after[name], torch.ones_like(after[name])) for name in names)
    assert not torch.equal(before["head.weight"], after["head.weight"])


@pytest.mark.parametrize(
    ("model", "options", "sentence"),
    [
        ("mlp", FROZEN, "model.statistics: the model has no BatchNorm layer with running statistics; leave it out"),
        ("wrn-10-1", {"norm": "group", **FROZEN}, "model.statistics: the model has no BatchNorm layer"),
        ("wrn-10-1", {"statistics": "measured"}, "model.statistics"),
        ("wrn-16-1", {**FROZEN, "ladder": ["wrn-10-1"]}, "frozen statistics and a ladder"),
    ],
)
def test_what_cannot_be_frozen_is_refused(model: str, options: dict[str, Any], sentence: str, tmp_path: Path) -> None:
    with pytest.raises(InputError, match=sentence):
        ug.run("fedavg", model=model, model_options=options, rounds=1, clients=2, out=tmp_path)


def test_a_builder_with_frozen_statistics_keeps_the_ladder_of_an_object() -> None:
    def build() -> nn.Module:
        return Pretrained()

    build.ladder = {"small": Pretrained}  # type: ignore[attr-defined]
    assert WithFrozenStatistics(build).ladder == {"small": Pretrained}


def test_random_weights_are_those_without_a_file(tmp_path: Path) -> None:
    torch.save(builder("resnet-8", (1, 8, 8), 10, width=4)().state_dict(), tmp_path / "weights.pt")
    plain, loaded = (
        Model(WithFrozenStatistics(builder("resnet-8", (1, 8, 8), 10, width=4, weights=file)))
        for file in (None, tmp_path / "weights.pt")
    )
    for name, value in loaded.initial(3, random=True).items():
        assert torch.equal(value, plain.initial(3)[name]), name
    assert not torch.equal(loaded.initial(3)["head.weight"], plain.initial(3)["head.weight"])
