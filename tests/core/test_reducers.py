"""Reducers against plain float64 sums, whatever the order and the grouping."""

from __future__ import annotations

import functools
import math
import random

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from undergrowth.core import (
    Collect,
    Grouped,
    Named,
    Packet,
    PerCoordinateMean,
    Reducer,
    Sum,
    TiltedMean,
    WeightedMean,
    add_upload,
)

from .merging import DTYPES, Upload, assert_close, assert_same_packet, combined, mean, uploads

ORDER = st.randoms(use_true_random=False)


@given(uploads(), ORDER)
def test_a_sum_is_the_sum(given_uploads: list[Upload], rng: random.Random) -> None:
    total = combined(Sum(), given_uploads, rng)
    for name in ("w", "b"):
        assert_close(total.tensors[name], sum(u.tensor(name).double() for u in given_uploads), 300)
    assert torch.equal(total.tensors["count"], sum(u.tensor("count") for u in given_uploads))
    for name in ("samples", "loss"):
        assert total.scalars[name] == pytest.approx(sum(u.scalar(name) for u in given_uploads), rel=1e-12)


@given(uploads(), ORDER)
def test_a_weighted_mean_is_the_mean(given_uploads: list[Upload], rng: random.Random) -> None:
    total = combined(WeightedMean(), given_uploads, rng)
    weights = [u.scalar("samples") for u in given_uploads]
    for name in ("w", "b"):
        assert_close(total.tensors[name], mean(given_uploads, name, weights))
    counted = [u.tensor("count") for u in given_uploads if u.scalar("samples")]
    largest = torch.stack(counted).amax(0) if counted else torch.zeros(2, dtype=torch.int64)
    assert torch.equal(total.tensors["count"], largest)
    assert total.scalars["samples"] == pytest.approx(sum(weights), rel=1e-12)
    losses = sum(u.scalar("loss") * w for u, w in zip(given_uploads, weights, strict=False)) / (sum(weights) or 1)
    assert total.scalars["loss"] == pytest.approx(losses, abs=1e-12)


@given(uploads())
def test_many_at_once_are_as_many_one_after_the_other(given_uploads: list[Upload]) -> None:
    reducer = WeightedMean()
    parts = [reducer.lift(u.sender, u.packet, u.age) for u in given_uploads]
    at_once, by_turns = reducer.merge_all(parts), functools.reduce(reducer.merge, parts)
    for name, value in by_turns.tensors.items():
        assert_close(at_once.tensors[name], value.double())
        assert at_once.tensors[name].dtype == value.dtype
    assert at_once.scalars == pytest.approx(by_turns.scalars, rel=1e-9, abs=1e-12)


@given(uploads(), ORDER)
def test_age_discounts_a_weight(given_uploads: list[Upload], rng: random.Random) -> None:
    total = combined(WeightedMean(discount=lambda age: 1 / (1 + age)), given_uploads, rng)
    weights = [u.scalar("samples") / (1 + u.age) for u in given_uploads]
    assert_close(total.tensors["w"], mean(given_uploads, "w", weights))
    assert total.scalars["samples"] == pytest.approx(sum(weights))


@given(uploads(), ORDER)
def test_without_a_weight_all_count_alike(given_uploads: list[Upload], rng: random.Random) -> None:
    total = combined(WeightedMean(weight=None), given_uploads, rng)
    assert_close(total.tensors["w"], mean(given_uploads, "w", [1.0] * len(given_uploads)))
    assert total.scalars["uploads"] == len(given_uploads)


@given(uploads(), ORDER, st.sampled_from((-2.0, 0.0, 1.0, 5.0)), st.sampled_from((0.0, 100.0)))
def test_a_tilted_mean_is_the_exponentially_weighted_mean(
    given_uploads: list[Upload], rng: random.Random, t: float, high: float
) -> None:
    raised = [
        Upload(u.sender, Packet(u.packet.tensors, {**u.packet.scalars, "loss": u.scalar("loss") + high}))
        for u in given_uploads
    ]
    total = combined(TiltedMean(t), raised, rng)
    samples = torch.tensor([u.scalar("samples") for u in raised], dtype=torch.float64)
    exponents = samples.log() + t * torch.tensor([u.scalar("loss") for u in raised], dtype=torch.float64)
    weights = exponents.softmax(0).tolist() if samples.any() else [0.0] * len(raised)
    assert_close(total.tensors["w"], mean(raised, "w", weights))
    assert total.scalars["log_weight"] == pytest.approx(float(exponents.logsumexp(0)), rel=1e-12, abs=1e-12)
    assert total.scalars["samples"] == pytest.approx(float(samples.sum()))


