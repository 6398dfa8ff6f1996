"""Availability: the patterns, that their questions agree, and what goes wrong with jobs."""

from __future__ import annotations

import math
import timeit
import tracemalloc

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from undergrowth.core import Context, InputError
from undergrowth.devices.availability import DAY, Failures, availability


def devices(count: int) -> list[str]:
    return [f"device-{number}" for number in range(count)]


def test_always_is_always():
    found = availability("always", devices(3), 0)
    assert found.on(1e9).tolist() == [True, True, True]
    assert found.until("device-1", 5.0) == math.inf
    assert found.next_on(7.0) == 7.0


@pytest.mark.parametrize("text", ["always", "diurnal"])
def test_without_devices_nobody_is_ever_on(text):
    found = availability(text, [], 0)
    assert found.on(0.0).tolist() == []
    assert found.next_on(0.0) == math.inf


@pytest.mark.parametrize(("text", "share"), [("diurnal", 0.5), ("diurnal:0.1", 0.1), ("diurnal: 0.75", 0.75)])
@pytest.mark.parametrize("time", [0.0, 40_000.0, 10 * DAY - 1])
def test_at_any_moment_the_share_of_devices_is_on(text, share, time):
    assert availability(text, devices(20_000), 0).on(time).mean() == pytest.approx(share, abs=0.02)


def test_each_device_is_on_for_its_share_of_each_day_in_one_window_that_may_wrap_over_midnight():
    found = availability("diurnal:0.25", devices(50), 1)
    seen = np.array([found.on(float(minute * 60)) for minute in range(2 * 1440)])
    assert np.all(np.abs(seen[:1440].sum(0) - 360) <= 1)
    assert np.array_equal(seen[:1440], seen[1440:])
    turns = seen[:1440] & ~np.roll(seen[:1440], 1, axis=0)
    assert np.all(turns.sum(0) == 1)
    wraps = np.flatnonzero(seen[1439] & seen[1440])
    assert 0 < len(wraps) < 50
    for place in wraps:
        assert DAY < found.until(f"device-{place}", DAY - 60) < 1.25 * DAY


def test_the_whole_day_is_for_good():
    found = availability("diurnal:1", devices(100), 0)
    for time in (0.0, 12_345.678, 3 * DAY):
        assert found.on(time).all()
        assert {found.until(device, time) for device in devices(100)} == {math.inf}


def test_the_seed_and_the_name_give_the_hour():
    one, same, other = (availability("diurnal", devices(100), seed).on(0.0) for seed in (3, 3, 4))
    assert np.array_equal(one, same) and not np.array_equal(one, other)
    assert np.array_equal(availability("diurnal", devices(100)[::-1], 3).on(0.0), one[::-1])


@given(st.floats(0, 1000 * DAY), st.floats(1e-9, 0.999), st.integers(0, 2**31))
@settings(max_examples=200, deadline=None)
def test_the_questions_agree_to_the_last_bit(time, share, seed):
    names = devices(5)
    found = availability(f"diurnal:{share}", names, seed)
    for place, device in enumerate(names):
        end = found.until(device, time)
        if not found.on(time)[place]:
            assert end == time
            continue
        assert time < end <= time + DAY
        assert found.on(math.nextafter(end, 0))[place] and not found.on(end)[place]
    soon = found.next_on(time)
    assert found.on(soon).any()
    if found.on(time).any():
        assert soon == time
    else:
        assert time < soon < time + DAY
        assert not found.on(math.nextafter(soon, 0)).any()


def test_next_on_looks_past_midnight():
    found = availability("diurnal:0.001", ["lonely"], 0)
    opens = found.next_on(0.0)
    end = found.until("lonely", opens)
    assert end == pytest.approx(opens + 86.4, abs=0.001)
    assert found.next_on(end) == opens + DAY


def test_a_hundred_thousand_devices_are_asked_in_two_milliseconds_and_kept_as_arrays():
    names = devices(100_000)
    tracemalloc.start()
    found = availability("diurnal:0.3", names, 0)
    kept = tracemalloc.get_traced_memory()[0]
    tracemalloc.stop()
    assert kept < 2_000_000
    assert min(timeit.repeat(lambda: found.on(5e4), number=1, repeat=20)) < 2e-3


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("diurnl", "unknown kind 'diurnl'; did you mean 'diurnal'"),
        ("", "unknown kind ''; choose one of: always, diurnal, trace"),
        ("always:2", "'always' takes nothing after it"),
        ("trace:", "'trace:'; name the file"),
        ("trace", "'trace'; name the file"),
        *(
            (f"diurnal:{share}", f"'diurnal:{share}'; the share of the day .* must lie above 0 and at most at 1")
            for share in ("0", "-0.5", "1.01", "nan", "inf", "half", "")
        ),
    ],
)
def test_what_is_no_availability_is_refused(text, message):
    with pytest.raises(InputError, match=f"^fleet.availability.*{message}"):
        availability(text, devices(2), 0)


def test_nothing_goes_wrong_unless_asked_for():
    assert all(Failures().draw(Context(0, device, 1)) is None for device in devices(100))


def test_draws_are_the_same_for_the_same_job_and_differ_between_jobs():
    failures = Failures(0.3, 0.3)
    jobs = [Context(1, device, turn, turn) for device in devices(50) for turn in range(3)]
    assert [failures.draw(job) for job in jobs] == [failures.draw(job) for job in jobs]
    assert len({failures.draw(job) for job in jobs}) > 20


def test_draws_come_as_often_as_they_should_and_failures_at_any_moment():
    drawn = [Failures(0.2, 0.5).draw(Context(0, "device", round)) for round in range(20_000)]
    dropped = [found for found in drawn if found and found[0] == "dropout"]
    moments = [found[1] for found in drawn if found and found[0] == "failure"]
    assert len(dropped) == pytest.approx(0.2 * 20_000, rel=0.05)
    assert {moment for _, moment in dropped} == {0.0}
    assert len(moments) == pytest.approx(0.8 * 0.5 * 20_000, rel=0.05)
    assert min(moments) >= 0 and max(moments) < 1
    assert np.histogram(moments, 4, (0, 1))[0] == pytest.approx(len(moments) / 4, rel=0.1)


def test_dropout_does_not_change_whom_failure_hits():
    jobs = [Context(0, device, 0) for device in devices(500)]
    for job in jobs:
        both = Failures(0.3, 0.3).draw(job)
        assert both in (("dropout", 0.0), Failures(0.0, 0.3).draw(job))


def test_chances_of_one_hit_every_job():
    jobs = [Context(0, device, 0) for device in devices(500)]
    assert all(Failures(dropout=1.0).draw(job) == ("dropout", 0.0) for job in jobs)
    assert all((Failures(failure=1).draw(job) or ("",))[0] == "failure" for job in jobs)


def test_a_million_draws_take_five_seconds():
    failures, job = Failures(0.1, 0.1), Context(0, "device-12345", 100)
    assert min(timeit.repeat(lambda: failures.draw(job), number=5_000, repeat=7)) / 5_000 < 5e-6


@pytest.mark.parametrize("field", ["dropout", "failure"])
@pytest.mark.parametrize("value", [-0.1, 1.1, math.nan, math.inf, "often", None, True])
def test_what_is_no_chance_is_refused(field, value):
    Failures(0.0, 1).check()
    with pytest.raises(InputError, match=f"^fleet.{field} is {value!r} and must be a chance between 0"):
        Failures(**{field: value}).check()
