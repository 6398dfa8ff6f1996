"""Dropout from keys: the mask against a loop of whole numbers, and when it acts."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from undergrowth.core import Context, InputError, KeyedDropout, Model, Steps
from undergrowth.core.dropout import NUMBER_OF_KEYS, drop, kept, layer_keys

WORD = 2**32


def mixed(word: int) -> int:
    """The finaliser of MurmurHash3, on unsigned numbers of 32 bits."""
    word = (word ^ word >> 16) * 0x85EBCA6B % WORD
    word = (word ^ word >> 13) * 0xC2B2AE35 % WORD
    return word ^ word >> 16


@pytest.mark.parametrize("count", [1, 2, 7])
@pytest.mark.parametrize("p", [0.0, 0.3, 0.99])
def test_the_mask_is_that_of_a_loop_over_whole_numbers(count: int, p: float) -> None:
    keys = [0, 1, NUMBER_OF_KEYS - 1]
    found = layer_keys(torch.tensor(keys, dtype=torch.int32), 2)
    for layer in range(2):
        for row, key in enumerate(keys):
            own = mixed((key + (layer + 1) * 0x9E3779B9) % WORD)
            assert int(found[layer, row]) % WORD == own
            halves = [mixed((own + j // 2 * 0x9E3779B9) % WORD) >> 16 * (j % 2) & 0xFFFF for j in range(count)]
            mask = [(half ^ 0x8000) >= round(p * 2**16) for half in halves]
            assert kept(found[layer], count, p)[row].tolist() == mask


def test_values_are_dropped_independently_and_keep_their_mean() -> None:
    keys = torch.arange(500, dtype=torch.int32)  # keys in a row are no worse than random ones
    mask = kept(keys, 1000, 0.3).double()
    deviation = 0.21**0.5
    assert abs(mask.mean() - 0.7) < 4 * deviation / 500_000**0.5
    assert mask.mean(0).std() < 1.2 * deviation / 500**0.5 and mask.mean(1).std() < 1.2 * deviation / 1000**0.5
    centred = (mask - 0.7) / deviation
    for lag in (1, 2, 8, 32):
        assert abs((centred[:, lag:] * centred[:, :-lag]).mean()) < 4 / 480_000**0.5
        assert abs((centred[lag:] * centred[:-lag]).mean()) < 4 / 460_000**0.5
    layers = torch.stack([kept(own, 1000, 0.3).double().flatten() for own in layer_keys(keys, 3)])
    assert (torch.corrcoef(layers) - torch.eye(3)).abs().max() < 4 / 500_000**0.5


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16], ids=str)
def test_kept_values_and_their_gradients_are_divided_by_the_chance_to_be_kept(dtype: torch.dtype) -> None:
    x = torch.randn(4, 3, 5, 5, generator=torch.Generator().manual_seed(0)).to(dtype).requires_grad_()
    keys = torch.tensor([3, 1, 4, 1], dtype=torch.int32)
    found, mask = drop(x, keys, 0.3), kept(keys, 75, 0.3).view(x.shape)
    assert found.dtype == dtype and torch.equal(found != 0, mask)
    torch.testing.assert_close(found, torch.where(mask, x / 0.7, 0.0).to(dtype))
    (gradient,) = torch.autograd.grad(found.sum(), x)
    torch.testing.assert_close(gradient, (mask / 0.7).to(dtype))
    other_layout = drop(x.detach().contiguous(memory_format=torch.channels_last), keys, 0.3)
    assert torch.equal(other_layout, found.detach())


class Net(nn.Sequential):
    levels = {"up": "2"}  # noqa: RUF012

    def __init__(self) -> None:
        super().__init__(KeyedDropout(0.5), nn.Linear(6, 6), KeyedDropout(0.5), nn.Linear(6, 2))


def test_a_model_drops_values_only_in_the_part_that_is_trained_and_only_with_keys() -> None:
    model = Model(Net)
    weights, x, keys = model.initial(0), torch.ones(3, 6), torch.tensor([7, 8, 9], dtype=torch.int32)
    plain = model.run(weights, x).logits
    assert model.has_dropout and not Model(lambda: nn.Linear(2, 2)).has_dropout
    assert torch.equal(model.run(weights, x, training=True).logits, plain)
    assert torch.equal(model.run(weights, x, keys=keys).logits, plain)
    whole, upper = (model.run(weights, x, training=each, keys=keys).logits for each in (True, "up"))
    assert len({tuple(each.flatten().tolist()) for each in (plain, whole, upper)}) == 3
    first, second = layer_keys(keys, 2)
    hidden = nn.functional.linear(x, weights["1.weight"], weights["1.bias"])
    by_hand = nn.functional.linear(drop(hidden, second, 0.5), weights["3.weight"], weights["3.bias"])
    assert torch.equal(upper, by_hand)
    hidden = nn.functional.linear(drop(x, first, 0.5), weights["1.weight"], weights["1.bias"])
    by_hand = nn.functional.linear(drop(hidden, second, 0.5), weights["3.weight"], weights["3.bias"])
    assert torch.equal(whole, by_hand)
    assert torch.equal(model.run(weights, x, training=True).logits, plain), "keys do not stay in the layers"


@pytest.mark.parametrize("p", [1.0, 1.5, -0.1, float("nan")])
def test_wrong_probabilities_are_refused(p: float) -> None:
    with pytest.raises(InputError, match=r"p is .*; it must be a probability from 0 to below 1"):
        KeyedDropout(p)


def test_every_visit_of_a_sample_has_its_own_key() -> None:
    steps = Steps({"x": torch.zeros(40, 1)}, (torch.arange(40), torch.arange(40)), 8)
    assert steps.keyed(Model(lambda: nn.Linear(1, 1)), Context(0, "a", 0)) is steps
    one, same, other = (steps.keyed(Model(Net), Context(0, "a", round)).visits["keys"] for round in (0, 0, 1))
    assert len({int(key) for epoch in (*one, *other) for key in epoch}) == 160
    assert all(map(torch.equal, one, same))
