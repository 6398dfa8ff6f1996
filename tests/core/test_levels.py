"""Split levels of modules that are no nn.Sequential: parts make the whole, only the upper part computes and trains."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.flop_counter import FlopCounterMode

from undergrowth.core import InputError, Model

IMAGE, TOKENS = torch.randn(4, 3, 8, 8, generator=torch.Generator().manual_seed(1)), torch.arange(20).reshape(4, 5) % 7


class Block(nn.Module):
    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__()
        self.conv = nn.Conv2d(inputs, outputs, 3, padding=1)
        self.norm = nn.BatchNorm2d(outputs)
        self.shortcut = nn.Conv2d(inputs, outputs, 1)

    def forward(self, x: Tensor) -> Tensor:
        return functional.relu(self.norm(self.conv(x)) + self.shortcut(x), inplace=True)


class Residual(nn.Module):
    """Defined in another order than it runs, with a shared activation, functions in between and a number of rows."""

    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(8, 5)
        self.pool = nn.AdaptiveAvgPool2d(1)
        self.relu = nn.ReLU()
        self.layer3 = Block(6, 8)
        self.layer2 = nn.Sequential(Block(4, 6))
        self.layer1 = Block(4, 4)
        self.stem = nn.Conv2d(3, 4, 3)

    def forward(self, x: Tensor) -> Tensor:
        rows = x.size(0)
        x = functional.max_pool2d(self.relu(self.stem(x)), 2)
        x += 1
        x = self.layer3(self.layer2(self.layer1(x)))
        return self.fc(self.relu(self.pool(x)).view(rows, -1))


class Transformer(nn.Module):
    """A class token that the module holds itself, blocks in a ModuleList, a test of a size."""

    def __init__(self) -> None:
        super().__init__()
        self.token = nn.Parameter(torch.randn(1, 1, 8))
        self.embed = nn.Embedding(7, 8)
        layers = (nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0, batch_first=True) for _ in range(3))
        self.blocks = nn.ModuleList(layers)
        self.head = nn.Linear(8, 5)

    def forward(self, x: Tensor) -> Tensor:
        x = torch.cat([self.token.expand(len(x), -1, -1), self.embed(x)], 1)
        for block in self.blocks:
            x = block(x)
        if x.shape[1] > 100:
            raise ValueError("too long")
        return self.head(x[:, 0])


class Recurrent(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(7, 4)
        self.lstm = nn.LSTM(4, 6, batch_first=True)
        self.gru = nn.GRU(6, 6, batch_first=True)
        self.out = nn.Linear(6, 5)

    def forward(self, x: Tensor) -> Tensor:
        hidden, _ = self.lstm(self.embed(x))
        return self.out(self.gru(hidden)[0][:, -1])


class Crossing(nn.Module):
    """The first features reach the head around the middle; a weight of zero hides it at first."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.middle, self.last = nn.Linear(4, 4), nn.Linear(4, 4), nn.Linear(4, 5)
        self.gate = nn.Parameter(torch.zeros(()))

    def forward(self, x: Tensor) -> Tensor:
        first = self.first(x)
        return self.last(self.middle(first) + self.gate * first)


def watched(build: Callable[[], nn.Module], x: Tensor) -> tuple[Model, dict[str, Tensor]]:
    model = Model(build).with_example(x[:1])
    return model, model.initial(3)


CASES = {
    "residual": (Residual, IMAGE, {"low": "layer2", "mid": "layer3", "up": "pool", "head": "fc"}),
    "transformer": (Transformer, TOKENS, {"low": "blocks.1", "mid": "blocks.2", "up": "head", "head": "head"}),
    "recurrent": (Recurrent, TOKENS, {"low": "lstm", "mid": "gru", "up": "out", "head": "out"}),
}
EACH = pytest.mark.parametrize("case", CASES)


@EACH
def test_levels_are_guessed_from_the_order_of_calls(case: str) -> None:
    build, x, levels = CASES[case]
    assert watched(build, x)[0].levels == levels


@EACH
def test_the_part_above_a_level_goes_on_from_its_features(case: str) -> None:
    build, x, levels = CASES[case]
    model, weights = watched(build, x)
    module = build()
    module.load_state_dict(weights)
    whole = module.eval()(x)
    kept = model.run(weights, x, maps=tuple(levels))
    torch.testing.assert_close(kept.logits, whole)  # nn.TransformerEncoderLayer computes otherwise without gradients
    for level in levels:
        features = model.run(weights, x, stop=level).logits
        torch.testing.assert_close(features, kept.maps[level])
        torch.testing.assert_close(model.run(weights, features, start=level).logits, whole)
        above = model.run(weights, features, start=level, maps=("head",), stop="head")
        torch.testing.assert_close(above.maps["head"], kept.maps["head"])
        torch.testing.assert_close(above.logits, kept.maps["head"])
    torch.testing.assert_close(model(weights, x), whole)