@given(uploads(), ORDER)
def test_a_tilt_that_goes_to_zero_gives_the_weighted_mean(given_uploads: list[Upload], rng: random.Random) -> None:
    tilted = combined(TiltedMean(1e-12), given_uploads, rng)
    plain = combined(WeightedMean(), given_uploads, rng)
    for name in ("w", "b", "count"):
        torch.testing.assert_close(tilted.tensors[name], plain.tensors[name], rtol=0, atol=1e-4)


def masked(given_uploads: list[Upload], rng: random.Random) -> list[Upload]:
    """Some uploads say which coordinates they trained; the values of the others are nonsense."""
    result = []
    for upload in given_uploads:
        tensors = dict(upload.packet.tensors)
        if rng.random() < 0.7:
            tensors["mask/w"] = torch.tensor([[rng.random() < 0.4 for _ in range(3)] for _ in range(2)])
            tensors["w"] = tensors["w"].masked_fill(~tensors["mask/w"], math.nan)
        result.append(Upload(upload.sender, Packet(tensors, upload.packet.scalars)))
    return result


@given(uploads(), ORDER)
def test_each_coordinate_is_averaged_over_those_who_trained_it(given_uploads: list[Upload], rng: random.Random) -> None:
    given_uploads = masked(given_uploads, rng)
    total = combined(PerCoordinateMean(), given_uploads, rng)
    top = torch.zeros(2, 3, dtype=torch.float64)
    cover = torch.zeros(2, 3, dtype=torch.float64)
    for upload in given_uploads:
        trained = upload.packet.tensors.get("mask/w", torch.ones(2, 3)).double() * upload.scalar("samples")
        top += torch.where(trained > 0, upload.tensor("w").double() * trained, 0.0)
        cover += trained
    expected = torch.where(cover > 0, top / cover.clamp_min(1e-9), 0.0)
    assert_close(total.tensors["value/w"].float(), expected)  # coverage is kept in float32
    coverage = total.tensors["coverage/w"].double().expand(2, 3)
    torch.testing.assert_close(coverage, cover, rtol=1e-6, atol=0)
    assert torch.equal(coverage == 0, cover == 0)
    assert set(total.tensors) == {f"{kind}/{name}" for kind in ("value", "coverage") for name in ("w", "b", "count")}


@given(uploads(), ORDER)
def test_collecting_keeps_every_upload_as_it_was(given_uploads: list[Upload], rng: random.Random) -> None:
    parts = combined(Collect(), given_uploads, rng).parts()
    assert parts.keys() == {u.sender for u in given_uploads}
    for upload in given_uploads:
        part = parts[upload.sender]
        assert part.tensors.keys() == upload.packet.tensors.keys()
        assert all(part.tensors[k] is v for k, v in upload.packet.tensors.items())
        assert part.scalars == {**upload.packet.scalars, "age": float(upload.age)}
        assert part.tags == upload.packet.tags


def test_collected_uploads_do_not_tell_in_which_order_they_came() -> None:
    lifted = [Collect().lift(name, Packet(scalars={"x": 1.0}), 0) for name in ("c", "a", "b")]
    first = Collect().merge(Collect().merge(lifted[0], lifted[1]), lifted[2])
    second = Collect().merge(lifted[1], Collect().merge(lifted[2], lifted[0]))
    assert list(first.scalars) == list(second.scalars)


@given(uploads(), ORDER)
def test_each_group_is_reduced_on_its_own(given_uploads: list[Upload], rng: random.Random) -> None:
    parts = combined(Grouped("kind", WeightedMean()), given_uploads, rng).parts()
    kinds = {u.packet.tags["kind"] for u in given_uploads}
    assert parts.keys() == kinds
    for kind in kinds:
        members = [u for u in given_uploads if u.packet.tags["kind"] == kind]
        assert_close(parts[kind].tensors["w"], mean(members, "w", [u.scalar("samples") for u in members]))


NAMED = Named(
    {
        "model": WeightedMean(),
        "maps": Collect(),
        "groups": Grouped("kind", Sum()),
        "deep": Named({"a": Sum(), "b": TiltedMean(1.0)}),
    }
)


def in_parts(upload: Upload, index: int) -> Upload:
    """The upload in several parts; every third one leaves the maps out."""
    body = Packet(upload.packet.tensors)
    parts = {"model": body, "groups": body, "deep": Packet.join({"a": body, "b": body})}
    if index % 3:
        parts["maps"] = body
    joined = Packet.join(parts)
    return Upload(upload.sender, Packet(joined.tensors, upload.packet.scalars, upload.packet.tags), upload.age)


@given(uploads(), ORDER)
def test_each_named_part_is_reduced_in_its_own_way(given_uploads: list[Upload], rng: random.Random) -> None:
    total = combined(NAMED, [in_parts(u, i) for i, u in enumerate(given_uploads)], rng)
    alone = {
        "model": combined(WeightedMean(), given_uploads, rng),
        "groups": combined(Grouped("kind", Sum()), given_uploads, rng),
    }
    for name, expected in alone.items():
        assert_same_packet(total.part(name), expected, 300)
    assert_same_packet(total.part("deep").part("a"), combined(Sum(), given_uploads, rng), 300)
    assert_same_packet(total.part("deep").part("b"), combined(TiltedMean(1.0), given_uploads, rng))
    senders = {u.sender for i, u in enumerate(given_uploads) if i % 3}
    assert total.part("maps").parts().keys() == senders


