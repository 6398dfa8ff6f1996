"""Codecs: what the tensors of a packet become on a link, and back."""

from undergrowth.exchange.codecs.build import FORMATS, build_codec
from undergrowth.exchange.codecs.codec import ChainCodec, Codec
from undergrowth.exchange.codecs.half import HalfCodec
from undergrowth.exchange.codecs.quantise import QuantiseCodec
from undergrowth.exchange.codecs.topk import TopKCodec

__all__ = ["FORMATS", "ChainCodec", "Codec", "HalfCodec", "QuantiseCodec", "TopKCodec", "build_codec"]