@EACH
def test_only_weights_above_a_level_get_a_gradient_from_its_features(case: str) -> None:
    build, x, levels = CASES[case]
    model, weights = watched(build, x)
    for level in levels:
        leaves = {name: weights[name].clone().requires_grad_() for name in model.parameters}
        features = model.run(weights, x, stop=level).logits
        logits = model.run({**weights, **leaves}, features, start=level, training=True).logits
        found = torch.autograd.grad(logits.square().sum(), list(leaves.values()), allow_unused=True)
        reached = {name for name, gradient in zip(leaves, found, strict=True) if gradient is not None}
        assert reached == set(model.trainable(level))


@EACH
def test_nothing_below_a_level_computes(case: str) -> None:
    build, x, levels = CASES[case]
    model, weights = watched(build, x)

    def flops(**part: str) -> int:
        inputs = x if "start" not in part else model.run(weights, x, stop=part["start"]).logits
        with FlopCounterMode(display=False) as counter, torch.no_grad():
            # In training mode, in which nn.TransformerEncoderLayer takes no fused path that is not counted.
            model.run(weights, inputs, training=True, **part)
        return counter.get_total_flops()

    for level in levels:
        below, above = flops(stop=level), flops(start=level)
        assert below + above == flops() and above > 0
    assert flops(start="head") < 0.2 * flops()


def test_training_above_a_level_leaves_statistics_below_it() -> None:
    model, weights = watched(Residual, IMAGE)
    output = model.run(weights, IMAGE, training="mid")
    moved = {name for name in model.buffers if not torch.equal(output.buffers[name], weights[name])}
    assert moved == set(model.upper_buffers("mid")) == {n for n in model.buffers if n.startswith("layer3.")}
    features = model.run(weights, IMAGE, stop="mid").logits
    torch.testing.assert_close(model.run(weights, features, start="mid", training=True).logits, output.logits)


def test_levels_are_named() -> None:
    model = Model(Residual).with_levels({"half": "layer2.0", "head": "fc"}).with_example(IMAGE)
    weights = model.initial(0)
    assert model.levels == {"half": "layer2.0", "head": "fc"} and model.position("half") < model.position("head")
    assert {name.split(".")[0] for name in model.trainable("half")} == {"layer2", "layer3", "fc"}
    features = model.run(weights, IMAGE, stop="half").logits
    torch.testing.assert_close(model.run(weights, features, start="half").logits, model(weights, IMAGE))
    chain = Model(lambda: nn.Sequential(nn.Sequential(nn.Linear(3, 4), nn.ReLU()), nn.Linear(4, 2)))
    assert chain.with_levels({"low": "0.1"}).with_example(torch.ones(1, 3)).trainable("low") == ("1.weight", "1.bias")


def test_a_guess_takes_a_chain_apart_and_a_named_chain_stays() -> None:
    def net() -> nn.Module:
        body = nn.Sequential(nn.Linear(6, 5), nn.Tanh(), nn.Linear(5, 4), nn.Tanh(), nn.Linear(4, 3), nn.Tanh())
        return nn.Sequential(body, nn.Linear(3, 2))

    model = Model(net).with_example(torch.ones(1, 6))
    assert model.levels == {"low": "0.2", "mid": "0.4", "up": "1", "head": "1"}
    assert Model(nn.Sequential).with_example(torch.ones(1, 6)).levels == {}
    assert Model(lambda: nn.Linear(6, 2)).with_example(torch.ones(1, 6)).levels == {"head": ""}


def test_nothing_runs_from_a_level_that_a_skip_connection_crosses() -> None:
    x = torch.randn(2, 4, generator=torch.Generator().manual_seed(0))
    model, weights = watched(Crossing, x)
    assert set(model.levels.values()) == {"last"}, "the gate is 0, and yet it is seen that `first` crosses `middle`"
    named = Model(Crossing).with_levels({"inner": "middle"}).with_example(x)
    features = named.run(weights, x, stop="inner").logits
    assert named.trainable("inner") == ("middle.weight", "middle.bias", "last.weight", "last.bias")
    with pytest.raises(InputError, match=r"split 'inner': more than the input of 'middle' reaches the part above it"):
        named.run(weights, features, start="inner")


def test_wrong_names_are_refused() -> None:
    with pytest.raises(InputError, match=r"model\.levels: mid is 'layer4', which is no submodule of Residual; did you"):
        Model(Residual).with_levels({"mid": "layer4"})
    unused = Model(Transformer).with_levels({"mid": "blocks.0.self_attn.out_proj"})
    with pytest.raises(InputError, match=r"mid is 'blocks.0.self_attn.out_proj', which is not called in a forward"):
        unused.with_example(TOKENS)
