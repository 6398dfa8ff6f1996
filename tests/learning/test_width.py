"""Slices by width: they are models by themselves, they lie inside each other, and they find their way back."""

from __future__ import annotations

import math
import sys
from dataclasses import dataclass
from functools import cache
from itertools import pairwise

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from undergrowth.core import InputError, Model, Packet, Task, View
from undergrowth.learning import WidthOptions, WidthServer, widths_of
from undergrowth.learning.planning import PacketKnowledge
from undergrowth.learning.slice_client import RATIOS
from undergrowth.learning.slices import assign_ratios, assign_slices
from undergrowth.learning.width import Channels, Widths
from undergrowth.models import builder
from undergrowth.models.adaptation import Resize
from undergrowth.models.layers import SameConvolution

SHAPE = (1, 32, 32)
ZOO = {
    "mlp": {"hidden": [24, 16]},
    "cnn": {"hidden": 48},
    "wrn-10-1": {},
    "wrn-16-2": {"norm": "group"},
    "resnet-8": {},
    "resnet-18": {"norm": "group", "width": 16},
    "vgg-16": {"width": 8, "hidden": 32},
    "mobilenetv3-small": {},
    "efficientnet-b0": {"norm": "group"},
}
ALL = pytest.mark.parametrize("name", ZOO)


