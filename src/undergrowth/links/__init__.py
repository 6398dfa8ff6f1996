"""What a packet becomes on a link, and back: codecs, and links that send changes and remember what was lost."""

from undergrowth.links.codec import Chain, Codec, Plain
from undergrowth.links.half import Half
from undergrowth.links.link import Link
from undergrowth.links.links import Links
from undergrowth.links.parse import codec
from undergrowth.links.quantise import Quantise
from undergrowth.links.topk import TopK

__all__ = ["Chain", "Codec", "Half", "Link", "Links", "Plain", "Quantise", "TopK", "codec"]
