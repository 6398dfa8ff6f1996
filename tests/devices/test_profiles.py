"""Profiles: the shipped ones, and what is refused."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest

from undergrowth.core import InputError
from undergrowth.devices import PROFILES, Profile, profile, read_profile

GOOD = {"name": "mine", "flops": "2e9", "memory": 64e6, "down": 1e6, "up": 5e5, "compute_watts": 2, "radio_watts": 1}


def test_all_shipped_profiles_are_there_and_say_where_their_figures_come_from():
    assert list(PROFILES) == [
        "microcontroller", "raspberry-pi-zero-2", "raspberry-pi-3b+", "raspberry-pi-4", "raspberry-pi-5", "phone-low",
        "phone-mid", "phone-high", "smartwatch", "laptop", "desktop-gpu", "jetson-nano", "jetson-orin", "edge-server",
        "reft-10", "reft-20", "reft-40", "reft-60", "reft-100", "uniform",
    ]  # fmt: skip
    assert all(found.source and found.name == name for name, found in PROFILES.items())


def test_the_example_devices_of_source_003_have_its_speeds():
    assert [PROFILES[f"reft-{n}"].rate for n in (10, 20, 40, 60, 100)] == [10e9, 20e9, 40e9, 60e9, 100e9]


def test_newer_and_larger_devices_are_faster():
    for row in (
        (
            "microcontroller",
            "smartwatch",
            "raspberry-pi-zero-2",
            "raspberry-pi-3b+",
            "raspberry-pi-4",
            "raspberry-pi-5",
        ),
        ("phone-low", "phone-mid", "phone-high", "laptop", "jetson-orin", "edge-server", "desktop-gpu"),
    ):
        rates = [PROFILES[name].rate for name in row]
        assert rates == sorted(rates)


def test_source_003_puts_raspberry_pis_between_8_and_40_gigaflops():
    assert all(8e9 < PROFILES[name].rate < 40e9 for name in ("raspberry-pi-3b+", "raspberry-pi-4"))


def test_an_unknown_name_gets_the_nearest():
    with pytest.raises(InputError, match="'raspbery-pi-4'; did you mean 'raspberry-pi-4'"):
        profile("raspbery-pi-4")


@pytest.mark.parametrize("field", ["flops", "share", "memory", "down", "up", "latency", "compute_watts", "radio_watts"])
@pytest.mark.parametrize("value", [-1, math.nan, math.inf, None, "fast", True])
def test_a_rate_that_is_no_rate_is_refused(field, value):
    with pytest.raises(InputError, match=f"profile 'uniform': {field} is {value!r} and must be a number"):
        replace(PROFILES["uniform"], **{field: value})


@pytest.mark.parametrize("field", ["flops", "share", "memory", "down", "up", "battery"])
def test_zero_is_refused_where_it_would_divide(field):
    with pytest.raises(InputError, match=f"{field} is 0 and must be a number above 0"):
        replace(PROFILES["uniform"], **{field: 0})


def test_zero_latency_power_and_no_battery_are_fine():
    free = replace(PROFILES["uniform"], latency=0, compute_watts=0, radio_watts=0, battery=None)
    assert free.rate == PROFILES["uniform"].rate


def test_a_share_above_one_is_refused():
    with pytest.raises(InputError, match=r"share is 1\.5"):
        replace(PROFILES["uniform"], share=1.5)


def test_reading_takes_numbers_that_yaml_reads_as_text():
    assert read_profile(GOOD) == Profile("mine", 2e9, 1.0, 64_000_000, 1e6, 5e5, 0.0, 2, 1)


@pytest.mark.parametrize("field", [field for field in GOOD if field != "name"])
def test_a_missing_rate_is_named(field):
    with pytest.raises(InputError, match=f"profile 'mine': {field} is missing; give it"):
        read_profile({key: value for key, value in GOOD.items() if key != field})


def test_a_field_that_does_not_exist_gets_the_nearest():
    with pytest.raises(InputError, match="unknown field 'uplink'"):
        read_profile({**GOOD, "uplink": 1})
