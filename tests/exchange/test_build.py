"""Codec texts, right and wrong."""

from __future__ import annotations

import pytest
import torch

from undergrowth.core import InputError
from undergrowth.exchange.codecs import ChainCodec, Codec, HalfCodec, QuantiseCodec, TopKCodec, build_codec


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("fp16", HalfCodec(torch.float16)),
        ("bf16", HalfCodec(torch.bfloat16)),
        ("int8", QuantiseCodec(8)),
        ("int4", QuantiseCodec(4)),
        ("topk:0.1", TopKCodec(0.1)),
        ("topk:1", TopKCodec(1.0)),
        ("topk:0.1+int8", ChainCodec((TopKCodec(0.1), QuantiseCodec(8)))),
    ],
)
def test_a_text_names_a_codec(text: str, expected: Codec) -> None:
    assert build_codec("links.up", text) == expected


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("int9", "did you mean 'int8'"),
        ("float", "choose one of|did you mean"),
        ("", "choose one of"),
        ("INT8", "not known"),
        ("int8:4", "must be int8"),
        ("topk", "above 0 and of at most 1"),
        ("topk:", "above 0 and of at most 1"),
        ("topk:0", "above 0 and of at most 1"),
        ("topk:-0.1", "above 0 and of at most 1"),
        ("topk:1.5", "above 0 and of at most 1"),
        ("topk:nan", "above 0 and of at most 1"),
        ("topk:ten", "'topk:ten'"),
        ("topk:0.1+", "choose one of"),
        ("int8+topk:0.1", r"is not a chain of topk:FRACTION"),
        ("int8+int4", r"is not a chain of topk:FRACTION"),
        ("topk:0.1+topk:0.1", r"is not a chain of topk:FRACTION"),
        ("topk:0.1+fp16+int8", r"is not a chain of topk:FRACTION"),
        ("none+int8", "'none' is not known"),
    ],
)
def test_any_other_text_is_refused_and_told_what_would_be_right(text: str, says: str) -> None:
    with pytest.raises(InputError, match=says):
        build_codec("links.up", text)
