"""Structured pruning: how much is removed, which channels stay, and what smaller models compute and cost."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.flop_counter import FlopCounterMode

from undergrowth.core import Model
from undergrowth.learning.pruning import prune, pruned_fraction, pruned_module, strongest_channels, utilisation
from undergrowth.learning.quantisation import dequantise, quantise
from undergrowth.learning.width import SlicedModel, widths_of
from undergrowth.models import builder

SPEEDS = (10e9, 20e9, 40e9, 60e9, 100e9)


@pytest.mark.parametrize(("f_lambda", "percent"), [(100e9, [90, 80, 60, 40, 0]), (50e9, [80, 60, 20, 0, 0])])
def test_the_pruned_fractions_of_both_examples(f_lambda: float, percent: list[int]) -> None:
    assert [round(100 * pruned_fraction(speed, f_lambda)) for speed in SPEEDS] == percent


def test_at_most_95_per_cent_are_removed() -> None:
    assert pruned_fraction(1e9, 100e9) == pruned_fraction(0, 1e9) == 0.95
    assert pruned_fraction(1e12, 100e9) == 0


def test_utilisation_is_one_with_its_own_level_and_falls_with_that_of_the_slowest() -> None:
    own = [utilisation(pruned_fraction(speed, 100e9), speed, 100e9) for speed in SPEEDS]
    static = [utilisation(pruned_fraction(SPEEDS[0], 100e9), speed, 100e9) for speed in SPEEDS]
    assert own == pytest.approx([1, 1, 1, 1, 1])
    assert static == pytest.approx([SPEEDS[0] / speed for speed in SPEEDS])  # F_static / F_c, eq. 5.1


def kept(count: int, fraction: float) -> int:
    return max(1, math.ceil(round((1 - fraction) * count, 9)))


def vgg(fraction: float) -> tuple[int, int]:
    """Parameters and multiplications of VGG-16 for 32×32 pixels; the first three of 13 convolutions stay whole."""
    widths = [64, 64, 128, 128, 256, 256, 256, 512, 512, 512, 512, 512, 512]
    sides = [32, 32, 16, 16, 8, 8, 8, 4, 4, 4, 2, 2, 2]
    before, parameters, products = 3, 0, 0
    for place, (width, side) in enumerate(zip(widths, sides, strict=True)):
        after = width if place < 3 else kept(width, fraction)
        parameters += 9 * before * after + 2 * after
        products += 9 * before * after * side * side
        before = after
    hidden = kept(4096, fraction)
    matrices = before * hidden + hidden * hidden + 10 * hidden
    return parameters + matrices + 2 * hidden + 10, products + matrices


def without_memory(name: str, **options: Any) -> tuple[Model, dict[str, Tensor]]:
    """A model of the zoo on meta tensors, and weights of zeros that share one number."""
    recipe: Any = builder(name, (3, 32, 32), 10, **options)
    model = Model(recipe.skeleton)
    return model, {key: torch.zeros(()).expand(shape) for key, shape in model.shapes.items()}


def count(module: nn.Module) -> tuple[int, int]:
    """Parameters of a module, and multiplications of a forward pass of one image."""
    with FlopCounterMode(display=False) as counter, torch.no_grad():
        module(torch.zeros(1, 3, 32, 32))
    return sum(value.numel() for value in module.parameters()), counter.get_total_flops() // 2


def test_vgg_16_has_the_published_sizes() -> None:
    """33.6 M parameters and 0.33 G products; at 90 % 0.47 M and 0.065 G; at 30 % 126.8 MB of eight bytes a weight."""
    model, zeros = without_memory("vgg-16")
    assert sum(model.shapes[name].numel() for name in model.parameters) == vgg(0.0)[0] == 33_642_442
    found = count(pruned_module(model, prune(model, zeros, 0.9)))
    assert found == vgg(0.9)
    assert f"{found[0] / 1e6:.2f} {found[1] / 1e9:.3f}" == "0.47 0.065" and vgg(0.0)[1] == 332_111_872
    assert f"{4 * found[0] / 2**20:.1f} {8 * vgg(0.3)[0] / 2**20:.1f}" == "1.8 126.8"


class Own(nn.Module):
    """Functions that only torch-pruning follows: pooling and reshaping in `forward`."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Conv2d(3, 12, 3, padding=1), nn.Conv2d(12, 20, 3, padding=1)
        self.skip, self.head = nn.Conv2d(12, 20, 1), nn.Linear(20 * 16, 10)

    def forward(self, x: Tensor) -> Tensor:
        x = functional.max_pool2d(functional.relu(self.first(x)), 2)
        x = functional.max_pool2d(functional.relu(self.second(x) + self.skip(x)), 4)
        return self.head(x.reshape(len(x), -1))


MODELS: dict[str, dict[str, Any]] = {
    "resnet-8": {},
    "resnet-18": {"width": 8},
    "wrn-16-1": {},
    "wrn-10-1": {"norm": "group"},
    "vgg-16": {"width": 8, "hidden": 64},
}


