"""Methods on a module that is no nn.Sequential: the same results as on the chain of stages that computes the same."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

import undergrowth as ug
from tests.double_precision import ATOL, RTOL, DoubleDataset, double_data, double_model
from undergrowth.core import InputError
from undergrowth.methods import METHODS

SMALL: dict[str, Any] = {"clients": 2, "partition": "iid", "rounds": 2, "batch": 16, "lr": 0.1, "public": 0.2}
CASES: dict[str, dict[str, Any]] = {
    "moon": {"mu": 1.0},
    "fedft": {"split": "mid"},
    "fedft-eds": {"split": "mid", "share": 0.5, "cache_features": True},
    "fedsplit": {"level": "up", "clusters": 2, "meta_epochs": 2},
    "fedfsc": {"shots": 2},
    "fedat": {"level": "mid", "transfer_epochs": 1, "metadata_epochs": 1},
    "fedkad": {"pretrain_epochs": 1, "server_epochs": 1},
}


@pytest.fixture(scope="module")
def data() -> DoubleDataset:
    return double_data("digits", train_samples=60, test_samples=40)


class Plain(nn.Module):
    """The stages of a cnn, called one after the other by a `forward` of its own."""

    def __init__(self, chain: nn.Module) -> None:
        super().__init__()
        for name, stage in chain.named_children():
            self.add_module(name, stage)

    def forward(self, x: Tensor) -> Tensor:
        for stage in self.children():
            x = stage(x)
        return x


QUICK = ("moon", "fedft-eds", "fedsplit", "fedat")  # the others only in the slow tests
PAIRS = [(method, engine) for method in CASES for engine in ("serial", "vector")]


@pytest.mark.parametrize(
    ("method", "engine"),
    [pytest.param(*pair, marks=() if pair[0] in QUICK and pair[1] == "serial" else pytest.mark.slow) for pair in PAIRS],
)
def test_the_levels_of_a_module_are_those_of_a_chain(method: str, engine: str, data: DoubleDataset, tmp_path: Path):
    chain = double_model(data, "cnn", hidden=8)
    levels = dict(chain().levels)  # type: ignore[call-overload]

    def plain() -> nn.Module:
        return Plain(chain())

    settings = {**SMALL, "options": CASES[method], "engine": engine, "out": str(tmp_path)}
    first = ug.run(method, data, model=chain, **settings)
    second = ug.run(method, data, model=plain, model_options={"levels": levels}, **settings)
    torch.testing.assert_close(dict(second.model.state_dict()), dict(first.model.state_dict()), rtol=RTOL, atol=ATOL)
    assert [second.ledger.bytes_up, second.ledger.flops] == [first.ledger.bytes_up, first.ledger.flops]


class Residual(nn.Module):
    """A small ordinary network, whose levels are guessed."""

    def __init__(self) -> None:
        super().__init__()
        self.stem, self.relu = nn.Conv2d(1, 4, 3, padding=1), nn.ReLU()
        self.layer1, self.layer2 = nn.Conv2d(4, 4, 3, padding=1), nn.Conv2d(4, 8, 3, stride=2, padding=1)
        self.pool, self.fc = nn.AdaptiveAvgPool2d(1), nn.Linear(8, 10)

    def forward(self, x: Tensor) -> Tensor:
        x = self.relu(self.stem(x))
        x = self.relu(self.layer1(x) + x)
        x = self.pool(self.relu(self.layer2(x)))
        return self.fc(torch.flatten(x, 1))


@pytest.mark.parametrize(
    "method", ["heterofl", *(pytest.param(n, marks=pytest.mark.slow) for n in ("fjord", "fedrolex"))]
)
def test_width_slicing_of_a_model_with_functions(method: str, data: DoubleDataset, tmp_path: Path) -> None:
    pytest.importorskip("torch_pruning")

    class Functional(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.conv, self.norm, self.fc = nn.Conv2d(1, 8, 3), nn.BatchNorm2d(8), nn.Linear(72, 10)
            self.double()

        def forward(self, x: Tensor) -> Tensor:
            return self.fc(functional.max_pool2d(self.norm(self.conv(x)), 2).reshape(len(x), -1))

    settings = {**SMALL, "model": Functional, "options": {"ratios": [1.0, 0.5]}, "out": str(tmp_path)}
    first, second = (ug.run(method, data, engine=engine, **settings) for engine in ("serial", "vector"))
    torch.testing.assert_close(dict(second.model.state_dict()), dict(first.model.state_dict()), rtol=RTOL, atol=ATOL)
    sizes = {row.bytes_down for row in first.ledger.rows()}
    assert len(sizes) > 1 or method == "fjord"


def test_every_method_can_be_planned_with_an_ordinary_module() -> None:
    rows = ug.plan(model=Residual, clients=3, public=0.1)
    planned = {row["method"] for row in rows}
    without_linear_layers = {"lora", "slora"}  # below the last layer
    assert planned == {name for name, method in METHODS.items() if not method.pooled} - without_linear_layers


def test_a_plan_says_which_methods_it_leaves_out_and_why() -> None:
    class Attentive(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.attention, self.out = nn.MultiheadAttention(8, 2, batch_first=True), nn.Linear(8, 10)

        def forward(self, x: Tensor) -> Tensor:
            rows = x[:, 0]
            return self.out(self.attention(rows, rows, rows)[0].mean(1))

    with pytest.warns(UserWarning) as caught:
        rows = ug.plan(model=Attentive, clients=3)
    notes = {str(warning.message).split(": ")[1]: str(warning.message) for warning in caught}
    slicing, distilling = "heterofl, fjord, fedrolex, reft, fl-pqsu", "fedmd, fedat, fedkad, fedkd"
    assert list(notes) == [slicing, distilling, "lora, slora"]
    assert "it cannot be sliced by width" in notes[slicing]
    assert "the method needs data that the server holds; add public: 0.1" in notes[distilling]
    missing = set(METHODS) - {row["method"] for row in rows}
    assert missing == {*" ".join(notes).replace(",", "").split(), "central"}


def test_guessed_levels_are_in_the_notes_of_methods_that_use_them(tmp_path: Path) -> None:
    settings = {"model": Residual, "clients": 2, "rounds": 1, "out": str(tmp_path)}
    notes = ug.run("moon", **settings).notes
    guess = [note for note in notes if note.startswith("model: ")]
    assert guess == [
        "model: its levels are a guess: low before layer2, mid before layer2, up before pool, head before fc; "
        "model.levels names others, such as {low: layer2}"
    ]
    assert not [note for note in ug.run("fedavg", **settings).notes if note.startswith("model: ")]
    named = ug.run("moon", model_options={"levels": {"head": "fc"}}, **settings)
    assert not [note for note in named.notes if note.startswith("model: ")]


def test_a_level_that_cannot_be_split_is_refused(tmp_path: Path) -> None:
    settings = {"model": Residual, "clients": 2, "rounds": 1, "out": str(tmp_path / "runs")}
    options, levels = {"split": "mid", "cache_features": True}, {"levels": {"mid": "layer1", "head": "fc"}}
    with pytest.raises(InputError, match="split 'mid': more than the input of 'layer1' reaches the part above it"):
        ug.run("fedft", options=options, model_options=levels, **settings)
    with pytest.raises(InputError, match=r"model\.levels: mid is 'layer9', which is no submodule of Residual"):
        ug.run("fedavg", model_options={"levels": {"mid": "layer9"}}, **settings)
    with pytest.raises(InputError, match="split 'middle' is not a level of this model"):
        ug.run("fedft", options={"split": "middle"}, **settings)
    assert not (tmp_path / "runs").exists()


@pytest.mark.parametrize("adaptive", [False, True])
@pytest.mark.parametrize("engine", ["serial", "vector"])
def test_a_number_as_a_parameter_is_trained_by_apfl(adaptive: bool, engine: str, data: DoubleDataset, tmp_path: Path):
    def scaled(shape: tuple[int, ...]) -> nn.Module:
        model = nn.Sequential(nn.Flatten(), nn.Linear(64, 10)).double()
        model.register_parameter("scale", nn.Parameter(torch.full(shape, 1.5, dtype=torch.float64)))
        model.register_forward_hook(lambda module, inputs, output: output * module.scale)
        return model

    settings = {**SMALL, "public": None, "options": {"adaptive": adaptive}, "engine": engine, "out": str(tmp_path)}
    number, vector = (ug.run("apfl", data, model=lambda shape=shape: scaled(shape), **settings) for shape in ((), (1,)))
    found = {name: value.reshape(-1) for name, value in number.model.state_dict().items()}
    expected = {name: value.reshape(-1) for name, value in vector.model.state_dict().items()}
    torch.testing.assert_close(found, expected, rtol=RTOL, atol=ATOL)
    assert [device["accuracy"] for device in number.clients] == [device["accuracy"] for device in vector.clients]
    assert number.model.scale.item() != 1.5
