"""From the text of a configuration to a codec."""

from __future__ import annotations

from collections.abc import Mapping

import torch

from undergrowth.core import InputError
from undergrowth.core.notation import Form, Number, parse
from undergrowth.exchange.codecs.codec import ChainCodec, Codec
from undergrowth.exchange.codecs.half import HalfCodec
from undergrowth.exchange.codecs.quantise import QuantiseCodec
from undergrowth.exchange.codecs.topk import TopKCodec

# How values are written; at most one in a chain, and last.
FORMATS: Mapping[str, Codec] = {
    "fp16": HalfCodec(torch.float16),
    "bf16": HalfCodec(torch.bfloat16),
    "int8": QuantiseCodec(8),
    "int4": QuantiseCodec(4),
}
_TOPK = Form((Number("FRACTION", above=0, at_most=1),), "topk:0.1 or topk:0.1+int8")
_FORMS = {**dict.fromkeys(FORMATS, Form()), "topk": _TOPK}


def build_codec(field: str, text: str) -> Codec:
    """The codec ``fp16``, ``bf16``, ``int8``, ``int4``, ``topk:0.1``, or top-k and a format: ``topk:0.1+int8``.

    `field` names the setting in messages.
    """
    codecs: list[Codec] = []
    for part in text.split("+"):
        name, numbers = parse(field, part, _FORMS)
        codecs.append(TopKCodec(*numbers) if name == "topk" else FORMATS[name])
    if len(codecs) == 1:
        return codecs[0]
    if len(codecs) > 2 or not isinstance(codecs[0], TopKCodec) or isinstance(codecs[1], TopKCodec):
        raise InputError(f"{field} '{text}' is not a chain of topk:FRACTION and one of {', '.join(FORMATS)}")
    return ChainCodec(tuple(codecs))
