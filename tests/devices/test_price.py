"""Prices: the arithmetic."""

from __future__ import annotations

from dataclasses import replace

import pytest

from undergrowth.devices import Profile, Work, price_work

DEVICE = Profile("d", flops=10e9, share=0.5, memory=1000, down=2e6, up=1e6, latency=0.1, compute_watts=4, radio_watts=2)


def test_seconds_and_joules():
    found = price_work(
        DEVICE, Work(flops=20e9, memory=1000, steps=3, samples=10), bytes_down=4_000_000, bytes_up=500_000
    )
    assert found.seconds_down == pytest.approx(0.1 + 2.0)
    assert found.seconds_compute == pytest.approx(4.0)
    assert found.seconds_up == pytest.approx(0.1 + 0.5)
    assert found.joules == pytest.approx(4 * 4.0 + 2 * 2.5)
    assert found.seconds == pytest.approx(6.7)
    assert found.fits


def test_work_larger_than_the_memory_does_not_fit():
    assert not price_work(DEVICE, Work(0.0, 1001, 0, 0), 0, 0).fits


def test_the_runtime_and_the_work_share_the_memory():
    device = replace(DEVICE, runtime=400)
    assert price_work(device, Work(0.0, 600, 0, 0), 0, 0).fits
    assert not price_work(device, Work(0.0, 601, 0, 0), 0, 0).fits


def test_work_that_stops_early_costs_what_its_updates_have_done_by_then():
    """One long step and 99 short ones: both updates do at least one step, and divide the others."""
    updates = (Work(900.0, 0, steps=1, samples=1), Work(99.0, 0, steps=99, samples=99))
    both = Work(999.0, 0, 100, 100, updates=updates)
    assert both.fraction(1) == pytest.approx(901 / 999) and both.fraction(50) == pytest.approx(949 / 999)
    assert both.fraction(1, of=50) == pytest.approx(901 / 949)
    assert [both.most_steps(part / 999) for part in (900, 901.5, 949.5, 999)] == [0, 2, 50, 100]
    alone = replace(both, updates=())
    assert alone.fraction(50) == 0.5 and alone.most_steps(0.505) == 50
