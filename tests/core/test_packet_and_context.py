"""What a packet weighs and how it is taken apart; keys for randomness; the batches of a job; wrong names."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from undergrowth.core import Context, LoopClient, Packet, Shard, Steps, Task, find_non_finite, suggest


def test_a_packet_weighs_what_is_in_it() -> None:
    packet = Packet(
        {"a": torch.zeros(3, 2), "b": torch.zeros(5, dtype=torch.float16), "c": torch.zeros(0), "d": torch.tensor(1)},
        {"x": 1.0, "a long name": 2.0},
        {"tag": "é!"},
    )
    assert packet.nbytes == 6 * 4 + 5 * 2 + 0 + 8 + 2 * 8 + 3
    assert Packet().nbytes == 0


def test_a_view_weighs_what_it_shows() -> None:
    assert Packet({"a": torch.zeros(100)[:3]}).nbytes == 12


def test_joined_packets_come_apart_again() -> None:
    first = Packet({"w": torch.ones(1)}, {"n": 1.0}, {"t": "x"})
    second = Packet({"deep/w": torch.zeros(1)}, {"n": 2.0})
    joined = Packet.join({"base": first, "few-shot": second})
    assert joined.part("base") == first and joined.part("few-shot") == second
    assert joined.part("few-shot").part("deep").tensors["w"] is second.tensors["deep/w"]
    assert joined.parts().keys() == {"base", "few-shot"}
    assert joined.nbytes == first.nbytes + second.nbytes
    assert joined.part("nothing") == Packet()
    assert Packet({"plain": torch.ones(1)}, {"n": 1.0}).parts() == {}


CONTEXTS = st.builds(
    Context, st.integers(0, 2**40), st.text("abc-0123", max_size=5), st.integers(0, 99), st.integers(0, 9)
)


@given(CONTEXTS, st.text("abc", max_size=4))
def test_the_same_key_gives_the_same_numbers(context: Context, purpose: str) -> None:
    draws = [torch.rand(8, generator=context._replace().generator(purpose)) for _ in range(2)]
    assert torch.equal(*draws)
    assert 0 <= context.key(purpose) < 2**63


@given(CONTEXTS)
def test_any_other_field_gives_other_numbers(context: Context) -> None:
    others = [
        context._replace(seed=context.seed + 1),
        context._replace(node=context.node + "x"),
        context._replace(round=context.round + 1),
        context._replace(turn=context.turn + 1),
    ]
    keys = {other.key("order") for other in (context, *others)} | {context.key("model")}
    assert len(keys) == 6
    drawn = torch.rand(8, generator=context.generator("order"))
    assert not any(torch.equal(drawn, torch.rand(8, generator=other.generator("order"))) for other in others)


def test_a_key_never_changes_between_versions() -> None:
    # Runs that were saved yesterday are resumed tomorrow: this number is part of the format.
    assert Context(1, "device-3", 2, 1).key("order") == 1069685090818191943


def test_drawing_numbers_leaves_torchs_own_generator_alone() -> None:
    before = torch.random.get_rng_state()
    torch.rand(3, generator=Context(0, "a", 0).generator("x"))
    assert torch.equal(torch.random.get_rng_state(), before)


@pytest.mark.parametrize(("batch", "sizes"), [(3, [3, 3, 1, 2]), (7, [7, 2]), (100, [7, 2]), (1, [1] * 9)])
def test_steps_go_through_every_epoch_in_its_order_with_a_partial_last_batch(batch: int, sizes: list[int]) -> None:
    x, y = torch.arange(10.0) * 2, torch.arange(10)
    epochs = (torch.tensor([3, 1, 9, 0, 5, 7, 2]), torch.tensor([4, 4]))
    steps = Steps({"x": x, "y": y}, epochs, batch)
    seen = list(steps)
    assert len(steps) == len(seen) == len(sizes)
    assert [len(item["y"]) for item in seen] == sizes
    assert torch.cat([item["y"] for item in seen]).tolist() == [3, 1, 9, 0, 5, 7, 2, 4, 4]
    assert all(torch.equal(item["x"], item["y"] * 2.0) for item in seen)


def test_nothing_chosen_is_no_step() -> None:
    assert list(Steps({"x": torch.ones(2)}, (torch.tensor([], dtype=torch.int64),), 4)) == []
    assert len(Steps({"x": torch.ones(2)}, (), 4)) == 0


def test_a_loop_client_that_defines_nothing_says_what_it_lacks(linear_task: Task) -> None:
    shard = Shard(torch.ones(1, 2), torch.zeros(1, dtype=torch.int64))
    with pytest.raises(NotImplementedError, match="begin, step and finish"):
        LoopClient().local(linear_task, Packet(), shard, {}, Context(0, "a", 0))


def test_a_shard_takes_some_of_its_samples() -> None:
    shard = Shard(torch.arange(6.0).reshape(3, 2), torch.tensor([0, 1, 2]))
    taken = shard.take(torch.tensor([2, 0]))
    assert len(shard) == 3 and len(taken) == 2
    assert taken.x.tolist() == [[4.0, 5.0], [0.0, 1.0]] and taken.y.tolist() == [2, 0]


def test_a_wrong_name_is_answered_with_the_nearest_or_with_all() -> None:
    assert suggest("fedavgg", ("fedavg", "fedprox")) == "did you mean 'fedavg'?"
    assert suggest("zzz", ("b", "a")) == "choose one of: a, b"


@pytest.mark.parametrize("value", [float("nan"), float("inf"), float("-inf")])
def test_what_is_not_finite_is_named(value: float) -> None:
    good = torch.ones(3)
    assert find_non_finite(Packet({"a": good, "n": torch.tensor([1])}, {"x": 1.0})) is None
    for dtype in (torch.float16, torch.bfloat16, torch.float32, torch.float64):
        bad = torch.tensor([1.0, value], dtype=dtype)
        assert "'b' has values that are not finite" in str(find_non_finite(Packet({"a": good, "b": bad})))
    assert find_non_finite(Packet({"a": good}, {"x": value})) == f"'x' is {value}"
    assert find_non_finite(Packet({"a": torch.full((4,), 6e4, dtype=torch.float16)})) is None, "a large sum is no fault"
