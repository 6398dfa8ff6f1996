"""The states of devices: the same from memory and from the file, in little memory, and nothing is left behind."""

from __future__ import annotations

import json
import math
import os
import signal
import subprocess
import sys
import weakref
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from undergrowth.core import Packet, RunError, pack
from undergrowth.engines import States
from undergrowth.engines.spill_file import SpillFile

from ..warm import begin

LIMITS = [0, math.inf]  # everything goes to the file; nothing does


@pytest.fixture(params=LIMITS, ids=["in the file", "in memory"])
def states(request: Any, tmp_path: Path) -> States:
    return States(request.param, folder=tmp_path)


def model(value: float, size: int = 1000) -> dict[str, Any]:
    return {"model": {"weight": torch.full((size,), float(value))}}


def bytes_of(value: Tensor) -> bytes:
    return value.contiguous().reshape(-1).view(torch.uint8).numpy().tobytes()


def same(one: Any, other: Any) -> bool:
    (tensors, text), (others, other_text) = pack(one), pack(other)
    return text == other_text and all(
        a.dtype == b.dtype and a.shape == b.shape and bytes_of(a) == bytes_of(b)
        for a, b in zip(tensors.values(), others.values(), strict=True)
    )


def test_states_track_which_devices_changed(states):
    states.put("b", {"times": 1})
    states.put("a", {"times": 1})
    states.put("c", {})  # an empty state is not stored
    assert list(states.take_changed()) == ["b", "a"]
    assert not states.take_changed()
    unchanged = states.get("a")
    states.put("a", unchanged)
    assert not states.take_changed()
    states.put("a", {})  # deletes the state
    assert dict(states.take_changed()) == {"a": {"own": {}, "residual": {}}}
    assert dict(states.all()) == {"b": {"times": 1}}


def test_states_keep_their_order_across_a_restart(states):
    for name in ("z", "m", "a"):
        states.put(name, {}, {"lost": torch.ones(1)})
    for name in ("a", "m", "z"):
        states.put(name, {"times": 1}, states.residual(name))
    states.put("m", {})
    written = dict(states.take_changed())
    again = States()
    again.restore(sorted(written.items()), order=written)
    assert not again.take_changed()
    for each in (states, again):
        assert list(each.all()) == ["z", "a"]
        assert list(each.snapshot()) == ["z", "m", "a"]
        each.put("m", {"times": 2})
        assert list(each.all()) == ["z", "m", "a"]


ODD = {
    "numbers": [1, -2.5, math.inf, True, None, "two\nlines, \u00e9"],
    "pair": (torch.tensor(3), (torch.zeros(0, 4), {7: torch.tensor([True, False])})),
    "types": [torch.arange(5).to(kind) for kind in (torch.bfloat16, torch.float16, torch.int8, torch.complex64)],
    "packet": Packet({"w": torch.randn(3, 4)}, {"samples": 3.0}, {"phase": "warm"}),
    "turned": torch.randn(4, 3).T,
    "long": {f"{number:04d}": torch.randn(number) for number in range(60)},
}


def test_a_state_comes_back_as_it_was_put(states):
    states.put("a", ODD, {"lost": torch.ones(2, 2)})
    states.put("b", {"x": 1})
    for _ in range(2):
        assert same(states.get("a"), ODD)
        assert states.get("a")["turned"].is_contiguous()
        assert same(states.residual("a"), {"lost": torch.ones(2, 2)})
    again = States(0)
    again.restore(states.snapshot().items())
    assert same(again.get("a"), ODD)
    assert same(again.residual("a"), {"lost": torch.ones(2, 2)})


def test_a_state_that_was_handed_out_does_not_change(states):
    for turn in range(3):
        states.put("a", model(turn))
        held = states.get("a")
        assert states.get("a") is held
        states.put("a", model(turn + 1))
        states.put("b", model(9))  # reuses the free slot of the file
        assert same(held, model(turn))
        assert same(states.get("a"), model(turn + 1))


def test_putting_back_the_same_object_is_no_change_even_after_it_was_spilled(tmp_path):
    states = States(10_000, folder=tmp_path)
    states.put("a", model(1))
    own = states.get("a")
    for number in range(5):
        states.put(f"other-{number}", model(2))
    states.take_changed()
    states.put("a", own)
    assert not states.take_changed()
    states.put("a", dict(own))
    assert list(states.take_changed()) == ["a"]


def test_the_least_recently_used_state_is_spilled_first(tmp_path):
    states = States(3 * 6000, folder=tmp_path)
    held = {}
    for name in "abc":
        states.put(name, model(1))
        held[name] = weakref.ref(states.get(name))
    states.get("a")
    states.put("d", model(1))
    assert held["b"]() is None
    assert held["a"]() is not None
    list(states.all().values())  # a scan of all states is no use of them
    assert held["a"]() is not None


