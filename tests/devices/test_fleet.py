"""Fleets: which device gets which profile, fleet files, and what is refused."""

from __future__ import annotations

import math
import statistics
from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from undergrowth.core import InputError
from undergrowth.devices import Fleet, build_fleet, describe, names, shipped_profiles
from undergrowth.devices.fleet_file import FleetEntry, shipped_fleets

PROFILES = shipped_profiles()


def devices(count: int) -> list[str]:
    return [f"device-{number}" for number in range(count)]


def sizes(found: Fleet) -> dict[str, int]:
    return {name: len(members) for name, members in found.classes.items()}


@pytest.fixture
def written(tmp_path):
    def write(text: str) -> str:
        path = tmp_path / "fleet.yaml"
        path.write_text(text)
        return str(path)

    return write


def test_shipped_fleets_and_their_fractions():
    assert names() == ["uniform", "reft-5", "reft-200", "mixed-edge", "phones", "cross-silo"]
    for rows in shipped_fleets().values():
        assert math.isclose(sum(row.fraction for row in rows), 1.0)


def test_class_sizes_follow_the_largest_remainder():
    assert sizes(build_fleet("phones", devices(10), 0)) == {"phone-low": 4, "phone-mid": 4, "phone-high": 2}
    assert sizes(build_fleet("phones", devices(7), 0)) == {"phone-low": 3, "phone-mid": 3, "phone-high": 1}
    assert sizes(build_fleet("reft-5", devices(5), 0)) == {f"reft-{n}": 1 for n in (10, 20, 40, 60, 100)}
    assert sizes(build_fleet("phones", devices(1), 0)) == {"phone-low": 1}


@given(st.lists(st.integers(1, 50), min_size=1, max_size=8), st.integers(0, 500))
@settings(max_examples=50, deadline=None)
def test_every_class_is_within_one_device_of_its_fraction(weights, count):
    rows = [
        FleetEntry(profile, weight / sum(weights)) for profile, weight in zip(PROFILES.values(), weights, strict=False)
    ]
    found = sizes(Fleet(rows, devices(count), 0))
    assert sum(found.values()) == count
    assert all(abs(found.get(row.profile.name, 0) - row.fraction * count) < 1 for row in rows)


def test_the_same_seed_gives_the_same_fleet_and_another_seed_another():
    one, same, other = (build_fleet("mixed-edge", devices(100), seed) for seed in (3, 3, 4))
    assert [one.profile(d) for d in one.devices] == [same.profile(d) for d in same.devices]
    assert one.classes != other.classes
    assert sizes(one) == sizes(other)


def test_classes_are_assigned_at_random():
    found = build_fleet("phones", devices(100), 0)
    first = Counter(found.profile(d).name for d in found.devices[:40])
    assert len(first) == 3  # not the forty low-end phones first


def test_profiles_and_classes_agree():
    found = build_fleet("mixed-edge", devices(50), 1)
    for name, members in found.classes.items():
        assert all(found.profile(device).name == name for device in members)


def test_spread_is_log_normal_around_the_profile():
    found = build_fleet("cross-silo", devices(4000), 0)
    base = PROFILES["edge-server"]
    members = [found.profile(device) for device in found.classes["edge-server"]]
    speeds = [math.log(member.flops / base.flops) for member in members]
    links = [math.log(member.up / base.up) for member in members]
    for factors in (speeds, links):
        assert statistics.mean(factors) == pytest.approx(0.0, abs=0.01)
        assert statistics.stdev(factors) == pytest.approx(0.1, rel=0.1)
    assert abs(statistics.correlation(speeds, links)) < 0.1
    assert all(m.down / base.down == pytest.approx(m.up / base.up) and m.memory == base.memory for m in members)


def test_a_uniform_fleet_is_one_profile():
    found = build_fleet("uniform", devices(3), 0)
    assert [found.profile(d) for d in found.devices] == [PROFILES["uniform"]] * 3


def test_describe_returns_one_row_per_class():
    rows = describe("mixed-edge")
    assert len(rows) == 6
    assert rows[0]["device"] == "raspberry-pi-zero-2"
    assert rows[0]["share"] == 0.2
    assert rows[0]["source"]


