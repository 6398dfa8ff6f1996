"""Codec texts, right and wrong."""

from __future__ import annotations

import pytest
import torch

from undergrowth.core import InputError
from undergrowth.links import Chain, Codec, Half, Plain, Quantise, TopK, codec


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("none", Plain()),
        ("fp16", Half(torch.float16)),
        ("bf16", Half(torch.bfloat16)),
        ("int8", Quantise(8)),
        ("int4", Quantise(4)),
        ("topk:0.1", TopK(0.1)),
        ("topk:1", TopK(1.0)),
        ("topk:0.1+int8", Chain((TopK(0.1), Quantise(8)))),
    ],
)
def test_a_text_names_a_codec(text: str, expected: Codec) -> None:
    assert codec(text) == expected


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("int9", "did you mean 'int8'"),
        ("float", "choose one of|did you mean"),
        ("", "choose one of"),
        ("INT8", "not known"),
        ("int8:4", "did you mean 'int8'"),
        ("topk", "above 0 and at most 1"),
        ("topk:", "above 0 and at most 1"),
        ("topk:0", "above 0 and at most 1"),
        ("topk:-0.1", "above 0 and at most 1"),
        ("topk:1.5", "above 0 and at most 1"),
        ("topk:nan", "above 0 and at most 1"),
        ("topk:ten", "'ten'"),
        ("topk:0.1+", "choose one of"),
        ("int8+topk:0.1", r"topk:SHARE\+"),
        ("int8+int4", r"topk:SHARE\+"),
        ("topk:0.1+topk:0.1", r"topk:SHARE\+"),
        ("topk:0.1+fp16+int8", r"topk:SHARE\+"),
        ("none+int8", "stands alone"),
    ],
)
def test_any_other_text_is_refused_and_told_what_would_be_right(text: str, says: str) -> None:
    with pytest.raises(InputError, match=says):
        codec(text)