class Separable(nn.Module):
    """A depthwise convolution and a gate, as in mobile networks."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Conv2d(1, 8, 3, padding=1)
        self.depthwise = nn.Conv2d(8, 8, 3, padding=1, groups=8)
        self.gate = nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Conv2d(8, 8, 1), nn.Hardsigmoid())
        self.pool = nn.AdaptiveAvgPool2d(4)
        self.head = nn.Linear(8 * 16, 10)

    def forward(self, x: Tensor) -> Tensor:
        x = torch.relu(self.depthwise(self.first(x)))
        return self.head(torch.flatten(self.pool(x * self.gate(x)), 1))


@cache
def model(name: str) -> Model:
    return Model(builder(name, SHAPE, 10, **ZOO[name]))


def started(model: Model) -> dict[str, Tensor]:
    """Weights in which no channel is like another, as after training."""
    torch.manual_seed(3)
    return {n: v + 0.1 * torch.rand(v.shape) if v.is_floating_point() else v for n, v in model.initial(0).items()}


@ALL
@pytest.mark.parametrize(("ratio", "offset"), [(0.5, 0), (0.3, 5), (0.0625, 40)])
def test_a_slice_computes_what_the_model_computes_without_the_other_channels(name, ratio, offset) -> None:
    whole = model(name)
    widths, weights, x = widths_of(whole), started(whole), torch.rand(2, *SHAPE)
    cut = widths.cut(weights, ratio, offset)
    assert {key: value.shape for key, value in cut.items()} == {key: widths.shape(key, ratio) for key in weights}
    values, masks = widths.spread(cut, ratio, offset)
    for key, value in weights.items():
        assert torch.equal(values[key], value * masks[key])
    before = repr(whole.module)
    with widths.set_groups(whole, cut):
        logits = whole(cut, x)
    torch.testing.assert_close(logits, whole(values, x), rtol=1e-4, atol=1e-4)
    assert repr(whole.module) == before, "the module is as it was"


@ALL
def test_first_channels_lie_inside_each_other_and_weigh_the_square(name) -> None:
    widths = widths_of(model(name))
    for channels in widths.channels:
        windows = [set(channels.window(ratio, 0).tolist()) for ratio in RATIOS]
        assert all(narrow <= wide for wide, narrow in pairwise(windows))
        assert windows[0] == set(range(channels.count))
    assert widths.fraction(1.0) == 1
    assert widths.fraction(0.25) == pytest.approx(0.25 if name == "mlp" else 0.0625, rel=0.35)
    assert widths_of(Model(model(name).build)) == widths, "the same model is sliced in the same way"


def test_a_ratio_of_one_is_the_model_itself() -> None:
    whole = model("wrn-10-1")
    weights = whole.initial(0)
    assert widths_of(whole).cut(weights, 1.0, 7) is weights


@pytest.mark.parametrize("ratio", [0.0625, 0.3, 0.5])
@pytest.mark.parametrize(("count", "grain"), [(32, 1), (30, 1), (32, 4)])
def test_a_window_that_rolls_has_been_everywhere_equally_often_after_one_cycle(count, grain, ratio) -> None:
    channels = Channels(count, grain)
    cycle = count // grain
    seen = torch.zeros(count, dtype=torch.int64)
    for offset in range(cycle):
        window = channels.window(ratio, offset)
        assert len(set(window.tolist())) == len(window) == channels.kept(ratio)
        seen[window] += 1
    assert (seen == channels.kept(ratio) // grain).all()
    assert torch.equal(channels.window(ratio, cycle), channels.window(ratio, 0))


def test_grouped_norms_are_sliced_by_whole_groups() -> None:
    sets = widths_of(model("wrn-16-2")).channels
    assert {channels.grain for channels in sets} == {2, 4}  # 128 channels have 32 groups, the most there are
    assert all(channels.kept(0.01) == channels.grain for channels in sets)


def test_depthwise_convolutions_and_gates() -> None:
    whole, x = Model(Separable), torch.rand(2, 1, 8, 8)
    widths = widths_of(whole)
    cut = widths.cut(whole.initial(0), 0.5, 6)
    assert cut["depthwise.weight"].shape == (4, 1, 3, 3) and cut["head.weight"].shape == (10, 64)
    with widths.set_groups(whole, cut):
        logits = whole(cut, x)
    torch.testing.assert_close(logits, whole(widths.spread(cut, 0.5, 6)[0], x))


class Concatenated(nn.Module):
    """Resized images, a convolution that pads by the size of its input, and two branches side by side."""

    def __init__(self) -> None:
        super().__init__()
        self.resize, self.first = Resize(12), SameConvolution(1, 8, 3, stride=2)
        self.left, self.right = nn.Conv2d(8, 4, 1), nn.Conv2d(8, 6, 1)
        self.joined, self.head = nn.Conv2d(10, 8, 3), nn.Linear(8 * 16, 10)

    def forward(self, x: Tensor) -> Tensor:
        x = self.first(self.resize(x))
        return self.head(torch.flatten(self.joined(torch.cat([self.left(x), self.right(x)], dim=1)), 1))


def test_concatenated_channels_stay_whole_and_images_may_be_resized_and_padded() -> None:
    whole, x = Model(Concatenated), torch.rand(2, 1, 8, 8)
    widths = widths_of(whole)
    cut = widths.cut(whole.initial(0), 0.5, 3)
    shapes = {name: tuple(cut[f"{name}.weight"].shape) for name in ("first", "left", "right", "joined", "head")}
    assert shapes == {
        "first": (4, 1, 3, 3), "left": (4, 4, 1, 1), "right": (6, 4, 1, 1), "joined": (4, 10, 3, 3), "head": (10, 64)
    }  # fmt: skip
    torch.testing.assert_close(whole(cut, x), whole(widths.spread(cut, 0.5, 3)[0], x))


@pytest.mark.parametrize(
    ("build", "reason"),
    [
        (builder("lstm", (80,), 80), "Embedding"),
        (lambda: nn.Sequential(nn.Conv2d(1, 4, 3), nn.Linear(6, 3), nn.Flatten()), "not flat"),
        (lambda: nn.Sequential(nn.Conv2d(1, 4, 3), nn.Conv2d(4, 8, 3, groups=2)), "Conv2d"),
        (lambda: nn.Sequential(*[nn.Linear(4, 4)] * 2), "used twice"),
    ],
)
def test_a_model_that_is_not_understood_is_refused(build, reason) -> None:
    with pytest.raises(InputError, match=rf"cannot be sliced by width: .*{reason}.*choose mlp, cnn"):
        widths_of(Model(build))


@dataclass(frozen=True)
class Known:
    """Devices whose names are their speeds."""

    def samples(self, device: str) -> int:
        return 1

    def seconds(self, device: str, down: Packet) -> float:
        return down.nbytes / float(device)

    def window(self, device: str) -> float:
        return 9.0

    def speed(self, device: str) -> float:
        return float(device)


def ratios(widths: Widths, *devices: str) -> list[float]:
    return list(assign_ratios(View(devices, knowledge=Known()), widths, RATIOS).values())


def test_a_device_gets_the_ratio_that_suits_its_speed() -> None:
    cnn, mlp = widths_of(model("cnn")), widths_of(model("mlp"))
    assert ratios(cnn, "100", "60", "25", "7", "0.001") == [1.0, 0.5, 0.5, 0.25, 0.0625]
    assert ratios(mlp, "100", "60", "25", "7", "0.001") == [1.0, 0.5, 0.25, 0.0625, 0.0625]
    assert ratios(cnn, "5", "5.0", "5.00", "5e0", "05", "005") == [*RATIOS, 1.0], "all alike: in turn"
    assert assign_ratios(View(("a", "b")), cnn, (0.5, 0.25)) == {"a": 0.5, "b": 0.25}, "nothing known: in turn"


@pytest.mark.parametrize("deadline", [None, 50.0, 200.0, 1000.0, 1e9])
def test_a_device_gets_the_largest_slice_that_memory_link_and_deadline_allow(deadline: float | None) -> None:
    @dataclass(frozen=True)
    class KnownWithMemory(Known):
        def seconds(self, device: str, down: Packet) -> float:
            return math.inf if device == "8" and down.nbytes > 20_000 else super().seconds(device, down)

    whole, knowledge = model("cnn"), KnownWithMemory()
    widths, devices = widths_of(whole), ("100", "60", "25", "8", "0.001")
    cuts = {ratio: Packet(widths.cut(whole.initial(0), ratio)) for ratio in RATIOS}
    wanted = assign_ratios(View(devices, knowledge=knowledge), widths, RATIOS)
    found = assign_slices(View(devices, knowledge=knowledge), wanted, RATIOS, cuts.__getitem__, deadline)
    for device in devices:
        able = [
            ratio
            for ratio in RATIOS
            if ratio <= wanted[device] and knowledge.seconds(device, cuts[ratio]) < math.inf
            if deadline is None or knowledge.seconds(device, cuts[ratio]) <= deadline
        ]
        assert found[device] is cuts[max(able, default=min(RATIOS))]


def test_a_selection_is_told_the_seconds_of_the_slice() -> None:
    small, large = Packet(scalars={"a": 1.0}), Packet(scalars={"a": 1.0, "b": 2.0})
    knowledge = PacketKnowledge(Known(), {"4": small})
    assert knowledge.seconds("4", large) == 2.0 and knowledge.seconds("2", large) == 8.0
    assert (knowledge.samples("4"), knowledge.window("4"), knowledge.speed("4")) == (1, 9.0, 4.0)


def test_an_upload_that_is_no_slice_is_refused() -> None:
    whole = model("mlp")
    task = Task(whole, classes=10)
    server, cut = WidthServer(WidthOptions(ratios=(1.0, 0.5))), widths_of(whole).cut(whole.initial(0), 0.5)
    good = {"ratio": 0.5, "offset": 3.0, "samples": 1.0}
    assert server.check(task, Packet(cut, good)) is None
    assert "no device was sent" in str(server.check(task, Packet(cut, {**good, "ratio": 0.3})))
    assert "no device was sent" in str(server.check(task, Packet(cut, {**good, "offset": 0.5})))
    assert "no device was sent" in str(server.check(task, Packet(cut)))
    assert "the slice's is" in str(server.check(task, Packet(whole.initial(0), good)))
    assert "not a tensor of the model" in str(server.check(task, Packet({"odd": torch.ones(1)}, good)))
    assert "no tensor" in str(server.check(task, Packet({}, good)))


def test_channels_of_frozen_tensors_are_not_sliced() -> None:
    def net() -> nn.Module:
        layers = [nn.Conv2d(1, 8, 3), nn.BatchNorm2d(8), nn.Conv2d(8, 6, 1), nn.ReLU(), nn.Flatten(), nn.Linear(216, 3)]
        layers[0].requires_grad_(False)
        return nn.Sequential(*layers)

    model = Model(net)
    widths, weights = widths_of(model), model.initial(0)
    shapes = {name: tuple(value.shape) for name, value in widths.cut(weights, 0.5).items() if value.dim() > 1}
    assert shapes == {"2.weight": (3, 8, 1, 1), "5.weight": (3, 108)}
    assert model(widths.cut(weights, 0.5), torch.ones(2, 1, 8, 8)).shape == (2, 3)


class Functional(nn.Module):
    """Functions between layers that only torch-pruning understands, and layers that keep their width."""

    def __init__(self, rows: bool = True) -> None:
        super().__init__()
        self.rows = rows
        self.first, self.norm = nn.Conv2d(1, 6, 3), nn.BatchNorm2d(6)
        self.second, self.groups = nn.Conv2d(6, 8, 3), nn.GroupNorm(4, 8)
        self.depthwise = nn.Conv2d(8, 8, 3, padding=1, groups=8)
        self.hidden, self.layer_norm = nn.Linear(32, 12), nn.LayerNorm(12)
        self.left, self.right, self.joined = nn.Linear(12, 4), nn.Linear(12, 4), nn.Linear(8, 6)
        self.out = nn.Linear(6, 3)

    def forward(self, x: Tensor) -> Tensor:
        x = functional.max_pool2d(functional.relu(self.norm(self.first(x))), 1)
        x = functional.max_pool2d(self.groups(self.second(x)), 2)
        x = x + self.depthwise(x)
        x = x.view(x.size(0), -1) if self.rows else x.view(-1, 32)
        x = self.layer_norm(functional.dropout(self.hidden(x), training=self.training))
        return self.out(self.joined(torch.cat([self.left(x), self.right(x)], 1)))


def test_other_models_are_sliced_by_their_dependencies() -> None:
    pytest.importorskip("torch_pruning")
    x = torch.randn(5, 1, 8, 8, generator=torch.Generator().manual_seed(2))
    model = Model(Functional).with_example(x)
    widths, weights = widths_of(model), model.initial(1)
    cut = widths.cut(weights, 0.5)
    shapes = {name.split(".")[0]: tuple(value.shape) for name, value in cut.items() if name.endswith(".weight")}
    assert shapes == {
        "first": (3, 1, 3, 3), "norm": (3,), "second": (4, 3, 3, 3), "groups": (4,), "depthwise": (4, 1, 3, 3),
        "hidden": (12, 16), "layer_norm": (12,), "left": (4, 12), "right": (4, 12), "joined": (3, 8), "out": (3, 3),
    }  # fmt: skip
    # The slice computes what a module of that size computes with its weights.
    narrow = Functional()
    narrow.first, narrow.norm, narrow.second = nn.Conv2d(1, 3, 3), nn.BatchNorm2d(3), nn.Conv2d(3, 4, 3)
    narrow.groups, narrow.depthwise = nn.GroupNorm(2, 4), nn.Conv2d(4, 4, 3, padding=1, groups=4)
    narrow.hidden, narrow.joined, narrow.out = nn.Linear(16, 12), nn.Linear(8, 3), nn.Linear(3, 3)
    narrow.load_state_dict(dict(cut))
    with widths.set_groups(model, cut):
        torch.testing.assert_close(model(cut, x), narrow.eval()(x))
    with pytest.raises(InputError, match=r"cannot be sliced by width: a slice of ratio 0\.5"):
        widths_of(Model(lambda: Functional(rows=False)).with_example(x))


def test_without_torch_pruning_the_sentence_says_how_to_get_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torch_pruning", None)
    with pytest.raises(
        InputError, match=r"it computes 'max_pool2d', which.*; pip install 'undergrowth\[prune\]' adds torch-pruning"
    ):
        widths_of(Model(Functional).with_example(torch.ones(1, 1, 8, 8)))
