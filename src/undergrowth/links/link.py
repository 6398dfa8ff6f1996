"""Link: sends what changed, and next time also what the codec lost this time."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from undergrowth.core import Packet, State, Weights
from undergrowth.links.codec import Codec, Plain


@dataclass(frozen=True)
class Link:
    """An uplink with a codec. Both ends hold the reference: the weights that the device received.

    A float tensor with the name, shape and type of one in the reference crosses as its change from it: changes are
    small, so the same number of bits carries them more finely, and a value that top-k leaves out stays as it was
    instead of becoming zero. All else crosses as it is.

    feedback: what the codec lost of a change is added to the next change of that tensor, so that what arrives over
    the rounds adds up to what was sent, up to one loss.
    """

    codec: Codec
    feedback: bool = True

    def send(self, up: Packet, reference: Weights, residual: State) -> tuple[Packet, State]:
        """What crosses the link, and the residual to keep for next time: tensor name → what was lost.

        The residual is empty at first. Those of tensors that are not sent this time are kept.
        """
        if isinstance(self.codec, Plain):
            return up, {}  # adding and taking away the reference would cost the last bit
        changes = {
            name: value - reference[name] for name, value in up.tensors.items() if _known(name, value, reference)
        }
        if self.feedback:
            changes = {
                name: change + residual[name] if _known(name, change, residual) else change
                for name, change in changes.items()
            }
        encoded = self.codec.encode(Packet({**up.tensors, **changes}, up.scalars, up.tags))
        if not self.feedback:
            return encoded, {}
        arrived = self.codec.decode(encoded).tensors
        # Where something was not finite nothing is remembered: the server refuses this upload, and one bad round
        # must not spoil every later one.
        lost = {name: (change - arrived[name]).nan_to_num(0, 0, 0) for name, change in changes.items()}
        return encoded, {**residual, **lost}

    def receive(self, encoded: Packet, reference: Weights) -> Packet:
        """What the other end gets, the reference added back."""
        if isinstance(self.codec, Plain):
            return encoded
        arrived = self.codec.decode(encoded)
        tensors = {
            name: value + reference[name] if _known(name, value, reference) else value
            for name, value in arrived.tensors.items()
        }
        return Packet(tensors, arrived.scalars, arrived.tags)


def _known(name: str, value: Tensor, others: Weights) -> bool:
    """Whether a float tensor has its like among the others."""
    other = others.get(name)
    return other is not None and value.is_floating_point() and other.shape == value.shape and other.dtype == value.dtype
