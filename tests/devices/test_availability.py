"""Availability: the patterns, that their methods agree, and the failures of jobs."""

from __future__ import annotations

import math
import tracemalloc

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from undergrowth.core import Context, InputError
from undergrowth.devices.availability import DAY, Failures, build_availability


def devices(count: int) -> list[str]:
    return [f"device-{number}" for number in range(count)]


def test_devices_that_are_always_on_need_no_availability():
    assert build_availability("always", devices(3), 0) is None


def test_a_fleet_without_devices_is_never_on():
    found = build_availability("diurnal", [], 0)
    assert found.on(0.0).tolist() == []
    assert found.next_on(0.0, []) == math.inf


@pytest.mark.parametrize(("text", "fraction"), [("diurnal", 0.5), ("diurnal:0.1", 0.1), ("diurnal: 0.75", 0.75)])
@pytest.mark.parametrize("time", [0.0, 40_000.0, 10 * DAY - 1])
def test_at_any_moment_the_fraction_of_devices_is_on(text, fraction, time):
    assert build_availability(text, devices(20_000), 0).on(time).mean() == pytest.approx(fraction, abs=0.02)


def test_each_device_has_one_window_per_day_that_may_wrap_around_midnight():
    found = build_availability("diurnal:0.25", devices(50), 1)
    seen = np.array([found.on(float(minute * 60)) for minute in range(2 * 1440)])
    assert np.all(np.abs(seen[:1440].sum(0) - 360) <= 1)
    assert np.array_equal(seen[:1440], seen[1440:])
    turns = seen[:1440] & ~np.roll(seen[:1440], 1, axis=0)
    assert np.all(turns.sum(0) == 1)
    wraps = np.flatnonzero(seen[1439] & seen[1440])
    assert 0 < len(wraps) < 50
    for place in wraps:
        assert DAY < found.until(f"device-{place}", DAY - 60) < 1.25 * DAY


def test_a_fraction_of_one_is_always_on():
    found = build_availability("diurnal:1", devices(100), 0)
    for time in (0.0, 12_345.678, 3 * DAY):
        assert found.on(time).all()
        assert {found.until(device, time) for device in devices(100)} == {math.inf}


def test_the_seed_and_the_name_decide_the_opening_time():
    one, same, other = (build_availability("diurnal", devices(100), seed).on(0.0) for seed in (3, 3, 4))
    assert np.array_equal(one, same) and not np.array_equal(one, other)
    assert np.array_equal(build_availability("diurnal", devices(100)[::-1], 3).on(0.0), one[::-1])


@given(st.floats(0, 1000 * DAY), st.floats(1e-9, 0.999), st.integers(0, 2**31))
@settings(max_examples=200, deadline=None)
def test_on_until_and_next_on_agree_to_the_last_bit(time, fraction, seed):
    names = devices(5)
    found = build_availability(f"diurnal:{fraction}", names, seed)
    for place, device in enumerate(names):
        end = found.until(device, time)
        if not found.on(time)[place]:
            assert end == time
            continue
        assert time < end <= time + DAY
        assert found.on(math.nextafter(end, 0))[place] and not found.on(end)[place]
    soon = found.next_on(time, names)
    assert found.on(soon).any()
    if found.on(time).any():
        assert soon == time
    else:
        assert time < soon < time + DAY
        assert not found.on(math.nextafter(soon, 0)).any()


def test_next_on_continues_after_midnight():
    found = build_availability("diurnal:0.001", ["lonely"], 0)
    opens = found.next_on(0.0, ["lonely"])
    end = found.until("lonely", opens)
    assert end == pytest.approx(opens + 86.4, abs=0.001)
    assert found.next_on(end, ["lonely"]) == opens + DAY


def test_the_memory_of_a_large_fleet_is_one_number_per_device():
    names = devices(20_000)
    tracemalloc.start()
    found = build_availability("diurnal:0.3", names, 0)
    kept = tracemalloc.get_traced_memory()[0]
    tracemalloc.stop()
    assert found.on(5e4).sum() == pytest.approx(0.3 * len(names), rel=0.05)
    assert kept < 20 * len(names)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("diurnl", "'diurnl' is not known; did you mean 'diurnal'"),
        ("", "'' is not known; choose one of: always, diurnal, trace"),
        ("always:2", "'always:2' must be always$"),
        ("trace:", "'trace:' must be trace:FILE"),
        ("trace", "'trace' must be trace:FILE"),
        *(
            (f"diurnal:{fraction}", f"'diurnal:{fraction}' must be diurnal.*a finite number above 0 and of at most 1")
            for fraction in ("0", "-0.5", "1.01", "nan", "inf", "half", "")
        ),
    ],
)
def test_an_invalid_availability_is_refused(text, message):
    with pytest.raises(InputError, match=f"^fleet.availability.*{message}"):
        build_availability(text, devices(2), 0)


def test_nothing_fails_by_default():
    assert all(Failures().draw(Context(0, device, 1)) is None for device in devices(100))


def test_draws_are_the_same_for_the_same_job_and_differ_between_jobs():
    failures = Failures(0.3, 0.3)
    jobs = [Context(1, device, turn, turn) for device in devices(50) for turn in range(3)]
    assert [failures.draw(job) for job in jobs] == [failures.draw(job) for job in jobs]
    assert len({failures.draw(job) for job in jobs}) > 20


def test_losses_have_the_given_probabilities_and_failures_are_uniform_in_time():
    drawn = [Failures(0.2, 0.5).draw(Context(0, "device", round)) for round in range(20_000)]
    dropped = [found for found in drawn if found and found[0] == "dropout"]
    moments = [found[1] for found in drawn if found and found[0] == "failure"]
    assert len(dropped) == pytest.approx(0.2 * 20_000, rel=0.05)
    assert {moment for _, moment in dropped} == {0.0}
    assert len(moments) == pytest.approx(0.8 * 0.5 * 20_000, rel=0.05)
    assert min(moments) >= 0 and max(moments) < 1
    assert np.histogram(moments, 4, (0, 1))[0] == pytest.approx(len(moments) / 4, rel=0.1)


def test_dropout_does_not_change_which_jobs_fail():
    jobs = [Context(0, device, 0) for device in devices(500)]
    for job in jobs:
        both = Failures(0.3, 0.3).draw(job)
        assert both in (("dropout", 0.0), Failures(0.0, 0.3).draw(job))


def test_a_probability_of_one_hits_every_job():
    jobs = [Context(0, device, 0) for device in devices(500)]
    assert all(Failures(dropout=1.0).draw(job) == ("dropout", 0.0) for job in jobs)
    assert all((Failures(failure=1).draw(job) or ("",))[0] == "failure" for job in jobs)