@pytest.mark.parametrize("name", [*MODELS, "own"])
def test_pruned_models_are_smaller_and_train(name: str) -> None:
    if name == "own":
        pytest.importorskip("torch_pruning")
        model = Model(Own).with_example(torch.zeros(1, 3, 32, 32))
    else:
        model = Model(builder(name, (3, 32, 32), 10, **MODELS[name]))
    weights = model.initial(0)
    sizes = []
    for fraction in (0.0, 0.3, 0.9, 0.95):
        module = pruned_module(model, prune(model, weights, fraction))
        sizes.append(count(module))
        x = torch.rand(2, 3, 32, 32)
        functional.cross_entropy(module.train()(x), torch.tensor([0, 1])).backward()
        assert all(value.grad is not None and value.grad.isfinite().all() for value in module.parameters())
        # The attributes of layers say what their weights are: repr shows them.
        for layer in module.modules():
            if isinstance(layer, nn.Conv2d):
                assert layer.weight.shape[:2] == (layer.out_channels, layer.in_channels // layer.groups)
            if isinstance(layer, nn.Linear):
                assert layer.weight.shape == (layer.out_features, layer.in_features)
    assert sizes == sorted(sizes, reverse=True) and sizes[0][0] > 3 * sizes[2][0] and sizes[0][1] > sizes[2][1]


def test_flops_of_a_residual_network_fall_as_predicted() -> None:
    """resnet-8 has nine convolutions: the first two, with all that the shortcuts tie to them, stay whole."""
    model = Model(builder("resnet-8", (3, 32, 32), 10))
    for fraction in (0.3, 0.6, 0.9):
        a, b, c = 16, kept(32, fraction), kept(64, fraction)
        products = 32 * 32 * 9 * (3 * a + 2 * a * a)
        products += 16 * 16 * (9 * (a * b + b * b) + a * b)
        products += 8 * 8 * (9 * (b * c + c * c) + b * c) + 10 * c
        assert count(pruned_module(model, prune(model, model.initial(0), fraction)))[1] == products


def test_the_channels_with_the_largest_norms_over_all_layers_that_share_them_stay() -> None:
    model = Model(builder("resnet-8", (3, 32, 32), 10, width=4))
    weights = model.initial(3)
    filters = ("group3.0.convolution2.weight", "group3.0.shortcut.0.weight")
    assert all(name in weights for name in filters), "both compute the channels that the last group adds up"
    norms = sum(weights[name].double().abs().sum((1, 2, 3)) for name in filters)
    assert isinstance(norms, Tensor)
    rows = norms.argsort(descending=True)[:8].sort().values
    small = prune(model, weights, 0.5)
    assert torch.equal(small["head.weight"], weights["head.weight"][:, rows])
    assert torch.equal(small["group3.0.norm2.bias"], weights["group3.0.norm2.bias"][rows])
    assert torch.equal(small["stem.0.weight"], weights["stem.0.weight"])
    inner = weights["group3.0.convolution1.weight"].abs().sum((1, 2, 3)).argsort(descending=True)[:8].sort().values
    assert torch.equal(small["group3.0.norm1.weight"], weights["group3.0.norm1.weight"][inner])
    assert torch.equal(small["group3.0.convolution2.weight"], weights[filters[0]][rows][:, inner])


def test_without_a_whole_part_every_layer_is_pruned_and_with_nothing_to_prune_weights_stay() -> None:
    model = Model(builder("cnn", (1, 8, 8), 10))
    weights = model.initial(0)
    assert prune(model, weights, 0.0) is weights
    channels = widths_of(model).channels
    chosen = strongest_channels(model, weights, 0.75, whole=0)
    assert [len(each) for each in chosen] == [each.kept(0.25) for each in channels]
    assert [len(each) for each in strongest_channels(model, weights, 0.75, whole=1)][:2] == [
        each.count for each in channels[:2]
    ]


def test_channels_of_a_group_norm_are_kept_in_whole_groups() -> None:
    model = Model(builder("wrn-10-1", (3, 32, 32), 10, norm="group"))
    for channels, rows in zip(widths_of(model).channels, strongest_channels(model, model.initial(0), 0.6), strict=True):
        grains = rows.reshape(-1, channels.grain)
        assert torch.equal(grains, grains[:, :1] + torch.arange(channels.grain))
        assert not (grains[:, 0] % channels.grain).any()


def test_values_of_one_byte_are_near_and_the_largest_is_exact() -> None:
    rows = torch.randn(3, 50, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    rows[1] = 0
    codes, scales = quantise(rows)
    assert codes.dtype is torch.int8 and codes.shape == rows.shape
    back = dequantise(codes, scales)
    assert ((back - rows).abs() <= scales[:, None] / 254 + 1e-15).all()
    torch.testing.assert_close(back.abs().amax(1), rows.abs().amax(1), rtol=1e-15, atol=0)
    rows[0, 0] = math.nan
    assert not quantise(rows)[1][0].isfinite()
    assert dequantise(*quantise(rows[:, :0])).shape == (3, 0)


def test_pruned_weights_run_in_the_whole_models_module_also_on_another_thread() -> None:
    model = Model(builder("wrn-10-1", (3, 32, 32), 10, norm="group"))
    small, x = prune(model, model.initial(0), 0.6), torch.rand(2, 3, 32, 32)
    expected = pruned_module(model, small)(x)
    view = SlicedModel(model)
    torch.testing.assert_close(view(small, x), expected)
    torch.testing.assert_close(view.for_another_thread()(small, x), expected)
