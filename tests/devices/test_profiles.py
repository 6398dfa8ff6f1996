"""Profiles: the shipped ones, and which values are refused."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest

from undergrowth.core import InputError
from undergrowth.devices import Profile, find_profile, read_profile, shipped_profiles

PROFILES = shipped_profiles()
GOOD = {"name": "mine", "flops": "2e9", "memory": 64e6, "down": 1e6, "up": 5e5, "compute_watts": 2, "radio_watts": 1}


def test_every_shipped_profile_names_its_source():
    assert list(PROFILES) == [
        "microcontroller", "raspberry-pi-zero-2", "raspberry-pi-3b+", "raspberry-pi-4", "raspberry-pi-5", "phone-low",
        "phone-mid", "phone-high", "smartwatch", "laptop", "desktop-gpu", "jetson-nano", "jetson-orin", "edge-server",
        "reft-10", "reft-20", "reft-40", "reft-60", "reft-80", "reft-100", "reft-140", "reft-200", "uniform",
    ]  # fmt: skip
    assert all(found.source and found.name == name for name, found in PROFILES.items())


def test_every_real_device_has_a_runtime_and_memory_beside_it():
    invented = {name for name in PROFILES if name.startswith("reft-")} | {"uniform"}
    assert {name for name, found in PROFILES.items() if not found.runtime} == invented
    assert all(found.runtime < 0.7 * found.memory for found in PROFILES.values())


def test_reft_profiles_have_the_speeds_of_the_paper():
    assert [PROFILES[f"reft-{n}"].achieved_flops for n in (10, 20, 40, 60, 100)] == [10e9, 20e9, 40e9, 60e9, 100e9]


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
        rates = [PROFILES[name].achieved_flops for name in row]
        assert rates == sorted(rates)


def test_raspberry_pis_are_in_the_range_that_reft_states():
    assert all(8e9 < PROFILES[name].achieved_flops < 40e9 for name in ("raspberry-pi-3b+", "raspberry-pi-4"))


def test_an_unknown_name_suggests_the_nearest():
    with pytest.raises(InputError, match="'raspbery-pi-4'; did you mean 'raspberry-pi-4'"):
        find_profile("raspbery-pi-4")


@pytest.mark.parametrize(
    "field", ["flops", "share", "memory", "down", "up", "latency", "compute_watts", "radio_watts", "runtime"]
)
@pytest.mark.parametrize("value", [-1, math.nan, math.inf, None, "fast", True])
def test_a_value_that_is_not_a_valid_number_is_refused(field, value):
    with pytest.raises(InputError, match=f"profile 'uniform': {field} is {value!r} and must be a number"):
        replace(PROFILES["uniform"], **{field: value})


@pytest.mark.parametrize("field", ["flops", "share", "memory", "down", "up", "battery"])
def test_zero_is_refused_for_divisors(field):
    with pytest.raises(InputError, match=f"{field} is 0 and must be a number above 0"):
        replace(PROFILES["uniform"], **{field: 0})


def test_zero_latency_and_power_are_allowed():
    free = replace(PROFILES["uniform"], latency=0, compute_watts=0, radio_watts=0, battery=None)
    assert free.achieved_flops == PROFILES["uniform"].achieved_flops


def test_a_share_above_one_is_refused():
    with pytest.raises(InputError, match=r"share is 1\.5"):
        replace(PROFILES["uniform"], share=1.5)


def test_numbers_that_yaml_reads_as_text_are_converted():
    assert read_profile(GOOD) == Profile("mine", 2e9, 1.0, 64_000_000, 1e6, 5e5, 0.0, 2, 1)


@pytest.mark.parametrize("field", [field for field in GOOD if field != "name"])
def test_a_missing_field_is_named(field):
    with pytest.raises(InputError, match=f"profile 'mine': {field} is missing; give it"):
        read_profile({key: value for key, value in GOOD.items() if key != field})


def test_an_unknown_field_is_refused():
    with pytest.raises(InputError, match="unknown field 'uplink'"):
        read_profile({**GOOD, "uplink": 1})
