"""A model as a pure function of its weights, against the plain module."""

from __future__ import annotations

import copy
from dataclasses import FrozenInstanceError

import pytest
import torch
from torch import Tensor, nn

from undergrowth.core import InputError, Model


def loaded(model: Model, weights: dict[str, Tensor], training: bool) -> nn.Module:
    """The plain module with these weights."""
    module = model.build()
    module.load_state_dict(weights, strict=True)
    return module.train(training)


def copied(weights: dict[str, Tensor]) -> dict[str, Tensor]:
    return {name: value.clone() for name, value in weights.items()}


def same(a: dict[str, Tensor], b: dict[str, Tensor]) -> bool:
    return a.keys() == b.keys() and all(torch.equal(a[name], b[name]) for name in a)


def worn(model: Model, inputs: Tensor) -> dict[str, Tensor]:
    """Weights whose BatchNorm statistics are not the initial ones."""
    module = loaded(model, model.initial(5), True)
    for scale in (1.0, 2.0):
        module(inputs * scale)
    return {name: value.detach().clone() for name, value in module.state_dict().items()}


@pytest.mark.parametrize("training", [True, False])
def test_a_run_equals_the_plain_module(staged: Model, inputs: Tensor, training: bool) -> None:
    weights = worn(staged, inputs)
    before = copied(weights)
    output = staged.run(weights, inputs, training=training)
    module = loaded(staged, copied(weights), training)
    assert torch.equal(output.logits, module(inputs))
    after = {name: value for name, value in module.state_dict().items() if name in staged.buffers}
    assert len(after) == 6 and same(dict(output.buffers), after)
    assert same(weights, before), "the weights handed in are not changed"
    assert same(dict(output.buffers), {n: before[n] for n in staged.buffers}) is not training


def test_a_call_is_an_evaluation_even_after_training(staged: Model, inputs: Tensor) -> None:
    weights = worn(staged, inputs)
    expected = loaded(staged, copied(weights), False)(inputs)
    for mode in (True, "low", False, "head"):
        staged.run(weights, inputs, training=mode)
        assert torch.equal(staged(weights, inputs), expected)


@pytest.mark.parametrize("training", [True, False, "low"])
def test_a_mode_that_others_set_does_not_reach_a_run(staged: Model, inputs: Tensor, training: str | bool) -> None:
    weights = worn(staged, inputs)
    expected = staged.run(weights, inputs, training=training)
    for mode in (True, False):
        staged.module.train(mode)
        found = staged.run(weights, inputs, training=training)
        assert torch.equal(found.logits, expected.logits) and same(dict(found.buffers), dict(expected.buffers))


def test_the_module_keeps_nothing_of_a_run(staged: Model, inputs: Tensor) -> None:
    own = copy.deepcopy(staged.module.state_dict())
    staged.run(staged.initial(1), inputs, training=True)
    with pytest.raises(RuntimeError):
        staged.run(staged.initial(1), torch.ones(2, 99), training=True)
    assert same(dict(staged.module.state_dict()), dict(own))


def test_gradients_reach_the_weights_that_were_handed_in(staged: Model, inputs: Tensor) -> None:
    weights = staged.initial(2)
    trained = {name: weights[name].requires_grad_() for name in staged.parameters}
    found = torch.autograd.grad(
        staged.run(weights, inputs, training=True).logits.square().sum(), list(trained.values())
    )
    module = loaded(staged, {name: value.detach() for name, value in weights.items()}, True)
    module(inputs).square().sum().backward()
    for gradient, (_, parameter) in zip(found, module.named_parameters(), strict=False):
        assert torch.equal(gradient, parameter.grad)


def test_a_level_parts_the_parameters_and_buffers(staged: Model) -> None:
    assert staged.trainable() == staged.parameters and staged.upper_buffers() == staged.buffers
    assert staged.trainable("head") == ("out.weight", "out.bias") and staged.upper_buffers("head") == ()
    low = staged.trainable("low")
    assert {name.split(".")[0] for name in low} == {"second", "out"} and len(low) == 6
    assert {name.split(".")[0] for name in staged.upper_buffers("low")} == {"second"}
    assert set(staged.parameters) | set(staged.buffers) == set(staged.shapes)


@pytest.mark.parametrize("level", ["low", "head"])
def test_the_parts_below_and_above_a_level_make_the_whole(staged: Model, inputs: Tensor, level: str) -> None:
    weights = worn(staged, inputs)
    whole = staged(weights, inputs)
    below = staged.run(weights, inputs, stop=level).logits
    assert torch.equal(staged.run(weights, below, start=level).logits, whole)
    kept = staged.run(weights, inputs, maps=("head", "low"))
    assert torch.equal(kept.maps[level], below) and torch.equal(kept.logits, whole)
    between = staged.run(weights, kept.maps["low"], start="low", stop="head").logits
    assert torch.equal(between, kept.maps["head"])


