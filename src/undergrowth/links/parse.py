"""From the text of a configuration to a codec."""

from __future__ import annotations

from collections.abc import Mapping

import torch

from undergrowth.core import InputError, nearest
from undergrowth.links.codec import Chain, Codec, Plain
from undergrowth.links.half import Half
from undergrowth.links.quantise import Quantise
from undergrowth.links.topk import TopK

# How values cross; one of them at most, and last.
FORMATS: Mapping[str, Codec] = {
    "fp16": Half(torch.float16),
    "bf16": Half(torch.bfloat16),
    "int8": Quantise(8),
    "int4": Quantise(4),
}
NAMES = ("none", *FORMATS, "topk:SHARE", "topk:SHARE+int8")


def codec(text: str) -> Codec:
    """ "none", "fp16", "bf16", "int8", "int4", "topk:0.1", or a top-k and one of the formats: "topk:0.1+int8"."""
    if text == "none":
        return Plain()
    links = [_one(name, text) for name in text.split("+")]
    if len(links) == 1:
        return links[0]
    if len(links) > 2 or not isinstance(links[0], TopK) or isinstance(links[1], TopK):
        raise InputError(f"codec '{text}' cannot be chained so; a chain is 'topk:SHARE+' and one of {_formats()}")
    return Chain(tuple(links))


def _one(name: str, text: str) -> Codec:
    if name in FORMATS:
        return FORMATS[name]
    kind, _, number = name.partition(":")
    if kind == "topk":
        return TopK(_share(number, text))
    if name == "none":
        raise InputError(f"codec '{text}': 'none' stands alone; a chain is 'topk:SHARE+' and one of {_formats()}")
    raise InputError(f"codec '{name}' is not known; {nearest(name, NAMES)}")


def _share(number: str, text: str) -> float:
    try:
        share = float(number)
    except ValueError:
        share = 0.0
    if not 0 < share <= 1:  # not-a-number fails this too
        raise InputError(f"codec '{text}': the share '{number}' must be a number above 0 and at most 1: topk:0.1")
    return share


def _formats() -> str:
    return ", ".join(FORMATS)
