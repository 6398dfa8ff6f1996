"""`choose_engine`: a pure function of counted facts."""

from __future__ import annotations

import time
from dataclasses import replace

import pytest

from undergrowth.runs.engine_choice import (
    MAX_SERIAL_SECONDS,
    Facts,
    choose_engine,
    client_seconds,
    estimates,
    stack_size,
)

# 20 clients with ten steps of a small multilayer perceptron: a run of several seconds.
SMALL = Facts(
    clients=20, rounds=100, steps=10, calls=370, flops=1e8, inputs=20 * 784, weights=160_000, cores=2
)  # fmt: skip
# Two steps of LSTM layers with 16 and with 256 units, on 20 and 80 positions.
TINY_LSTM = Facts(
    clients=20, rounds=100, steps=2, calls=4886, flops=7e6, inputs=160, weights=5840, cores=1, recurrent=True
)  # fmt: skip
LARGE_LSTM = replace(TINY_LSTM, calls=19_286, flops=2.4e10, inputs=2560, weights=819_920)
LARGE = replace(SMALL, calls=600, flops=6e9, weights=1_690_000, convolves=True)


@pytest.mark.parametrize(
    ("facts", "settings"),
    [
        (replace(SMALL, rounds=1), {"engine": "serial"}),
        (SMALL, {"engine": "processes", "stack": True}),
        (replace(SMALL, cores=1), {"engine": "vector"}),
        (replace(SMALL, forks=False), {"engine": "vector"}),
        (replace(SMALL, stacks=False), {"engine": "processes", "stack": False}),
        (replace(SMALL, stacks=False, cores=1), {"engine": "serial"}),
        (replace(SMALL, clients=4, calls=40, flops=1e6, steps=1, rounds=1000), {"engine": "vector"}),
        (replace(SMALL, clients=1), {"engine": "serial"}),
        (LARGE, {"engine": "processes", "stack": False}),
        (replace(LARGE, cores=1), {"engine": "serial"}),
        (TINY_LSTM, {"engine": "vector"}),
        (LARGE_LSTM, {"engine": "serial"}),
        (replace(LARGE_LSTM, cores=2), {"engine": "processes", "stack": False}),
        (replace(LARGE, gpu=True), {"engine": "vector"}),
        (replace(SMALL, gpu=True, rounds=1), {"engine": "vector"}),
        (replace(LARGE, gpu=True, stacks=False), {"engine": "serial"}),
    ],
    ids=[
        "brief run", "small model", "one core", "no workers", "does not stack", "does not stack, one core",
        "short rounds", "one client", "convolutions", "convolutions, one core", "tiny LSTM", "large LSTM",
        "large LSTM, two cores", "GPU", "brief run on a GPU",
        "GPU, does not stack",
    ],
)  # fmt: skip
def test_which_engine_is_chosen(facts: Facts, settings: dict[str, object]) -> None:
    assert choose_engine(facts).settings == settings


def test_equal_facts_give_equal_choices_without_a_clock(monkeypatch: pytest.MonkeyPatch) -> None:
    def no_clock() -> float:
        raise AssertionError("the choice must not read a clock")

    for name in ("time", "monotonic", "perf_counter", "process_time", "thread_time"):
        monkeypatch.setattr(time, name, no_clock)
    assert len({repr(choose_engine(replace(SMALL))) for _ in range(10)}) == 1


def test_the_reason_gives_the_counted_facts() -> None:
    choice = choose_engine(SMALL)
    assert choice.reason.startswith("processes of stacked jobs, estimated ")
    counted = "20 devices a round for 100 rounds, 10 steps with 370 tensor operations and 1e+08 FLOPs a job"
    assert f"times as fast as serial: {counted}, 160000 weights, 2 cores" in choice.reason
    brief = choose_engine(replace(SMALL, rounds=1)).reason
    assert brief.startswith("serial, because there is little to compute: 20 devices a round for 1 rounds")


@pytest.mark.parametrize("field", ["clients", "rounds", "steps", "calls", "flops", "inputs", "weights"])
def test_more_work_takes_longer_on_every_engine(field: str) -> None:
    more = replace(SMALL, **{field: 4 * getattr(SMALL, field)})
    for (before, settings), (after, same) in zip(estimates(SMALL), estimates(more), strict=True):
        assert settings == same and after > before


def test_each_fact_moves_the_choice_in_one_direction_only() -> None:
    def stacked(**changes: float) -> bool:
        facts = replace(SMALL, cores=1, **changes)  # type: ignore[arg-type]
        return choose_engine(facts).settings["engine"] == "vector"

    def with_workers(**changes: float) -> bool:
        return choose_engine(replace(SMALL, stacks=False, **changes)).settings["engine"] == "processes"  # type: ignore[arg-type]

    for found in (
        [stacked(calls=2**power, rounds=10_000) for power in range(12)],
        [stacked(clients=count, rounds=10_000) for count in range(1, 17)],
        [not stacked(weights=10_000 * 2**power) for power in range(12)],
        [with_workers(rounds=2**power) for power in range(10)],
        [with_workers(clients=count, calls=30, flops=1e5, steps=1, rounds=10**6) for count in range(1, 64)],
        [with_workers(cores=count) for count in range(1, 9)],
    ):
        assert found == sorted(found) and len(set(found)) == 2


def test_a_stack_saves_calls_and_nothing_else() -> None:
    assert client_seconds(SMALL, 16) < client_seconds(SMALL, 4) < client_seconds(SMALL) < client_seconds(SMALL, 1)
    arithmetic = replace(SMALL, calls=0)
    assert client_seconds(arithmetic, 16) > client_seconds(arithmetic)


def test_a_stack_is_as_large_as_that_of_the_vector_engine() -> None:
    assert stack_size(SMALL, 100) == 13 and stack_size(SMALL, 3) == 3
    assert stack_size(LARGE, 100) == 4 and stack_size(replace(SMALL, weights=10), 100) == 16


def test_serial_below_the_bound_of_a_brief_run_only() -> None:
    for rounds in range(1, 60):
        facts = replace(SMALL, rounds=rounds)
        assert (choose_engine(facts).settings["engine"] == "serial") == (estimates(facts)[0][0] < MAX_SERIAL_SECONDS)
