"""Perturbing a model in place gives the bits of the plain formula, whatever is perturbed together."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from tests.learning.streams import normals
from undergrowth.learning import zeroth_order
from undergrowth.learning.directions import derive
from undergrowth.learning.zeroth_order import private_copy, shift

KEY = torch.tensor(7654321)


def model(clients: int) -> dict[str, Tensor]:
    """Parameters of several sizes and two dtypes; for `clients` > 0, with the client as the first dimension."""
    generator = torch.Generator().manual_seed(1)
    shapes = {"w": (5, 9), "b": (), "large": (70,), "none": (0,), "double": (3, 2), "last": (6,)}
    stack = (clients,) if clients else ()
    found = {name: torch.randn((*stack, *shape), generator=generator) for name, shape in shapes.items()}
    return {**found, "double": found["double"].double()}


def formula(parameters: dict[str, Tensor], key: Tensor, scales: list[float]) -> dict[str, Tensor]:
    """w + scale·z for one scale after the other, of a single client."""
    found = {}
    for place, (name, value) in enumerate(parameters.items()):
        z = normals(derive(key, place), 0, value.numel()).view(value.shape).to(value.dtype)
        for scale in scales:
            value = value + z * torch.tensor(scale, dtype=value.dtype)
        found[name] = value
    return found


@pytest.mark.parametrize("chunk", [16, 1 << 15])
def test_a_shift_is_that_of_the_formula(chunk: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(zeroth_order, "CPU_CHUNK", chunk)
    walk = [1e-3, -2e-3, 1e-3]
    expected, changed = formula(model(0), KEY, walk), model(0)
    shift(changed, KEY, walk)
    assert all(torch.equal(changed[name], value) for name, value in expected.items())


@pytest.mark.parametrize("keys", [torch.stack([KEY, KEY + 1, KEY + 2]), KEY.expand(3)])
def test_clients_of_a_stack_are_shifted_as_each_alone(keys: Tensor) -> None:
    together, scales = model(3), torch.tensor([0.5, -1.0, 2.0], dtype=torch.float64)
    before = {name: value.clone() for name, value in together.items()}
    shift(together, keys, [0.1, scales])
    for client in range(3):
        alone = {name: value[client] for name, value in before.items()}
        expected = formula(alone, keys[client], [0.1, float(scales[client])])
        assert all(torch.equal(together[name][client], value) for name, value in expected.items())


def test_clients_that_share_some_parameters_and_the_key_change_the_shared_ones_once() -> None:
    own, shared = model(3), {name: value.expand(3, *value.shape) for name, value in model(0).items()}
    keys = KEY.expand(3)
    together = private_copy({**shared, "w": own["w"]}, keys)
    shift(together, keys, [0.1])
    for client in range(3):
        expected = formula({**model(0), "w": own["w"][client]}, KEY, [0.1])
        assert all(torch.equal(together[name][client], value) for name, value in expected.items())
    assert together["large"].stride(0) == 0 and together["w"].stride(0)
