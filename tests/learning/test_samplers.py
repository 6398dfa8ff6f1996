"""Samplers against direct computations, with devices of which everything is known."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

import pytest

from undergrowth.core import Context, InputError, Packet, Train, UniformSampler, View
from undergrowth.learning import build_sampler
from undergrowth.learning.samplers import AvailableSampler, DataSampler, FedCSSampler, OortSampler, PowerOfChoiceSampler


@dataclass(frozen=True)
class Told:
    """What a test says of the devices; the rest have one sample, take a second, and stay."""

    sample_counts: Mapping[str, int] = field(default_factory=dict)
    times: Mapping[str, float] = field(default_factory=dict)
    windows: Mapping[str, float] = field(default_factory=dict)

    def samples(self, device: str) -> int:
        return self.sample_counts.get(device, 1)

    def seconds(self, device: str, down: Packet) -> float:
        return self.times.get(device, 1.0)

    def window(self, device: str) -> float:
        return self.windows.get(device, math.inf)

    def profile(self, device: str) -> object:
        return None


def view(devices: str, nodes: str = "", heard: Mapping[str, float] | None = None, **told: Mapping[str, float]) -> View:
    losses = {device: {"loss": loss, "samples": 1.0} for device, loss in (heard or {}).items()}
    return View(tuple(devices), (), frozenset(nodes), Told(**told), losses)


def choose(rule, count, seen, number=0):
    return list(rule.choose(count, seen, Packet(), Context(7, "server", number)))


EVERY = [
    UniformSampler(),
    DataSampler(),
    AvailableSampler(),
    FedCSSampler(10.0),
    PowerOfChoiceSampler(2.0),
    OortSampler(None),
    OortSampler(5.0),
]


@pytest.mark.parametrize("rule", EVERY, ids=lambda rule: type(rule).__name__)
@pytest.mark.parametrize("count", [1, 3, 5, 9])
def test_every_selection_gives_as_many_different_devices_as_asked_or_all_and_no_node(rule, count):
    seen = view("nabcdem", nodes="nm", heard={"a": 1.0, "d": 0.3})
    for number in range(20):
        chosen = choose(rule, count, seen, number)
        assert len(chosen) == len(set(chosen)) == min(count, 5)
        assert set(chosen) <= set("abcde")
        assert chosen == choose(rule, count, seen, number), "the same context gives the same devices"


@pytest.mark.parametrize(
    "rule", [UniformSampler(), DataSampler(), AvailableSampler(), PowerOfChoiceSampler(1.0), OortSampler(None)]
)
def test_rounds_differ_in_whom_they_ask(rule):
    assert len({tuple(sorted(choose(rule, 2, view("abcdef"), number))) for number in range(30)}) > 5


def test_by_data_asks_in_proportion_to_the_samples():
    counts = {"a": 10, "b": 30, "c": 60, "d": 0}
    draws = Counter(choose(DataSampler(), 1, view("abcd", sample_counts=counts), number)[0] for number in range(2000))
    assert draws["d"] == 0
    for device, share in (("a", 0.1), ("b", 0.3), ("c", 0.6)):
        assert draws[device] / 2000 == pytest.approx(share, abs=4 * math.sqrt(share * (1 - share) / 2000))


def test_by_data_never_asks_a_device_without_samples():
    assert choose(DataSampler(), 3, view("abc", sample_counts={"a": 0, "b": 0, "c": 0})) == []
    assert choose(DataSampler(), 3, view("abc", sample_counts={"a": 0, "b": 4, "c": 1})) == ["b", "c"]


def test_uniform_asks_all_equally_often():
    draws = Counter(device for number in range(1500) for device in choose(UniformSampler(), 2, view("abcd"), number))
    assert all(count == pytest.approx(750, abs=4 * math.sqrt(1500 * 0.25)) for count in draws.values())


def test_available_asks_only_those_who_stay_long_enough_for_their_own_work():
    seen = view("abcd", times={"a": 5.0, "b": 5.0, "c": 1.0}, windows={"a": 4.9, "b": 5.0, "c": 0.5, "d": 2.0})
    assert choose(AvailableSampler(), 4, seen) == ["b", "d"]
    assert {choose(AvailableSampler(), 1, seen, number)[0] for number in range(40)} == {"b", "d"}
    assert choose(AvailableSampler(), 2, view("ab", windows={"a": 0.5, "b": 0.6})) == ["b"]  # somebody has to try


def test_fedcs_takes_the_fastest_that_meet_the_deadline():
    times = {"a": 9.0, "b": 2.0, "c": 10.0, "d": 10.1, "e": math.inf}
    assert choose(FedCSSampler(10.0), 9, view("abcde", times=times)) == ["b", "a", "c"]
    assert choose(FedCSSampler(10.0), 2, view("abcde", times=times)) == ["b", "a"]
    assert choose(FedCSSampler(1.0), 2, view("abcde", times=times)) == []


def test_power_of_choice_takes_the_highest_losses_and_the_unheard_first():
    heard = {"a": 0.2, "b": 3.0, "c": 1.0, "d": 2.0}
    everybody = PowerOfChoiceSampler(100.0)
    assert choose(everybody, 3, view("abcd", heard=heard)) == ["b", "d", "c"]
    assert choose(everybody, 3, view("abcdef", heard=heard))[2:] == ["b"]
    assert set(choose(everybody, 2, view("abcdef", heard=heard))) == {"e", "f"}


@pytest.mark.parametrize(
    "rule", [PowerOfChoiceSampler(100.0), OortSampler(None, explore=0.0)], ids=["power-of-choice", "oort"]
)
def test_a_loss_is_heard_in_whichever_part_of_an_upload_it_is(rule):
    whole = view("abcd", heard={"a": 0.2, "b": 3.0, "c": 1.0, "d": 2.0})
    parts = {device: {"change/samples": 1.0, "change/loss": said["loss"]} for device, said in whole.heard.items()}
    assert choose(rule, 3, replace(whole, heard=parts)) == choose(rule, 3, whole) == ["b", "d", "c"]


def test_power_of_choice_draws_its_candidates_by_their_data():
    heard = dict.fromkeys("abcdef", 1.0)
    seen = view("abcdef", heard=heard, sample_counts={"a": 0, "b": 0, "c": 0})
    for number in range(20):
        chosen = choose(PowerOfChoiceSampler(1.5), 2, seen, number)
        assert set(chosen) <= set("def")
        assert chosen == choose(DataSampler(), 3, seen, number)[:2], "equal losses leave the draw as it was"


def test_power_of_choice_without_spare_candidates_is_by_data():
    seen = view("abcdef", heard={"a": 5.0, "b": 0.1})
    for number in range(10):
        assert set(choose(PowerOfChoiceSampler(1.0), 3, seen, number)) == set(choose(DataSampler(), 3, seen, number))


def test_oort_asks_by_samples_times_loss_and_discounts_who_is_slower_than_the_deadline():
    heard = {"a": 1.0, "b": 2.0, "c": 3.0, "d": 4.0}
    counts, times = {"a": 10, "b": 4, "c": 4, "d": 4}, {"a": 1.0, "b": 4.0, "c": 6.0, "d": 20.0}
    utility = {"a": 10 * 1.0, "b": 4 * 2.0, "c": 4 * 3.0 * (5 / 6) ** 2, "d": 4 * 4.0 * (5 / 20) ** 2}
    chosen = choose(OortSampler(5.0, explore=0.0), 4, view("abcd", heard=heard, sample_counts=counts, times=times))
    assert chosen == sorted(utility, key=utility.__getitem__, reverse=True) == ["a", "c", "b", "d"]


def test_oort_without_a_deadline_prefers_the_median_time_of_those_it_knows():
    heard = dict.fromkeys("abc", 1.0)
    times, counts = {"a": 1.0, "b": 2.0, "c": 8.0}, {"a": 3, "b": 2, "c": 40}
    # c: 40 · (2 / 8)² = 2.5
    assert choose(
        OortSampler(None, explore=0.0), 3, view("abc", heard=heard, times=times, sample_counts=counts)
    ) == list("acb")


@pytest.mark.parametrize(("count", "new"), [(5, 1), (10, 2), (2, 0)])
def test_oort_keeps_a_share_for_devices_it_never_tried(count, new):
    heard = dict(zip("abcdefghijkl", range(1, 13), strict=False))
    chosen = choose(OortSampler(None), count, view("abcdefghijklmnopqrst", heard=heard))
    assert len(chosen) == count
    assert sum(device not in heard for device in chosen) == new
    assert chosen[: count - new] == list("lkjihgfedcba")[: count - new]


def test_oort_tries_new_devices_where_it_knows_too_few():
    chosen = choose(OortSampler(None), 4, view("abcdef", heard={"a": 0.1}))
    assert chosen[0] == "a" and len(set(chosen)) == 4
    assert len(choose(OortSampler(None), 4, view("abcdef"))) == 4
    assert choose(OortSampler(None), 4, view("ab", heard={"a": 1.0, "b": 2.0})) == ["b", "a"]


NAMES = {
    "uniform": UniformSampler(), "data": DataSampler(), "available": AvailableSampler(), "fedcs": FedCSSampler(3.0),
    "oort": OortSampler(3.0),
    "power-of-choice": PowerOfChoiceSampler(2.0), "power-of-choice:1.5": PowerOfChoiceSampler(1.5),
}  # fmt: skip


@pytest.mark.parametrize(("text", "rule"), NAMES.items())
def test_every_name_gives_its_sampler(text, rule):
    assert build_sampler(text, Train(deadline=3.0)) == rule
    assert rule.needs_loss == (text.startswith(("power", "oort")))


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("unform", "did you mean 'uniform'"),
        ("data:2", "must be data"),
        ("oort:x", "must be oort"),
        ("", "choose one of: available, data, fedcs, oort, power-of-choice, uniform"),
        ("power-of-choice:0.5", "TIMES a finite number of at least 1"),
        ("power-of-choice:many", "TIMES a finite number of at least 1"),
        ("power-of-choice:nan", "TIMES a finite number of at least 1"),
        ("power-of-choice:inf", "TIMES a finite number of at least 1"),
        ("fedcs", "needs a deadline: set fleet.deadline"),
    ],
)
def test_a_wrong_name_is_refused_with_what_would_be_right(text, words):
    with pytest.raises(InputError, match=rf"train\.sampler '{text}'.*{words}"):
        build_sampler(text, Train())
