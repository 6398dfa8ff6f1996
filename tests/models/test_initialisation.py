"""The starts of weights: every layer of every model is drawn from the distribution that the table of `init` names."""

from __future__ import annotations

import math
import re

import pytest
import torch
from torch import nn

from undergrowth.core.errors import InputError
from undergrowth.models import builder, describe
from undergrowth.models.catalogue import TABLE
from undergrowth.models.initialisation import INITS, Init, initialise
from undergrowth.models.layers import Layers

from .test_zoo import CASES, Case, title

WITH_PROJECTION: Case = ("cnn", (1, 8, 8), "none", {"hidden": 16, "projection": 12})
ONE_OF_EACH = [*{case[0]: case for case in reversed(CASES)}.values(), WITH_PROJECTION]


def module(case: Case, init: str | None, seed: int = 0) -> nn.Module:
    name, shape, norm, options = case
    torch.manual_seed(seed)
    return builder(name, shape, 5, norm=norm, init=init, **options)()


def reference(layer: nn.Module, init: str, last: bool) -> tuple[str, float, str]:
    """The distribution of the weights, its standard deviation, and that of the biases, from the formulas."""
    assert isinstance(layer, nn.Conv2d | nn.Linear)
    convolves = isinstance(layer, nn.Conv2d)
    outputs, inputs = layer.weight.shape[:2]  # the inputs of one group
    pixels = layer.weight[0, 0].numel() if convolves else 1
    fan_in, fan_out = inputs * pixels, outputs * pixels // (layer.groups if isinstance(layer, nn.Conv2d) else 1)
    if init == "torch" or (init == "he-out" and not convolves):
        return "uniform", math.sqrt(1 / (3 * fan_in)), "uniform"
    if init == "lecun":
        return "normal", math.sqrt(1 / fan_in), "zero"
    if init == "he-in" and last:
        return "uniform", math.sqrt(2 / (inputs + outputs)), "zero"
    return "normal", math.sqrt(2 / (fan_out if init == "he-out" else fan_in)), "zero"


def check_layer(layer: nn.Module, init: str, last: bool) -> None:
    shape, deviation, biases = reference(layer, init, last)
    values = layer.weight.detach().double().flatten()  # type: ignore[union-attr, operator]
    count = values.numel()
    error = 5 * deviation / math.sqrt(count)  # five standard errors of the mean; wider than five of the deviation
    assert abs(values.mean()) < error
    assert abs(values.square().mean().sqrt() - deviation) < error
    limit = math.sqrt(3) * deviation
    if shape == "uniform":
        assert values.abs().max() <= limit * (1 + 1e-6)
    elif count > 1000:
        assert values.abs().max() > limit
    if layer.bias is not None:
        assert (biases == "zero") == (not layer.bias.any())  # type: ignore[operator]


@pytest.mark.parametrize("init", [init for init in INITS if init != "by-size"])
@pytest.mark.parametrize("case", ONE_OF_EACH, ids=title)
def test_every_layer_has_the_distribution_of_its_init(case: Case, init: Init) -> None:
    net = module(case, init)
    layers = [layer for layer in net.modules() if isinstance(layer, nn.Conv2d | nn.Linear)]
    for layer in layers:
        check_layer(layer, init, last=layer is layers[-1])
    torch_net = module(case, "torch")
    for name, layer in net.named_modules():
        if isinstance(layer, nn.Embedding | nn.LSTM):  # drawn before the first linear layer
            same = torch_net.get_submodule(name).state_dict()
            assert all(torch.equal(value, same[key]) for key, value in layer.state_dict().items())
        if isinstance(layer, nn.BatchNorm2d | nn.GroupNorm):
            assert torch.equal(layer.weight, torch.ones_like(layer.weight)) and not layer.bias.any()


@pytest.mark.parametrize("arguments", [(3, 16, 5), (16, 8, 1), (8, 8, 3)])
def test_he_weights_are_those_that_torch_draws_for_the_fan(arguments: tuple[int, int, int]) -> None:
    """In the order in which earlier versions drew them, so that their runs start with the same bits."""
    for init, mode in (("he-out", "fan_out"), ("he-in", "fan_in")):
        torch.manual_seed(7)
        ours = Layers("none", init).convolution(*arguments, bias=True)  # type: ignore[arg-type]
        after = torch.rand(1)
        torch.manual_seed(7)
        plain = nn.Conv2d(*arguments, padding=arguments[2] // 2)
        nn.init.kaiming_normal_(plain.weight, mode=mode, nonlinearity="relu")  # type: ignore[arg-type]
        assert torch.equal(ours.weight, plain.weight) and torch.equal(after, torch.rand(1))
    torch.manual_seed(7)
    left = initialise(nn.Linear(6, 4), "he-out", last=True)
    torch.manual_seed(7)
    assert torch.equal(left.weight, nn.Linear(6, 4).weight)


def test_the_fan_of_a_depthwise_convolution_is_that_of_one_channel() -> None:
    torch.manual_seed(0)
    for init in ("he-out", "he-in"):
        layer = Layers("none", init).convolution(4000, 4000, 3, groups=4000)  # type: ignore[arg-type]
        assert layer.weight.std().item() == pytest.approx(math.sqrt(2 / 9), rel=0.02)


def test_the_default_is_a_line_of_the_architecture() -> None:
    for row in TABLE:
        case = next(case for case in ONE_OF_EACH if row.numbers_in(case[0]) is not None)
        plain, named = (module(case, init).state_dict() for init in (None, row.init))
        assert all(torch.equal(plain[key], named[key]) for key in plain)
        assert describe(row.name).inits[0] == row.init and sorted(describe(row.name).inits) == sorted(INITS)


@pytest.mark.parametrize(
    ("init", "sentence"),
    [
        ("he_out", "model cnn: init 'he_out' is not known; did you mean 'he-out'?"),
        ("xavier", "init 'xavier' is not known; choose one of: by-size, he-in, he-out, lecun, torch"),
        (3, "init 3 is not known; choose one of"),
    ],
)
def test_an_unknown_init_is_refused(init: str, sentence: str) -> None:
    with pytest.raises(InputError, match=re.escape(sentence)):
        builder("cnn", (1, 8, 8), 3, init=init)


@pytest.mark.parametrize(("side", "same"), [(8, "he-in"), (15, "he-in"), (16, "torch"), (28, "torch")])
def test_by_size_is_he_in_for_small_images_and_torch_for_others(side: int, same: str) -> None:
    started = {}
    for init in ("by-size", same):
        torch.manual_seed(0)
        started[init] = builder("cnn", (1, side, side), 5, init=init)().state_dict()
    assert all(torch.equal(value, started[same][name]) for name, value in started["by-size"].items())
    assert describe("cnn").inits[0] == "by-size"
