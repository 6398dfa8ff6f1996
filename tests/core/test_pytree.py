"""State trees to disk and back, bit for bit."""

from __future__ import annotations

import math
import struct
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from safetensors.torch import load, save

from undergrowth.core import Packet, move_to, pack, unpack
from undergrowth.core.pytree import signature

NAN = torch.tensor([0x7FC00001, 0x7F800001, -1], dtype=torch.int32).view(torch.float32)  # three different NaNs
TENSORS = (
    NAN, torch.tensor([-0.0, 0.0]), torch.tensor([0.1, 6e-8]).half(), torch.tensor([1e38]).bfloat16(),
    torch.tensor([1, -(2**62)]), torch.tensor([True, False]), torch.zeros(0, 3), torch.tensor(5.0, dtype=torch.float64),
)  # fmt: skip

LEAVES = st.one_of(
    st.none(), st.booleans(), st.integers(-(2**70), 2**70), st.floats(), st.text(max_size=5), st.sampled_from(TENSORS)
)
KEYS = st.one_of(st.text(max_size=4), st.integers(-5, 5), st.sampled_from(("tensor", "map", "packet", "list")))
TREES = st.recursive(
    LEAVES,
    lambda inner: st.one_of(
        st.lists(inner, max_size=3),
        st.lists(inner, max_size=3).map(tuple),
        st.dictionaries(KEYS, inner, max_size=3),
        st.builds(
            Packet,
            st.dictionaries(st.text(max_size=3), st.sampled_from(TENSORS), max_size=2),
            st.dictionaries(st.text(max_size=3), st.floats(), max_size=2),
            st.dictionaries(st.text(max_size=3), st.text(max_size=3), max_size=2),
        ),
    ),
    max_leaves=12,
)


def same_bits(a: Any, b: Any) -> bool:
    if type(a) is not type(b):
        return False
    if isinstance(a, torch.Tensor):
        return a.shape == b.shape and a.dtype == b.dtype and bits(a) == bits(b)
    if isinstance(a, Packet):
        return all(same_bits(dict(x), dict(y)) for x, y in zip(vars(a).values(), vars(b).values(), strict=False))
    if isinstance(a, dict):
        return list(a) == list(b) and all(same_bits(a[key], b[key]) for key in a)
    if isinstance(a, list | tuple):
        return len(a) == len(b) and all(map(same_bits, a, b))
    if isinstance(a, float):
        return (math.isnan(a) and math.isnan(b)) or struct.pack("d", a) == struct.pack("d", b)
    return bool(a == b)


def bits(tensor: torch.Tensor) -> list[int]:
    return tensor.reshape(-1).view(torch.uint8).tolist()


@given(TREES)
def test_a_tree_comes_back_bit_for_bit(tree: Any) -> None:
    assert same_bits(unpack(*pack(tree)), tree)


def test_it_comes_back_through_a_file_without_pickle() -> None:
    tree = {"all": list(TENSORS), "packet": Packet({"w": NAN}, {"x": math.inf}, {"t": "é"}), 3: (None, True)}
    tensors, text = pack(tree)
    assert same_bits(unpack(load(save(tensors)), text), tree)


def test_a_tensor_in_many_places_is_stored_once() -> None:
    shared, alike = torch.ones(3), torch.ones(3)
    down = Packet({"w": shared})
    tensors, text = pack({"out": {f"c{i}": down for i in range(100)}, "model": shared, "other": alike})
    assert len(tensors) == 2
    back = unpack(tensors, text)
    assert back["out"]["c0"].tensors["w"] is back["model"] is not back["other"]


@pytest.mark.parametrize(
    "odd",
    [{1, 2}, b"bytes", 1j, object(), torch.float32, {(1, 2): 0}],
    ids=("set", "bytes", "complex", "object", "dtype", "key"),
)
def test_other_things_are_refused(odd: object) -> None:
    with pytest.raises(TypeError, match="a state may hold"):
        pack({"deep": [odd]})


def test_moving_a_tree_moves_every_tensor_and_keeps_the_rest() -> None:
    tree = {"a": [torch.ones(1), (torch.ones(2), 3)], "b": Packet({"w": torch.ones(1)}, {"n": 1.0}, {"t": "x"})}
    away = move_to(tree, "meta")
    assert away["a"][0].is_meta and away["a"][1][0].is_meta and away["b"].tensors["w"].is_meta
    assert away["a"][1][1] == 3 and away["b"].scalars == {"n": 1.0} and away["b"].tags == {"t": "x"}


def test_a_signature_has_the_form_and_the_description_of_every_leaf() -> None:
    def describe(leaf: Any) -> Any:
        return leaf.shape if isinstance(leaf, torch.Tensor) else type(leaf)

    def of(*values: Any) -> Any:
        packet = Packet({"w": values[0]}, {"loss": values[1]}, {"tag": "a"})
        return signature({"list": [values[0], 3], "packet": packet, 7: (None, values[2])}, describe)

    assert hash(of(torch.ones(2), 1.0, "a")) == hash(of(torch.zeros(2), 2.0, "b"))
    assert of(torch.ones(2), 1.0, "a") == of(torch.zeros(2), 2.0, "b")
    assert of(torch.ones(2), 1.0, "a") != of(torch.ones(3), 1.0, "a")
    assert of(torch.ones(2), 1.0, "a") != of(torch.ones(2), 1.0, 4)
    assert len({signature(tree, describe) for tree in ({}, [], {"a": 1}, {"b": 1}, [1], [[1]], ["a", 1])}) == 7
