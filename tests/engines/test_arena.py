"""The arena: pytrees are read as they were written, without copies, and only committed records are visible."""

from __future__ import annotations

import os
import signal

import pytest
import torch

from undergrowth.core import Packet
from undergrowth.engines.processes.arena import HEADER_BYTES, Arena, ArenaFull, create_arenas, machine_memory

TYPES = ["float32", "float64", "float16", "bfloat16", "int64", "int8", "uint8", "bool", "complex64"]


@pytest.mark.parametrize("name", TYPES)
def test_every_type_and_shape_comes_back(name):
    arena = Arena(1 << 20)
    for shape in ((), (0,), (3,), (2, 3), (2, 0, 3), (1, 1, 1, 5)):
        value = torch.randint(0, 2, shape).to(getattr(torch, name))
        read = arena.get(arena.put({"a": value}))["a"]
        assert read.dtype == value.dtype
        assert read.shape == value.shape
        assert torch.equal(read, value)


def test_pytrees_come_back_with_numbers_texts_and_order():
    arena = Arena(1 << 20)
    packet = Packet({"b": torch.arange(3), "a": torch.ones(2)}, {"x": float("nan"), "y": 0.1}, {"tag": "ä"})
    tree = {"z": [1, (2.5, None)], "packet": packet, 3: "three", "inf": float("inf")}
    read = arena.get(arena.put(tree))
    assert list(read) == list(tree)
    assert read["z"] == [1, (2.5, None)]
    assert list(read["packet"].tensors) == ["b", "a"]
    assert read["packet"].tags == {"tag": "ä"}
    assert str(read["packet"].scalars) == "{'x': nan, 'y': 0.1}"


def test_tensors_that_are_not_contiguous_or_need_a_gradient_are_written_as_their_values():
    arena = Arena(1 << 20)
    value = torch.arange(12.0).view(3, 4).t().requires_grad_()
    assert torch.equal(arena.get(arena.put([value]))[0], value.detach())


def test_get_gives_views_and_take_gives_copies():
    arena = Arena(1 << 20)
    where = arena.put([torch.zeros(4)])
    view, copy = arena.get(where)[0], arena.take(where)[0]
    arena.get(where)[0].fill_(7)
    assert view.tolist() == [7] * 4
    assert copy.tolist() == [0] * 4
    arena.reset()
    arena.put([torch.ones(4)])
    assert view.tolist() == [1] * 4


def test_a_tensor_that_was_seen_is_written_once():
    arena = Arena(1 << 20)
    value, seen = torch.ones(1000), {}
    first = arena.put({"a": value}, seen)
    top = arena.top
    second = arena.put({"b": value, "c": torch.zeros(1)}, seen)
    assert arena.top - top < 1000
    arena.get(first)["a"].fill_(3)
    assert arena.get(second)["b"].sum() == 3000


def test_processes_read_what_the_other_one_wrote():
    arena = Arena(1 << 20)
    where = arena.put([torch.arange(5)])
    pid = os.fork()
    if not pid:
        arena.commit({"sum": int(arena.get(where)[0].sum())})
        os._exit(0)
    os.waitpid(pid, 0)
    assert arena.committed() == [{"sum": 10}]


def test_records_come_in_order_and_a_reset_forgets_them():
    arena = Arena(1 << 20)
    assert arena.committed() == []
    for number in range(5):
        arena.put([torch.zeros(number)])
        arena.commit([number, None, "text"])
    assert [record[0] for record in arena.committed()] == [0, 1, 2, 3, 4]
    arena.reset()
    assert arena.committed() == []
    assert arena.top == HEADER_BYTES


def test_a_killed_process_leaves_only_complete_records():
    arena = Arena(64 << 20)
    pid = os.fork()
    if not pid:
        number = 0
        while True:
            where = arena.put([torch.full((500,), float(number))])
            arena.commit([number, where])
            number += 1
    while len(arena.committed()) < 50:
        pass
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)
    records = arena.committed()
    assert [number for number, _ in records] == list(range(len(records)))
    assert all((arena.get(where)[0] == number).all() for number, where in records)


def test_writing_to_a_full_arena_raises_and_changes_nothing():
    arena = Arena(1 << 16)
    arena.commit("first")
    top = arena.top
    with pytest.raises(ArenaFull):
        arena.put([torch.zeros(1 << 15)])
    with pytest.raises(ArenaFull):
        arena.write([torch.zeros(100)], HEADER_BYTES, HEADER_BYTES + 100)
    with pytest.raises(ArenaFull):
        arena.commit("x" * (1 << 16))
    assert arena.top == top
    assert arena.committed() == ["first"]


def test_arenas_are_large_and_cost_nothing_until_written():
    def resident() -> int:
        with open("/proc/self/statm") as file:
            return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")

    before = resident()
    ours, (first, second) = create_arenas(2)
    assert ours.size >= machine_memory() // 2
    assert first.size == second.size == ours.size
    assert resident() - before < 10 << 20
    assert not ours.crowded
    ours.top = ours.crowded_at + 1
    assert ours.crowded