def test_a_file_with_shares(written):
    path = written(
        "devices:\n"
        "- {profile: raspberry-pi-4, share: 0.7, spread: 0.2}\n"
        "- profile: {name: mine, flops: 2e9, memory: 64e6, down: 1e6, up: 5e5, compute_watts: 2, radio_watts: 1}\n"
        "  share: 0.3\n"
    )
    found = build_fleet(path, devices(10), 0)
    assert sizes(found) == {"raspberry-pi-4": 7, "mine": 3}
    assert found.profile(found.classes["mine"][0]).flops == 2e9
    assert len(describe(path)) == 2


def test_a_file_with_counts(written):
    path = written("devices: [{profile: phone-low, count: 2}, {profile: laptop, count: 1}]")
    assert sizes(build_fleet(path, devices(3), 0)) == {"phone-low": 2, "laptop": 1}
    assert [row["count"] for row in describe(path)] == [2, 1]


def test_a_file_with_one_entry_per_device_keeps_the_order(written):
    path = written("devices: [{profile: phone-low}, {profile: laptop}, {profile: phone-low}]")
    found = build_fleet(path, ["a", "b", "c"], 0)
    assert [found.profile(d).name for d in "abc"] == ["phone-low", "laptop", "phone-low"]


def test_a_wrong_number_of_devices_is_refused_with_both_numbers(written):
    path = written("devices: [{profile: phone-low, count: 2}, {profile: laptop, count: 1}]")
    with pytest.raises(InputError, match="counts add up to 3 devices and the data is partitioned over 5"):
        build_fleet(path, devices(5), 0)
    path = written("devices: [{profile: phone-low}, {profile: laptop}]")
    with pytest.raises(InputError, match="entries name 2 devices and the data is partitioned over 1"):
        build_fleet(path, devices(1), 0)


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("devices: [{profile: phone-low, share: 0.5}]", "shares add up to 0.5 and must add up to 1"),
        (
            "devices: [{profile: phone-low, share: 0.5}, {profile: laptop, count: 1}]",
            "give every entry a share, or every entry a count",
        ),
        ("devices: [{profile: phone-low, share: 0.5, count: 1}]", "has a share and a count"),
        ("devices: [{profile: phone-lo, share: 1}]", "did you mean 'phone-low'"),
        ("devices: [{profile: phone-low, share: -1}]", "share is -1 and must be a number above 0"),
        ("devices: [{profile: phone-low, share: .nan}]", "share is nan"),
        (f"devices: [{{profile: phone-low, share: 1{400 * '0'}}}]", "share is 1000"),
        (f"devices: [{{profile: phone-low, count: 1{400 * '0'}}}]", "count is 1000"),
        ("devices: [{profile: phone-low, count: 1.5}]", "count is 1.5 and must be a whole number"),
        ("devices: [{profile: phone-low, count: 0}]", "count is 0"),
        ("devices: [{profile: phone-low, spread: -0.1}]", "spread is -0.1"),
        ("devices: [{profile: phone-low, spraed: 0.1}]", "unknown key 'spraed'; did you mean 'spread'"),
        ("devices: [{profile: {name: mine, flops: 0}}]", "memory is missing"),
        ("devices: [phone-low]", "must have a 'profile'"),
        (
            "devices:\n"
            "- profile: {name: a, flops: 1.0e+9, memory: 1, down: 1, up: 1, compute_watts: 1, radio_watts: 1}\n"
            "- profile: {name: a, flops: 2.0e+9, memory: 1, down: 1, up: 1, compute_watts: 1, radio_watts: 1}\n",
            "entry 2: another profile is named 'a'; rename one",
        ),
        ("devices: []", "a list of at least one entry"),
        ("phones: 3", "must have one key, 'devices'"),
        ("devices: [", "cannot be read"),
        ("devices: [{profile: laptop}]\ndevices: [{profile: phone-low}]", "has 'devices' twice (lines 1 and 2)"),
        ("devices: [{profile: laptop, count: 1, count: 2}]", "has 'count' twice (line 1); keep one of them"),
    ],
)
def test_a_wrong_file_is_refused_in_one_sentence(written, text, sentence):
    with pytest.raises(InputError) as caught:
        build_fleet(written(text), devices(1), 0)
    assert sentence in str(caught.value)
    assert "\n" not in str(caught.value)


def test_unknown_names_and_files():
    with pytest.raises(InputError, match="unknown name 'phone'; did you mean 'phones'"):
        build_fleet("phone", devices(1), 0)
    with pytest.raises(InputError, match=r"there is no file 'fleets/mine\.yaml'"):
        build_fleet("fleets/mine.yaml", devices(1), 0)
