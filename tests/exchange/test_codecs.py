"""What every codec promises, and how far each may be off."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from tests.exchange.samples import EVERY_CODEC, LOSSY, codec, float_rows, mixed_packet, on_meta
from undergrowth.core import Packet, pack, unpack
from undergrowth.core.server import find_non_finite
from undergrowth.exchange.codecs import Codec, HalfCodec, QuantiseCodec, TopKCodec

SMALLEST = 2.0**-149  # the spacing of float32 near zero, where no relative bound can hold
BLOCK = 256


def round_trip(way: Codec, tensor: Tensor) -> Tensor:
    return way.decode(way.encode(Packet({"w": tensor}))).tensors["w"]


def weight(way: Codec, tensor: Tensor) -> int:
    return way.encode(Packet({"w": tensor})).nbytes


def block_largest(row: Tensor) -> Tensor:
    """For every value the largest magnitude in its block."""
    return torch.cat([part.abs().max().expand(len(part)) for part in row.double().split(BLOCK)])


@pytest.mark.parametrize("name", EVERY_CODEC)
def test_names_order_shapes_types_and_all_that_is_not_float_come_back(name: str) -> None:
    packet = mixed_packet()
    back = codec(name).decode(codec(name).encode(packet))
    assert list(back.tensors) == list(packet.tensors)
    for key, value in packet.tensors.items():
        assert back.tensors[key].shape == value.shape, key
        assert back.tensors[key].dtype == value.dtype, key
        if not value.is_floating_point():
            assert torch.equal(back.tensors[key], value), key
    assert back.scalars == packet.scalars
    assert back.tags == packet.tags


@pytest.mark.parametrize("name", EVERY_CODEC)
def test_meta_tensors_weigh_the_same_and_come_back(name: str) -> None:
    packet = mixed_packet()
    encoded = codec(name).encode(on_meta(packet))
    assert encoded.nbytes == codec(name).encode(packet).nbytes
    back = codec(name).decode(encoded)
    assert {k: (v.shape, v.dtype) for k, v in back.tensors.items()} == {
        k: (v.shape, v.dtype) for k, v in packet.tensors.items()
    }


@pytest.mark.parametrize("name", EVERY_CODEC)
def test_an_encoded_packet_can_be_stored_and_lies_under_a_prefix(name: str) -> None:
    way, packet = codec(name), mixed_packet()
    encoded = way.encode(packet)
    stored = unpack(*pack(encoded))
    joined = Packet.join({"base": encoded, "other": Packet()}).part("base")
    whole = Packet.join({"base": packet})
    expected = way.decode(encoded).tensors
    for back in (way.decode(stored), way.decode(joined), way.decode(way.encode(whole)).part("base")):
        assert all(torch.equal(back.tensors[key], value) for key, value in expected.items())


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("name", EVERY_CODEC)
def test_what_is_not_finite_never_becomes_finite(name: str, bad: float) -> None:
    for place in (0, 255, 299):
        row = torch.full((300,), 2.0)
        row[place] = bad
        arrived = codec(name).decode(codec(name).encode(Packet({"w": row})))
        assert not torch.isfinite(arrived.tensors["w"][place])
        assert find_non_finite(arrived)


def test_bytes_of_a_large_tensor() -> None:
    row, values = torch.randn(1000, 101), 101_000
    blocks = math.ceil(values / BLOCK)
    assert weight(codec("none"), row) == 4 * values
    assert weight(codec("fp16"), row) == weight(codec("bf16"), row) == 2 * values
    assert weight(codec("int8"), row) == values + 4 * blocks
    assert weight(codec("int4"), row) == values // 2 + 4 * blocks
    assert weight(codec("topk:0.1"), row) == 10_100 * (4 + 4)
    assert weight(codec("topk:0.1+int8"), row) == 10_100 * (1 + 4) + 4 * math.ceil(10_100 / BLOCK)
    assert weight(codec("int4"), torch.randn(5)) == 3 + 4


def test_places_need_eight_bytes_only_beyond_the_reach_of_four() -> None:
    share = 10 / 2**31
    assert weight(TopKCodec(share), torch.empty(2**31, device="meta")) == 10 * (4 + 4)
    assert weight(TopKCodec(share), torch.empty(2**31 + 1, device="meta")) == 10 * (4 + 8)


@pytest.mark.parametrize(("bits", "steps"), [(8, 254), (4, 14)])
@given(row=float_rows())
def test_quantisation_is_off_by_half_a_step_at_most(bits: int, steps: int, row: Tensor) -> None:
    arrived = round_trip(codec(f"int{bits}"), row)
    allowed = block_largest(row) / steps * (1 + 1e-4) + SMALLEST
    assert bool(((arrived.double() - row.double()).abs() <= allowed).all())


@pytest.mark.parametrize("name", ["int8", "int4"])
@given(value=st.floats(width=32, allow_nan=False, allow_infinity=False), count=st.integers(1, 520))
def test_quantisation_keeps_constants_exactly(name: str, value: float, count: int) -> None:
    row = torch.full((count,), value)
    assert torch.equal(round_trip(codec(name), row), row)


@pytest.mark.parametrize("value", [1e300, 1e-300, -3.0])
def test_quantisation_of_wide_floats_beyond_the_reach_of_narrow_ones(value: float) -> None:
    row = torch.tensor([value, value / 2, 0.0], dtype=torch.float64)
    assert bool(((round_trip(QuantiseCodec(8), row) - row).abs() <= abs(value) / 254 * (1 + 1e-9)).all())


@given(row=float_rows())
def test_halves_are_off_by_their_last_bit_at_most(row: Tensor) -> None:
    arrived = round_trip(HalfCodec(torch.bfloat16), row).double()
    in_reach = row.abs() < 3.3e38
    assert bool(((arrived - row.double()).abs() <= row.double().abs() / 2**8 + 1e-40)[in_reach].all())
    row = row.clamp(-65504, 65504)
    arrived = round_trip(HalfCodec(torch.float16), row).double()
    assert bool(((arrived - row.double()).abs() <= row.double().abs() / 2**11 + 2.0**-25).all())


def test_halves_of_what_they_can_hold_are_exact_and_the_rest_is_seen() -> None:
    row = torch.arange(-2048, 2048) / 16
    assert torch.equal(round_trip(HalfCodec(torch.float16), row), row)
    assert torch.isinf(round_trip(HalfCodec(torch.float16), torch.tensor([1e6]))).all()


@given(row=float_rows(), share=st.floats(0.001, 1))
def test_top_k_keeps_the_largest_exactly_and_nothing_else(row: Tensor, share: float) -> None:
    arrived = round_trip(TopKCodec(share), row)
    count = max(1, round(share * len(row)))
    kept = arrived != 0
    assert torch.equal(arrived[kept], row[kept])
    assert int(kept.sum()) <= count
    expected = row.abs().sort(descending=True).values[:count]
    assert torch.equal(arrived.abs().sort(descending=True).values[:count], expected)


@pytest.mark.parametrize("name", LOSSY)
@given(row=float_rows())
def test_encoding_what_arrived_once_more_changes_little(name: str, row: Tensor) -> None:
    once = round_trip(codec(name), row.clamp(-6e4, 6e4))
    twice = round_trip(codec(name), once)
    assert torch.allclose(once, twice, rtol=1e-5, atol=1e-44)


@pytest.mark.parametrize("missing", ["form", "codes", "scales"])
def test_a_packet_with_a_piece_missing_is_refused_by_name(missing: str) -> None:
    encoded = QuantiseCodec(8).encode(Packet({"layer.weight": torch.ones(4)}))
    rest = {name: value for name, value in encoded.tensors.items() if not name.endswith(missing)}
    with pytest.raises(ValueError, match=r"layer\.weight"):
        QuantiseCodec(8).decode(Packet(rest))


def test_a_packet_with_pieces_that_do_not_fit_is_refused_by_name() -> None:
    encoded = TopKCodec(0.5).encode(Packet({"w": torch.ones(4)}))
    outside = {**encoded.tensors, "w#topk.places": torch.tensor([1, 9], dtype=torch.int32)}
    with pytest.raises(ValueError, match="'w'"):
        TopKCodec(0.5).decode(Packet(outside))
    with pytest.raises(ValueError, match="rename"):
        TopKCodec(0.5).encode(encoded)