@pytest.mark.parametrize("level", ["low", "head"])
def test_below_the_level_that_trains_nothing_moves(staged: Model, inputs: Tensor, level: str) -> None:
    weights = worn(staged, inputs)
    output = staged.run(weights, inputs, training=level)
    upper = set(staged.upper_buffers(level))
    for name in staged.buffers:
        assert torch.equal(output.buffers[name], weights[name]) is (name not in upper), name
    maps = staged.run(weights, inputs, stop=level).logits
    assert torch.equal(staged.run(weights, maps, start=level, training=True).logits, output.logits)


def test_initial_weights_hang_on_the_seed_alone(staged: Model) -> None:
    torch.manual_seed(0)
    state = torch.random.get_rng_state()
    first = staged.initial(11)
    again = Model(staged.build).initial(11)
    assert torch.equal(torch.random.get_rng_state(), state), "torch's own generator is left alone"
    assert same(first, again) and not same(first, staged.initial(12))
    torch.manual_seed(11)
    assert same(first, dict(staged.build().state_dict()))


class Tied(nn.Module):
    """An embedding whose table is also the output layer's."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(5, 3)
        self.out = nn.Linear(3, 5, bias=False)
        self.out.weight = self.table.weight

    def forward(self, x: Tensor) -> Tensor:
        return self.out(self.table(x)).mean(1)


def test_a_tied_weight_is_one_weight() -> None:
    model, x = Model(Tied), torch.tensor([[0, 1], [2, 4]])
    weights = model.initial(3)
    assert model.parameters == ("table.weight",) == tuple(weights) and model.buffers == ()
    weights["table.weight"] = (weights["table.weight"] * 2).requires_grad_()
    module = Tied()
    with torch.no_grad():
        module.table.weight.copy_(weights["table.weight"])
    logits = model.run(weights, x, training=True).logits
    assert torch.equal(logits, module(x))
    (gradient,) = torch.autograd.grad(logits.square().sum(), weights["table.weight"])
    module(x).square().sum().backward()
    assert torch.equal(gradient, module.table.weight.grad)


def test_a_tied_weight_stays_tied_on_a_device_without_values() -> None:
    """Torch itself unties it there, and a price on shapes would then miss the other name among the weights."""
    model = Model(Tied).to("meta")
    assert model.module.out.weight is model.module.table.weight
    x = torch.empty(2, 2, dtype=torch.long, device="meta")
    assert model.run(model.initial(0), x, training=True).logits.shape == (2, 5)


class Characters(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.lstm = nn.LSTM(2, 4, num_layers=2, batch_first=True)
        self.out = nn.Linear(4, 3)
        self.register_buffer("scale", torch.tensor(2.0), persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        return self.out(self.lstm(x)[0][:, -1]) * self.scale


def test_an_lstm_runs_with_the_weights_handed_in() -> None:
    model, x = Model(Characters), torch.randn(4, 6, 2, generator=torch.Generator().manual_seed(0))
    for seed in (1, 2):
        weights = {name: value.requires_grad_() for name, value in model.initial(seed).items()}
        module = loaded(model, {name: value.detach() for name, value in weights.items()}, True)
        logits = model.run(weights, x, training=True).logits
        assert torch.equal(logits, module(x))
        found = torch.autograd.grad(logits.sum(), list(weights.values()))
        module(x).sum().backward()
        assert all(torch.equal(g, p.grad) for g, p in zip(found, module.parameters(), strict=False))


def test_a_module_that_is_no_chain_has_its_last_linear_layer_as_head() -> None:
    model = Model(Characters)
    assert model.levels == {"head": "out"} and model.trainable("head") == ("out.weight", "out.bias")
    assert "scale" not in model.shapes, "what the state dict leaves out is no weight"
    weights, x = model.initial(0), torch.ones(1, 2, 2)
    features = model.run(weights, x, stop="head").logits
    assert torch.equal(features, model.run(weights, x, maps=("head",)).maps["head"]) and features.shape == (1, 4)
    with pytest.raises(InputError, match="split 'head': the model cannot run from features before"):
        model.run(weights, features, start="head")


def test_a_chain_without_names_has_its_last_stage_with_parameters_as_head() -> None:
    model = Model(lambda: nn.Sequential(*[nn.Linear(2, 2) for _ in range(11)], nn.Linear(2, 3), nn.Flatten()))
    assert model.levels == {"head": "11"} and model.trainable("head") == ("11.weight", "11.bias")
    assert Model(lambda: nn.Sequential(nn.Flatten())).levels == {}


def test_an_unknown_level_is_answered_with_the_nearest(staged: Model, inputs: Tensor) -> None:
    weights = staged.initial(0)
    for wrong in (
        lambda: staged.trainable("heat"),
        lambda: staged.run(weights, inputs, training="heat"),
        lambda: staged.run(weights, inputs, stop="heat"),
        lambda: staged.run(weights, inputs, maps=("heat",)),
    ):
        with pytest.raises(InputError, match=r"split 'heat' .* did you mean 'head'\?"):
            wrong()
    assert torch.equal(staged(weights, inputs), loaded(staged, weights, False)(inputs)), "and the model still works"


def test_a_model_is_frozen_and_its_variants_are_other_models(staged: Model, inputs: Tensor) -> None:
    with pytest.raises(FrozenInstanceError):
        staged.mixed = True  # type: ignore[misc]
    mixed, twice = staged.with_precision(True), staged.with_not_alone(frozenset({None, "low"}))
    assert (staged.mixed, mixed.mixed, twice.mixed) == (False, True, False)
    assert [each.smallest_batch() for each in (staged, mixed, twice)] == [1, 1, 2]
    assert twice.smallest_batch("low") == 2 and twice.smallest_batch("head") == 1
    assert staged.to("cpu") is staged and mixed.with_precision(False).mixed is False
    weights = staged.initial(3)
    assert torch.equal(mixed(weights, inputs), staged(weights, inputs)), "evaluation is in full precision"
    lower = mixed.run(weights, inputs, training=True).logits
    assert not torch.equal(lower, staged.run(weights, inputs, training=True).logits)


def test_a_model_on_another_torch_device_leaves_the_first_where_it_was(staged: Model, inputs: Tensor) -> None:
    there = staged.with_not_alone(frozenset({None})).to("meta")
    assert there.torch_device == "meta" and staged.torch_device == "cpu" and there.smallest_batch() == 2
    assert all(value.is_meta for value in there.initial(0).values())
    assert there.run(there.initial(0), inputs.to("meta"), training="low").logits.is_meta
    weights = staged.initial(0)
    assert not any(value.is_meta for value in weights.values())
    assert torch.equal(staged(weights, inputs), Model(staged.build)(weights, inputs))


def test_a_module_that_calls_view_after_pooling_runs() -> None:
    class Viewing(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.convolution, self.pool, self.fc = nn.Conv2d(2, 3, 3), nn.MaxPool2d(2), nn.Linear(12, 2)

        def forward(self, x: Tensor) -> Tensor:
            x = self.pool(self.convolution(x))
            return self.fc(x.view(x.size(0), -1))

    model = Model(Viewing)
    weights, x = model.initial(0), torch.randn(4, 2, 6, 6, generator=torch.Generator().manual_seed(0))
    module = Viewing()
    module.load_state_dict(weights)
    assert torch.allclose(model(weights, x), module(x))
    gradients = torch.func.grad(lambda weights: model.run(weights, x, training=True).logits.sum())(weights)
    assert gradients["convolution.weight"].shape == (3, 2, 3, 3)


class Averages(nn.Module):
    """Assigns new tensors to its buffers in training, where BatchNorm changes them in place."""

    def __init__(self) -> None:
        super().__init__()
        self.out = nn.Linear(3, 2)
        self.register_buffer("mean", torch.zeros(2))
        self.register_buffer("steps", torch.zeros((), dtype=torch.int64))

    def forward(self, x: Tensor) -> Tensor:
        y = self.out(x)
        if self.training:
            self.mean = 0.9 * self.mean + 0.1 * y.mean(0)
            self.steps = self.steps + 1
        return y - self.mean.detach()


def test_a_buffer_that_a_layer_assigns_is_in_the_output() -> None:
    model, x = Model(Averages), torch.randn(4, 3, generator=torch.Generator().manual_seed(0))
    weights = model.initial(3)
    before, module = copied(weights), loaded(model, weights, True)
    buffers = dict(model.run(weights, x, training=True).buffers)
    module(x)
    expected = dict(module.named_buffers())
    assert same(buffers, expected) and int(buffers["steps"]) == 1 and not buffers["mean"].requires_grad
    assert same(weights, before) and same(
        dict(model.run(weights, x).buffers), {"mean": before["mean"], "steps": before["steps"]}
    )
    assert int(model.run({**weights, **buffers}, x, training=True).buffers["steps"]) == 2


class Masked(nn.Linear):
    def __init__(self) -> None:
        super().__init__(3, 3)
        self.register_buffer("mask", torch.full((3, 3), -torch.inf).triu(1))
        self.register_buffer("low", torch.full((3,), torch.inf))

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x) @ self.mask.softmax(1)


def test_a_mask_with_infinite_values_is_no_weight() -> None:
    """It could not be averaged. A buffer of nothing but infinite values is one: statistics may start so."""
    model = Model(Masked)
    for each in (model, model.to("meta")):
        assert set(each.shapes) == {"weight", "bias", "low"} and set(each.constants) == {"mask"}
    assert set(model.complete(model.initial(0))) == set(Masked().state_dict())
