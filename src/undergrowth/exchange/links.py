"""Links: what packets become between a server and its devices, in each direction, and how many bytes that takes."""

from __future__ import annotations

from undergrowth.core import Context, InputError, Packet, State, Weights, suggest
from undergrowth.exchange.codecs import FORMATS, build_codec
from undergrowth.exchange.stages import ChangeStage, CodecStage, Link, SignStage

DOWN_CODECS = ("none", *FORMATS)
_NOBODY = Context(0, "", 0)  # no stage of a downlink, and no price, draws random numbers


class Links:
    """The uplink and the downlink of all devices. Between servers packets cross as they are.

    `measured` and `one_model`: see `ChangeStage` and `CodecStage`.
    """

    def __init__(
        self,
        up: str = "none",
        down: str = "none",
        feedback: bool = True,
        measured: frozenset[str] = frozenset(),
        one_model: bool = False,
    ) -> None:
        if down.startswith("topk"):
            raise InputError(f"links.down '{down}': top-k would set most weights to 0; write {', '.join(DOWN_CODECS)}")
        if down not in DOWN_CODECS:
            raise InputError(f"links.down '{down}' is not known; {suggest(down, DOWN_CODECS)}")
        self.uplink, self.downlink = Link(), Link()
        if up != "none":
            codec = CodecStage(build_codec("links.up", up), feedback, measured, one_model)
            self.uplink = Link((SignStage(measured), ChangeStage(measured), codec))
        if down != "none":
            self.downlink = Link((CodecStage(build_codec("links.down", down), feedback=False),))
        self._latest: tuple[Packet, Packet, int] | None = None

    def down(self, packet: Packet) -> tuple[Packet, int]:
        """What a device gets, and how many bytes that took."""
        # A server sends one packet to many devices; it is encoded once.
        if self._latest is None or self._latest[0] is not packet:
            encoded, _ = self.downlink.send(packet, {}, {}, _NOBODY)
            self._latest = (packet, self.downlink.receive(encoded, {}), encoded.nbytes)
        return self._latest[1:]

    def up(self, packet: Packet, reference: Weights, memory: State, context: Context) -> tuple[Packet, int, State]:
        """What the server gets, how many bytes that took, and what the device remembers for its next upload."""
        encoded, memory = self.uplink.send(packet, reference, memory, context)
        return self.uplink.receive(encoded, reference), encoded.nbytes, memory

    def weigh(self, packet: Packet) -> int:
        """The bytes of an upload. They depend on shapes and types only, so meta tensors weigh the same."""
        return self.uplink.send(packet, {}, {}, _NOBODY)[0].nbytes
