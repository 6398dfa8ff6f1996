"""Packets, and the table of every codec that a configuration can name."""

from __future__ import annotations

import torch
from hypothesis import strategies as st
from torch import Tensor

from undergrowth.core import Packet
from undergrowth.exchange.codecs import ChainCodec, Codec, build_codec

EVERY_CODEC = [
    "none", "fp16", "bf16", "int8", "int4", "topk:0.1", "topk:1",
    "topk:0.1+fp16", "topk:0.1+bf16", "topk:0.1+int8", "topk:0.3+int4", "topk:1+int4",
]  # fmt: skip
LOSSY = [name for name in EVERY_CODEC if name not in ("none", "topk:1")]


def codec(name: str) -> Codec:
    return ChainCodec(()) if name == "none" else build_codec("links.up", name)


def mixed_packet() -> Packet:
    """All kinds of tensors that methods send, and some that they hardly do."""
    generator = torch.Generator().manual_seed(5)
    tensors = {
        "conv.weight": torch.randn(8, 3, 3, 3, generator=generator),
        "norm.bias": torch.randn(7, generator=generator),
        "norm.count": torch.tensor(12),
        "scale": torch.tensor(0.3),
        "empty": torch.zeros(0, 4),
        "mask": torch.tensor([True, False, True]),
        "labels": torch.arange(5),
        "change/wide": torch.randn(3, 301, generator=generator, dtype=torch.float64),
        "half": torch.randn(33, generator=generator).half(),
        "turned": torch.randn(20, 30, generator=generator).t(),
        "zeros": torch.zeros(300),
    }
    return Packet(tensors, {"samples": 40.0}, {"kind": "update"})


def on_meta(packet: Packet) -> Packet:
    return Packet({name: value.to("meta") for name, value in packet.tensors.items()}, packet.scalars, packet.tags)


@st.composite
def float_rows(draw: st.DrawFn) -> Tensor:
    """Rows of float32 from one value to several blocks, from the smallest magnitudes to the largest, with outliers."""
    count = draw(st.integers(1, 600))
    generator = torch.Generator().manual_seed(draw(st.integers(0, 2**31)))
    magnitude = 10.0 ** draw(st.integers(-44, 37))
    row = torch.randn(count, generator=generator, dtype=torch.float64) * magnitude
    for value in draw(st.lists(st.floats(width=32, allow_nan=False, allow_infinity=False), max_size=3)):
        row[int(torch.randint(count, (1,), generator=generator))] = value
    return row.float().clamp(torch.finfo(torch.float32).min, torch.finfo(torch.float32).max)
