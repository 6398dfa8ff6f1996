"""Reducers at their edges: no weight at all, and uploads that do not fit."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch

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


def up(value: object, samples: float = 1.0, **scalars: float) -> Packet:
    return Packet({"w": torch.as_tensor(value)}, {"samples": samples, "loss": 0.0, **scalars}, {"kind": "a"})


@pytest.mark.parametrize("reducer", [WeightedMean(), TiltedMean(1.0)], ids=["weighted", "tilted"])
def test_an_upload_of_no_weight_leaves_no_trace(reducer: Reducer) -> None:
    nothing, other = (reducer.lift(n, up([v, v], 0.0, loss=v), 0) for n, v in (("a", 1e9), ("b", 3.0)))
    one = reducer.lift("c", up([0.1, 0.2], 2.0, loss=0.3), 0)
    for total in (reducer.merge(nothing, one), reducer.merge(one, nothing)):
        assert torch.equal(total.tensors["w"], one.tensors["w"])
        assert total.scalars["loss"] == 0.3
    assert reducer.merge(nothing, other).scalars == reducer.merge(other, nothing).scalars
    assert torch.equal(reducer.merge(nothing, other).tensors["w"], torch.zeros(2))


def test_a_coordinate_that_nobody_trained_has_no_coverage() -> None:
    first = Packet({"w": torch.ones(3), "mask/w": torch.tensor([True, False, False])}, {"samples": 2.0})
    second = Packet({"w": torch.full((3,), 4.0), "mask/w": torch.tensor([True, True, False])}, {"samples": 1.0})
    total = add_upload(PerCoordinateMean(), add_upload(PerCoordinateMean(), None, "a", first), "b", second)
    assert total.tensors["coverage/w"].tolist() == [3.0, 1.0, 0.0]
    assert total.tensors["value/w"].tolist() == [2.0, 4.0, 0.0]
    assert total.scalars["samples"] == 3.0


def test_a_mean_per_coordinate_of_doubles_is_as_exact_as_doubles() -> None:
    total = None
    for sender, value, samples in (("a", 1.0, 8.0), ("b", 2.0, 15.0), ("c", 5.0, 6.0)):
        packet = Packet({"w": torch.tensor([value] * 2).double(), "mask/w": torch.tensor([True, sender != "b"])})
        total = add_upload(PerCoordinateMean(), total, sender, replace(packet, scalars={"samples": samples}))
    expected = torch.tensor([(8 + 2 * 15 + 5 * 6) / 29, (8 + 5 * 6) / 14], dtype=torch.float64)
    torch.testing.assert_close(total.tensors["value/w"], expected, rtol=1e-15, atol=0)


def test_the_order_of_names_does_not_hang_on_a_hash() -> None:
    names = [f"layer{i}" for i in range(12)]
    packet = Packet({name: torch.ones(1) for name in names}, {"samples": 1.0})
    total = add_upload(PerCoordinateMean(), add_upload(PerCoordinateMean(), None, "a", packet), "b", packet)
    assert [n.removeprefix("value/") for n in total.tensors if n.startswith("value/")] == names


def test_a_sum_takes_what_was_left_out_as_zero() -> None:
    a, b = Packet({"x": torch.ones(2)}, {"n": 1.0}), Packet({"y": torch.ones(1)}, {"m": 2.0})
    total = add_upload(Sum(), add_upload(Sum(), None, "a", a), "b", b)
    assert total.tensors["x"].tolist() == [1.0, 1.0] and total.tensors["y"].tolist() == [1.0]
    assert total.scalars == {"n": 1.0, "m": 2.0}


def test_a_thousand_half_precision_uploads_do_not_round_each_other_away() -> None:
    total = None
    for _ in range(1000):
        total = add_upload(Sum(), total, "a", Packet({"w": torch.full((2,), 3.0, dtype=torch.float16)}))
    assert total is not None and total.tensors["w"].tolist() == [3000.0, 3000.0]


def test_two_uploads_of_one_sender_are_both_kept() -> None:
    partial = None
    for number in range(3):
        partial = add_upload(Collect(), partial, "a", Packet({"w": torch.full((1,), float(number))}))
    assert partial is not None
    assert {name: part.tensors["w"].item() for name, part in partial.parts().items()} == {"a": 0, "a+": 1, "a++": 2}


def test_collected_uploads_of_a_node_keep_their_way_by_request() -> None:
    below = add_upload(Collect(), None, "device", Packet({"w": torch.ones(1)}))
    assert list(Collect().relay("edge", below, 2).parts()) == ["device"]
    assert Collect().relay("edge", below, 2).part("device").scalars == {"age": 2.0}
    by_path = Collect(by_path=True).relay("edge", below, 2)
    assert list(by_path.part("edge").parts()) == ["device"]


MISFITS = {
    "another shape": up(torch.ones(3)),
    "another type": up(torch.ones(2, dtype=torch.float64)),
    "whole numbers": up(torch.ones(2, dtype=torch.int64)),
    "another name": Packet({"v": torch.ones(2)}, {"samples": 1.0, "loss": 0.0}, {"kind": "a"}),
    "a weight below zero": up(torch.ones(2), -1.0),
    "a weight without end": up(torch.ones(2), math.inf),
    "a weight that is no number": up(torch.ones(2), math.nan),
}


@pytest.mark.parametrize("misfit", MISFITS)
@pytest.mark.parametrize(
    "reducer", [WeightedMean(), TiltedMean(1.0), Grouped("kind", WeightedMean())], ids=["weighted", "tilted", "grouped"]
)
def test_a_mean_refuses_what_does_not_fit_with_a_sentence(reducer: Reducer, misfit: str) -> None:
    good = up(torch.ones(2))
    total = add_upload(reducer, None, "good", good)
    with pytest.raises(ValueError, match=r"\w+ \w+ \w+"):
        add_upload(reducer, total, "bad", MISFITS[misfit])
    assert torch.equal(next(iter(total.tensors.values())), torch.ones(2)), "the total so far is not touched"


@pytest.mark.parametrize("misfit", [name for name in MISFITS if name != "another name"])
def test_a_mean_per_coordinate_refuses_what_does_not_fit(misfit: str) -> None:
    total = add_upload(PerCoordinateMean(), None, "good", up(torch.ones(2)))
    with pytest.raises(ValueError, match=r"\w+ \w+ \w+"):
        add_upload(PerCoordinateMean(), total, "bad", MISFITS[misfit])


def test_a_mask_of_another_shape_is_refused() -> None:
    with pytest.raises(ValueError, match="mask"):
        PerCoordinateMean().lift("a", Packet({"w": torch.ones(2), "mask/w": torch.ones(3)}, {"samples": 1.0}), 0)


def test_a_sum_refuses_another_shape() -> None:
    with pytest.raises(ValueError, match=r"shape \(3,\) where others have \(2,\)"):
        add_upload(Sum(), up(torch.ones(2)), "bad", up(torch.ones(3)))


def test_a_part_that_nobody_reduces_is_refused() -> None:
    with pytest.raises(ValueError, match="part 'extra'"):
        Named({"model": Sum(), "maps": Collect()}).lift("a", Packet({"extra/w": torch.ones(1)}), 0)


def test_a_group_cannot_be_a_path() -> None:
    with pytest.raises(ValueError, match="'a/b'"):
        Grouped("kind", Sum()).lift("a", Packet({"w": torch.ones(1)}, tags={"kind": "a/b"}), 0)
