"""Changes and error feedback."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import pytest
import torch
from torch import Tensor

from tests.exchange.samples import EVERY_CODEC, LOSSY, codec, mixed_packet, on_meta
from undergrowth.core import Context, Packet, State, Weights, pack, unpack
from undergrowth.exchange import ChangeStage, CodecStage, Link, Links, SignStage, Stage
from undergrowth.exchange.codecs import Codec, TopKCodec

# The most that one send can leave behind, of the largest change. A quantiser loses q of what it is given, and is given
# the last loss too: q / (1 − q). With top-k a value waits for its turn, about 1 / share sends.
LOSS = {
    "fp16": 1 / 2047, "bf16": 1 / 255, "int8": 1 / 253, "int4": 1 / 13, "topk:1+int4": 1 / 13,
    "topk:0.1": 11, "topk:0.1+fp16": 11, "topk:0.1+bf16": 11, "topk:0.1+int8": 11, "topk:0.3+int4": 4,
}  # fmt: skip


CONTEXT = Context(0, "device", 0)


def stack(codec: Codec, feedback: bool = True) -> Link:
    return Link((ChangeStage(), CodecStage(codec, feedback)))


def random_weights(seed: int, scale: float = 1.0) -> dict[str, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return {
        "weight": torch.randn(20, 31, generator=generator) * scale,
        "bias": torch.randn(20, generator=generator) * scale,
    }


def summed(left: dict[str, Tensor], right: dict[str, Tensor]) -> dict[str, Tensor]:
    return {name: value + right[name] for name, value in left.items()}


def test_without_a_codec_a_link_is_the_identity() -> None:
    up = mixed_packet()
    link = Link()
    encoded, residual = link.send(up, random_weights(1), {}, CONTEXT)
    assert encoded is up
    assert residual == {}
    assert link.receive(encoded, random_weights(1)) is up


def test_halves_that_hold_the_change_arrive_bit_for_bit() -> None:
    reference = {"w": torch.arange(64) / 8}
    up = Packet({"w": reference["w"] + torch.arange(64).flip(0) / 16}, {"samples": 3.0}, {"kind": "update"})
    link = stack(codec("fp16"))
    encoded, residual = link.send(up, reference, {}, CONTEXT)
    arrived = link.receive(encoded, reference)
    assert torch.equal(arrived.tensors["w"], up.tensors["w"])
    assert (arrived.scalars, arrived.tags) == (up.scalars, up.tags)
    assert not residual["w"].any()


@pytest.mark.parametrize("name", EVERY_CODEC)
def test_a_link_carries_every_packet_and_weighs_on_meta_what_it_weighs(name: str) -> None:
    up = mixed_packet()
    reference = {key: up.tensors[key] for key in ("conv.weight", "norm.count", "scale", "half", "empty")}
    link = stack(codec(name))
    encoded, residual = link.send(up, reference, {}, CONTEXT)
    arrived = link.receive(encoded, reference)
    assert list(arrived.tensors) == list(up.tensors)
    for key, value in up.tensors.items():
        assert (arrived.tensors[key].shape, arrived.tensors[key].dtype) == (value.shape, value.dtype)
    assert torch.equal(arrived.tensors["norm.count"], up.tensors["norm.count"])  # a count is not a change
    assert torch.equal(arrived.tensors["conv.weight"], up.tensors["conv.weight"])  # nothing changed, nothing lost
    assert set(residual) <= {"conv.weight", "scale", "half", "empty"}

    on_shapes, kept = link.send(on_meta(up), on_meta(Packet(reference)).tensors, {}, CONTEXT)
    assert on_shapes.nbytes == encoded.nbytes == codec(name).encode(up).nbytes
    assert kept.keys() == residual.keys()


def test_the_change_is_what_is_encoded() -> None:
    reference = random_weights(1, scale=100.0)
    change = random_weights(2, scale=0.01)
    up = Packet(summed(reference, change))
    arrived = stack(codec("int8")).receive(stack(codec("int8")).send(up, reference, {}, CONTEXT)[0], reference)
    for name, value in arrived.tensors.items():
        assert (value - up.tensors[name]).abs().max() < 0.06 / 254 + 1e-4  # not 400 / 254
    kept = TopKCodec(0.1)
    arrived = stack(kept).receive(stack(kept).send(up, reference, {}, CONTEXT)[0], reference)
    assert (arrived.tensors["weight"] == reference["weight"]).float().mean() > 0.89  # not zero: as before


def test_what_has_no_like_in_the_reference_is_encoded_as_it_is() -> None:
    reference = {"weight": torch.ones(6, 5), "head": torch.ones(4), "narrow": torch.ones(3)}
    up = Packet({"logits": torch.randn(8), "weight": torch.ones(3, 5), "narrow": torch.ones(3).double()})
    link = stack(codec("int8"))
    encoded, residual = link.send(up, reference, {"logits": torch.full((8,), 100.0)}, CONTEXT)
    assert list(residual) == ["logits"]  # not used, and not touched
    plain = codec("int8").encode(up)
    assert all(torch.equal(encoded.tensors[name], value) for name, value in plain.tensors.items())
    arrived = link.receive(encoded, reference)
    assert torch.equal(arrived.tensors["weight"], up.tensors["weight"])


@pytest.mark.parametrize("name", LOSSY)
def test_with_feedback_what_arrives_adds_up_to_what_was_sent(name: str) -> None:
    link, reference, change = stack(codec(name)), random_weights(1), random_weights(2, scale=0.1)
    total = {key: torch.zeros_like(value) for key, value in change.items()}
    residual: State = {}
    for turn in range(1, 61):
        encoded, residual = link.send(Packet(summed(reference, change)), reference, residual, CONTEXT)
        arrived = link.receive(encoded, reference)
        for key, value in change.items():
            total[key] += arrived.tensors[key] - reference[key]
            off = (total[key] - turn * value).abs()
            assert off.max() <= LOSS[name] * value.abs().max() + 1e-4  # float32 sums around the reference
            assert torch.allclose(off, residual[key].abs(), atol=1e-4)  # all that is missing is in the residual


@pytest.mark.parametrize("name", LOSSY)
def test_a_change_that_a_method_sends_has_feedback(name: str) -> None:
    measured = frozenset({"norm.running_var"})
    link = Link((SignStage(measured), ChangeStage(measured), CodecStage(codec(name), measured=measured)))
    reference = {"w": torch.zeros(40), "norm.running_var": torch.ones(40)}
    change, found = torch.rand(40, generator=torch.Generator().manual_seed(0)), torch.linspace(0.0, 3.0, 40)
    up = Packet({"change/w": change, "change/norm.running_var": found, "other/w": change})
    total, residual = torch.zeros(40), dict[str, Tensor]()
    for turn in range(1, 31):
        encoded, residual = link.send(up, reference, residual, CONTEXT)
        arrived = link.receive(encoded, reference).tensors
        total += arrived["change/w"]
        # The residual may be negative, and so may what arrives, although the change is not.
        torch.testing.assert_close(total + residual["change/w"], turn * change, rtol=1e-4, atol=1e-4)
        assert (arrived["change/norm.running_var"] >= 0).all()
    assert residual.keys() == {"change/w"}


def test_without_feedback_the_same_loss_comes_every_time() -> None:
    link, reference = stack(TopKCodec(0.5), feedback=False), {"w": torch.zeros(2)}
    up = Packet({"w": torch.tensor([2.0, 1.0])})
    encoded, residual = link.send(up, reference, {}, CONTEXT)
    assert residual == {}
    assert link.receive(encoded, reference).tensors["w"].tolist() == [2.0, 0.0]


def test_what_is_measured_anew_arrives_once() -> None:
    link = Link((ChangeStage(), CodecStage(TopKCodec(0.25), measured=frozenset({"norm.running_var"}))))
    name, found = "model/norm.running_var", torch.tensor([4.0, 3.0, 2.0, 1.0])
    known, residual = torch.zeros(4), {}
    for sends in range(1, 7):  # the node takes what arrives, and sends it down as the next reference
        encoded, residual = link.send(Packet({name: found}), {name: known}, residual, CONTEXT)
        known = link.receive(encoded, {name: known}).tensors[name]
        assert known.tolist() == [*found[:sends].tolist(), *[0.0] * (4 - sends)]
    assert residual == {}


def test_what_top_k_left_out_comes_first_once_it_has_grown() -> None:
    link, reference = stack(TopKCodec(0.5)), {"w": torch.zeros(2)}
    residual: State = {}
    came = []
    for _ in range(3):
        encoded, residual = link.send(Packet({"w": torch.tensor([5.0, 3.0])}), reference, residual, CONTEXT)
        came.append(link.receive(encoded, reference).tensors["w"].tolist())
    assert came == [[5.0, 0.0], [0.0, 6.0], [10.0, 0.0]]
    assert residual["w"].tolist() == [0.0, 3.0]


def test_residuals_wait_for_their_tensor_and_go_when_it_changes_shape() -> None:
    link, reference = stack(TopKCodec(0.5)), {"a": torch.zeros(2), "b": torch.zeros(2)}
    waiting = {"a": torch.tensor([1.0, 0.0]), "b": torch.ones(3)}
    _, residual = link.send(Packet({"b": torch.tensor([4.0, 1.0])}), reference, waiting, CONTEXT)
    assert residual["a"] is waiting["a"]
    assert residual["b"].tolist() == [0.0, 1.0]
    stored = unpack(*pack(residual))
    assert all(torch.equal(stored[name], value) for name, value in residual.items())


@pytest.mark.parametrize("bad", [math.nan, math.inf])
@pytest.mark.parametrize("name", LOSSY)
def test_a_bad_upload_is_seen_and_does_not_spoil_the_next(name: str, bad: float) -> None:
    link, reference = stack(codec(name)), {"w": torch.zeros(300)}
    row = torch.full((300,), 0.5)
    row[7] = bad
    encoded, residual = link.send(Packet({"w": row}), reference, {}, CONTEXT)
    assert not torch.isfinite(link.receive(encoded, reference).tensors["w"]).all()
    encoded, _ = link.send(Packet({"w": torch.full((300,), 0.5)}), reference, residual, CONTEXT)
    assert torch.isfinite(link.receive(encoded, reference).tensors["w"]).all()


@pytest.mark.parametrize("text", ["int8", "int4", "topk:0.5", "topk:0.5+int8"])
def test_what_is_nowhere_negative_does_not_become_so(text: str) -> None:
    """A variance that did would make the square root of batch normalisation no number."""
    generator = torch.Generator().manual_seed(0)
    links, residual, seen = Links(up=text), {}, []
    for _ in range(12):
        reference = {name: torch.rand(40, generator=generator) for name in ("variance", "weight")}
        sent = {"variance": torch.rand(40, generator=generator) ** 8, "weight": torch.randn(40, generator=generator)}
        arrived, _, residual = links.up(Packet(sent), reference, residual, CONTEXT)
        assert arrived.tensors["variance"].min() >= 0
        seen.append(arrived.tensors["weight"].min())
    assert min(seen) < -1


@dataclass(frozen=True)
class Doubling(Stage):
    """A stage that a node cannot take off completely: it leaves a mark."""

    mark: str

    def apply(self, packet: Packet, reference: Weights, memory: State, context: Context) -> tuple[Packet, State]:
        doubled = {name: value * 2 for name, value in packet.tensors.items()}
        return Packet(doubled, packet.scalars, {**packet.tags, self.mark: str(len(packet.tags))}), memory

    def remove(self, packet: Packet, reference: Weights) -> Packet:
        halved = {name: value / 2 for name, value in packet.tensors.items()}
        return Packet(halved, packet.scalars, {**packet.tags, f"{self.mark}-off": str(len(packet.tags))})


def test_a_link_applies_its_stages_in_order_and_takes_them_off_in_reverse() -> None:
    link = Link((Doubling("a"), Doubling("b")))
    sent, _ = link.send(Packet({"w": torch.ones(1)}), {}, {}, CONTEXT)
    assert sent.tensors["w"].tolist() == [4.0] and sent.tags == {"a": "0", "b": "1"}
    arrived = link.receive(sent, {})
    assert arrived.tensors["w"].tolist() == [1.0]
    assert arrived.tags == {"a": "0", "b": "1", "b-off": "2", "a-off": "3"}


def test_signs_for_another_number_of_tensors_are_refused() -> None:
    packet, _ = SignStage().apply(Packet({"w": torch.ones(1)}), {}, {}, CONTEXT)
    strange = replace(packet, tensors={**packet.tensors, "v": torch.ones(1)})
    with pytest.raises(ValueError, match="signs"):
        SignStage().remove(strange, {})