ALL: list[Reducer] = [
    Sum(), WeightedMean(), TiltedMean(2.0), PerCoordinateMean(), Collect(), Grouped("kind", WeightedMean()),
    Grouped("kind", Grouped("kind", PerCoordinateMean())), NAMED,
]  # fmt: skip


@pytest.mark.parametrize("reducer", ALL, ids=lambda reducer: type(reducer).__name__)
@given(uploads(), ORDER)
def test_partial_results_through_two_levels_equal_flat_folding(
    reducer: Reducer, given_uploads: list[Upload], rng: random.Random
) -> None:
    if reducer is NAMED:
        given_uploads = [in_parts(u, i) for i, u in enumerate(given_uploads)]
    flat: Packet | None = None
    edges: dict[int, Packet] = {}
    root: Packet | None = None
    for upload in given_uploads:
        flat = add_upload(reducer, flat, upload.sender, upload.packet, upload.age)
        edge = rng.randrange(4)
        if edge == 3:  # a device directly below the root
            root = add_upload(reducer, root, upload.sender, upload.packet, upload.age)
        else:
            edges[edge] = add_upload(reducer, edges.get(edge), upload.sender, upload.packet, upload.age)
    for edge, partial in edges.items():
        relayed = reducer.relay(f"edge-{edge}", partial, 0)
        root = relayed if root is None else reducer.merge(root, relayed)
    assert flat is not None and root is not None
    assert_same_packet(root, flat, 300)


@pytest.mark.parametrize("dtype", DTYPES)
def test_the_mean_of_one_upload_is_that_upload_bit_for_bit(dtype: torch.dtype) -> None:
    odd = torch.tensor([0.1, -0.0, 1 / 3, 6e-8, 6e4]).to(dtype)
    for samples in (1.0, 3.0, 1e9, 1e-9):
        lifted = WeightedMean().lift("a", Packet({"w": odd}, {"samples": samples}), 0)
        back = lifted.tensors["w"].to(dtype)
        assert torch.equal(back.view(torch.uint8), odd.view(torch.uint8))


SUMMABLE = [Sum(), WeightedMean(), WeightedMean(None), PerCoordinateMean(), Named({"model": WeightedMean()})]


@pytest.mark.parametrize("reducer", SUMMABLE, ids=lambda reducer: type(reducer).__name__)
@given(uploads(), ORDER)
def test_a_summable_reducer_gives_the_same_through_plain_sums(
    reducer: Reducer, given_uploads: list[Upload], rng: random.Random
) -> None:
    """Secure aggregation adds up masked sums; what it gets back must be what merging gives."""
    assert reducer.summable
    if isinstance(reducer, PerCoordinateMean):
        given_uploads = masked(given_uploads, rng)
    named = isinstance(reducer, Named)
    packets = [
        Packet({k: v for k, v in u.packet.tensors.items() if k != "count"}, u.packet.scalars) for u in given_uploads
    ]
    if named:
        packets = [Packet(Packet.join({"model": Packet(p.tensors)}).tensors, p.scalars) for p in packets]
    lifted = [reducer.lift(f"d{i}", packet, 0) for i, packet in enumerate(packets)]
    merged = lifted[0]
    total = reducer.to_sum(lifted[0])
    for one in lifted[1:]:
        merged, total = reducer.merge(merged, one), Sum().merge(total, reducer.to_sum(one))
    if isinstance(reducer, PerCoordinateMean):  # its sums have a weight for every coordinate
        merged = reducer.from_sum(reducer.to_sum(merged), packets[0])
    assert_same_packet(reducer.from_sum(total, packets[0]), merged, 300)


def test_integer_buffers_of_a_mean_are_summed_as_a_rounded_mean() -> None:
    reducer = WeightedMean()
    packets = [
        Packet({"count": torch.tensor([3, 10])}, {"samples": 1.0}),
        Packet({"count": torch.tensor([5, 0])}, {"samples": 3.0}),
    ]
    total = Sum().merge(*(reducer.to_sum(reducer.lift("d", packet, 0)) for packet in packets))
    assert reducer.from_sum(total, packets[0]).tensors["count"].tolist() == [4, 2]


@pytest.mark.parametrize(
    "reducer", [TiltedMean(1.0), Collect(), Grouped("kind", Sum()), Named({"a": Sum(), "b": Collect()})]
)
def test_a_reducer_says_that_it_cannot_be_summed(reducer: Reducer) -> None:
    assert not reducer.summable