def test_a_tensor_that_devices_share_is_counted_once(tmp_path):
    shared = torch.ones(100_000)
    states = States(1_000_000, folder=tmp_path)
    for number in range(100):
        states.put(f"device-{number}", {"lower": shared})
    assert all(state["lower"] is shared for state in states.all().values())
    for number in range(100):
        states.put(f"device-{number}", {"lower": shared.clone()})
    assert states._bytes <= 1_000_000
    assert states._file.size > 30_000_000


def test_states_from_the_file_are_on_the_torch_device_of_the_world(tmp_path):
    states = States(0, torch_device="meta", folder=tmp_path)  # one that every machine has
    states.put("a", model(1))
    assert states.get("a")["model"]["weight"].is_meta
    assert all(state["model"]["weight"].is_meta for state in states.all().values())


def test_a_view_of_a_stack_does_not_keep_the_stack_alive():
    states = States()
    stack = torch.randn(16, 1000)
    states.put("a", {"model": {"w": stack[3]}})
    kept = states.get("a")["model"]["w"]
    assert torch.equal(kept, stack[3])
    assert kept.untyped_storage().nbytes() == 4000


def test_the_file_does_not_grow_with_the_rounds(tmp_path):
    states = States(20_000, folder=tmp_path)
    sizes = []
    for turn in range(4):
        for number in range(100):
            states.put(f"device-{number}", model(turn, 1100 + 10 * (turn % 2)), model(turn, 300))
        sizes.append(states._file.size)
    assert sizes[0] == pytest.approx(100 * 5800, rel=0.15)
    assert sizes[3] == sizes[1] == pytest.approx(sizes[0], rel=0.05)  # some are in memory, and not always the same ones
    assert same(states.get("device-7"), model(3, 1110))


def test_a_slot_that_is_free_is_used_again(tmp_path):
    slots = SpillFile(tmp_path)
    first, second = slots.put({"x": torch.zeros(500)}), slots.put({"x": torch.ones(500)})
    size = slots.size
    slots.free(first)
    assert slots.put({"x": torch.full((500,), 2.0)}) == first
    assert slots.put({"x": torch.full((500,), 3.0)}) not in (first, second)
    assert slots.size > size
    assert slots.get(second)["x"].sum() == 500


def test_a_folder_that_cannot_be_written_is_named(tmp_path):
    states = States(0, folder=tmp_path / "missing")
    with pytest.raises(RunError, match=r"what devices keep could not be written to a file in '.*missing': No such"):
        states.put("a", model(1))


def fill_and_die(said: Connection, folder: Path) -> None:
    states = States(0, folder=folder)
    for number in range(100):
        states.put(f"device-{number}", {"x": torch.ones(1000)})
    said.send((states._file.size, list(folder.iterdir())))
    os.kill(os.getpid(), signal.SIGKILL)


def test_a_killed_process_leaves_no_file_behind(tmp_path):
    child, said = begin(fill_and_die, tmp_path)
    size, listed = said.recv()
    child.join(60)
    assert child.exitcode == -9
    assert size > 400_000
    assert listed == []
    assert not list(tmp_path.iterdir())


def measured(*arguments: object) -> dict[str, Any]:
    command = [sys.executable, str(Path(__file__).with_name("many_states.py")), *map(str, arguments)]
    printed = subprocess.run(command, capture_output=True, text=True, check=True, timeout=600).stdout
    return json.loads(printed)


needs_linux = pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")


@needs_linux
@pytest.mark.slow
def test_many_small_states_take_little_memory(tmp_path):
    """A hundred thousand, with a tenth of the usual limit; in a dict they take 85 MB."""
    found = measured(100_000, 4, 2**28 // 10, 1, tmp_path)
    assert found["wrong"] == 0
    assert found["peak"] < 60e6
    assert found["file"] < 20e6


@pytest.mark.slow
@needs_linux
def test_small_states_beyond_the_limit_cost_the_index_and_nothing_else(tmp_path):
    found = measured(10_000, 4, 2**20, 1, tmp_path)
    assert found["wrong"] == 0
    assert found["peak"] < 1e6 + 10_000 * 150 + 10e6  # states, index, and what Python takes for itself
    assert found["file"] < 2e6


@needs_linux
def test_many_models_need_the_memory_of_few_and_the_file_does_not_grow(tmp_path):
    """1 MB each, written twice."""
    found = measured(400, 250_000, 2**26, 2, tmp_path)
    assert found["wrong"] == 0
    assert found["peak"] < 200e6
    assert found["file"] < 1.15 * 400 * 1_000_500
