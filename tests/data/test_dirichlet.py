"""The rules that draw from a Dirichlet distribution: against loops written from the papers, and in odd cases."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from undergrowth.core.errors import InputError
from undergrowth.data import dirichlet
from undergrowth.data.assignment import UNASSIGNED
from undergrowth.data.partition import PartitionRule, parse_rule, partition_dataset

from .samples import table

Table = list[list[int]]  # devices × classes


def labels_of(sizes: list[int], seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).permutation(np.repeat(np.arange(len(sizes)), sizes))


def counted(labels: np.ndarray, owner: np.ndarray, devices: int, classes: int) -> Table:
    return [
        [int(((owner == device) & (labels == label)).sum()) for label in range(classes)] for device in range(devices)
    ]


# Against loops --------------------------------------------------------------------------------------------------------


def fedml(sizes: list[int], devices: int, draw: Callable[[list[int]], dict[int, float]], least: int = 10) -> Table:
    """FedML's rule with plain loops. `draw` gives the proportions of the devices that may still take samples."""
    while True:
        held = [[0] * len(sizes) for _ in range(devices)]
        for label, size in enumerate(sizes):
            proportions = draw([device for device in range(devices) if sum(held[device]) < sum(sizes) / devices])
            given_out, running, last = 0, 0.0, max(proportions)
            for device in sorted(proportions):
                running += proportions[device]
                end = size if device == last else int(min(running * size, size))
                held[device][label] = end - given_out
                given_out = end
        if min(map(sum, held)) >= least:
            return held


@pytest.mark.parametrize("sizes", [[40, 40, 40, 40], [100, 5, 30], [200]])
@pytest.mark.parametrize("alpha", [0.3, 1.0, 50.0])
def test_capped_is_the_rule_of_fedml(sizes: list[int], alpha: float) -> None:
    labels, generator = labels_of(sizes), np.random.default_rng(5)

    def draw(below: list[int]) -> dict[int, float]:
        return dict(zip(below, generator.dirichlet([alpha] * len(below)).tolist(), strict=True))

    owner = dirichlet.capped(labels, 5, np.random.default_rng(5), alpha)
    assert counted(labels, owner, 5, len(sizes)) == fedml(sizes, 5, draw)


@pytest.mark.parametrize("seed", [0, 3])
@pytest.mark.parametrize(("devices", "alpha"), [(5, 0.3), (8, 1.0)])
def test_fedml_draws_what_numpys_global_generator_draws(seed: int, devices: int, alpha: float) -> None:
    """The samples themselves, with plain loops and lists; some of these cases need several draws."""
    labels = labels_of([40, 60, 25, 40])
    state = np.random.get_state()
    try:
        np.random.seed(seed)
        held: list[list[int]] = [[]]
        while min(map(len, held)) < 10:
            held = [[] for _ in range(devices)]
            for label in range(4):
                members = np.where(labels == label)[0]
                np.random.shuffle(members)
                drawn = np.random.dirichlet(np.repeat(alpha, devices))
                drawn = np.array([p * (len(own) < 165 / devices) for p, own in zip(drawn, held, strict=True)])
                cuts = (np.cumsum(drawn / drawn.sum()) * len(members)).astype(int)[:-1]
                held = [own + part.tolist() for own, part in zip(held, np.split(members, cuts), strict=True)]
    finally:
        np.random.set_state(state)
    owner = dirichlet.fedml(labels, devices, seed, alpha)
    assert [sorted(own) for own in held] == [np.flatnonzero(owner == device).tolist() for device in range(devices)]


def test_fedml_by_its_name() -> None:
    population = partition_dataset(table(200), "dirichlet:2:fedml", 4, 7, holdout=0)
    owner = dirichlet.fedml(table(200).strata, 4, 7, 2.0)  # type: ignore[arg-type]
    assert [population.size(device) for device in population.devices] == np.bincount(owner).tolist()


def test_fedml_gives_up_with_a_sentence() -> None:
    with pytest.raises(InputError, match=r"'dirichlet:0.001:fedml': none of the first 200 .* dirichlet:0.001:capped"):
        dirichlet.fedml(labels_of([50, 50]), 10, 0, 0.001)


def test_drawing_for_the_devices_below_the_limit_is_like_zeroing_the_others() -> None:
    """FedML draws for all devices, sets the proportions of full devices to zero and scales the others."""
    generator, sizes, labels = np.random.default_rng(0), [60, 60, 60, 60], labels_of([60] * 4)

    def zeroed(below: list[int]) -> dict[int, float]:
        drawn = generator.dirichlet([0.5] * 5)
        return {device: float(drawn[device] / drawn[below].sum()) for device in below}

    theirs = [sorted(map(sum, fedml(sizes, 5, zeroed))) for _ in range(400)]
    draws = [dirichlet.capped(labels, 5, generator, 0.5) for _ in range(400)]
    ours = [sorted(np.bincount(owner, minlength=5).tolist()) for owner in draws]
    difference = np.mean(ours, axis=0) - np.mean(theirs, axis=0)
    assert (abs(difference) < 4 * np.sqrt((np.var(ours, axis=0) + np.var(theirs, axis=0)) / 400)).all()


def hsu(sizes: list[int], devices: int, generator: np.random.Generator, alpha: float) -> Table:
    """The rule of Hsu et al. with plain loops, one sample after the other."""
    left, total = list(sizes), sum(sizes)
    held = [[0] * len(sizes) for _ in range(devices)]
    for device in range(devices):
        chances = generator.dirichlet([alpha * size / total for size in sizes]).tolist()
        for _ in range(total // devices):
            scaled = [chance if left[label] else 0.0 for label, chance in enumerate(chances)]
            point, label = generator.random() * sum(scaled), 0
            while point >= scaled[label] or not scaled[label]:
                point -= scaled[label]
                label += 1
            held[device][label] += 1
            left[label] -= 1
    return held


def test_equal_is_the_rule_of_hsu_et_al() -> None:
    """Both draw each device's classes from the same distribution: equal means and equal mean products."""
    sizes, repeats, generator = [30, 12, 6], 500, np.random.default_rng(3)
    labels = labels_of(sizes)
    theirs = np.array([hsu(sizes, 4, generator, 6.0) for _ in range(repeats)])
    draws = [dirichlet.equal(labels, 4, generator, 6.0) for _ in range(repeats)]
    ours = np.array([counted(labels, owner, 4, 3) for owner in draws])
    for statistic in (lambda counts: counts, lambda counts: counts[..., :, None] * counts[..., None, :]):
        one, two = statistic(ours), statistic(theirs)
        error = np.sqrt((one.var(axis=0) + two.var(axis=0)) / repeats)
        assert (abs(one.mean(axis=0) - two.mean(axis=0)) <= 4.5 * error).all()


def test_the_concentration_of_equal_is_for_all_classes_together() -> None:
    """The variance of a Dirichlet proportion with mean p and concentration A is p(1 − p) / (A + 1)."""
    labels, alpha, first = labels_of([500] * 4), 3.0, []
    for seed in range(400):
        owner = dirichlet.equal(labels, 4, np.random.default_rng(seed), alpha)
        first.append(((labels == 0) & (owner == 0)).sum() / 500)  # no class can be exhausted by the first device
    assert np.mean(first) == pytest.approx(0.25, abs=0.03)
    assert np.var(first) == pytest.approx(0.25 * 0.75 / (alpha + 1), rel=0.2)


# Odd cases ------------------------------------------------------------------------------------------------------------

ALPHAS = st.one_of(st.floats(1e-3, 1e3), st.sampled_from([1e-300, 1e-3, 1e300]))
SIZES = st.lists(st.integers(1, 40), min_size=1, max_size=6)


@settings(max_examples=25, deadline=None)
@given(SIZES, ALPHAS, st.integers(0, 2**40), st.data())
def test_capped_assigns_every_sample_and_gives_every_device_its_minimum(
    sizes: list[int], alpha: float, seed: int, data: st.DataObject
) -> None:
    devices = data.draw(st.integers(1, sum(sizes)))  # often more than a tenth of the samples
    labels = labels_of(sizes, seed)
    owner = dirichlet.capped(labels, devices, np.random.default_rng(seed), alpha)
    held = np.bincount(owner, minlength=devices)
    assert owner.min() >= 0 and len(held) == devices and held.sum() == len(labels)
    assert held.min() >= min(10, len(labels) // devices)
    again = dirichlet.capped(labels, devices, np.random.default_rng(seed), alpha)
    assert (owner == again).all()


@settings(max_examples=25, deadline=None)
@given(SIZES, ALPHAS, st.integers(0, 2**40), st.data())
def test_equal_gives_every_device_as_many_samples(
    sizes: list[int], alpha: float, seed: int, data: st.DataObject
) -> None:
    devices = data.draw(st.integers(1, sum(sizes)))
    labels = labels_of(sizes, seed)
    owner = dirichlet.equal(labels, devices, np.random.default_rng(seed), alpha)
    left_over = owner == UNASSIGNED
    assert left_over.sum() == len(labels) % devices
    assert np.bincount(owner[~left_over], minlength=devices).tolist() == [len(labels) // devices] * devices
    assert (owner == dirichlet.equal(labels, devices, np.random.default_rng(seed), alpha)).all()


def test_a_device_that_has_reached_the_limit_gets_no_later_class() -> None:
    labels = labels_of([50] * 6)
    for seed in range(20):
        owner = dirichlet.capped(labels, 6, np.random.default_rng(seed), 0.5)
        for held in counted(labels, owner, 6, 6):
            before_last = sum(held[: max(label for label in range(6) if held[label])])
            assert before_last < 50


def test_a_draw_that_never_succeeds_is_completed() -> None:
    """With one class and a tiny ALPHA one device gets all samples."""
    owner = dirichlet.capped(np.zeros(100, dtype=np.int64), 5, np.random.default_rng(0), 1e-300)
    assert sorted(np.bincount(owner).tolist()) == [10, 10, 10, 10, 60]
    counts = np.array([[0, 0], [30, 9], [1, 0], [10, 10]])
    dirichlet._complete(counts, 10)
    assert counts.tolist() == [[10, 0], [11, 9], [10, 0], [10, 10]]


def test_a_small_alpha_gives_few_classes_and_a_large_one_all() -> None:
    labels = labels_of([100] * 10)

    def classes_held(rule: Callable[..., np.ndarray], alpha: float) -> float:
        owner = rule(labels, 10, np.random.default_rng(1), alpha)
        return float(np.mean([sum(count > 0 for count in row) for row in counted(labels, owner, 10, 10)]))

    for rule in (dirichlet.capped, dirichlet.equal):
        assert classes_held(rule, 0.01) < 2.5 < classes_held(rule, 0.5) < 9.5 < classes_held(rule, 1e4)


RULES = [
    ("dirichlet:0.1", PartitionRule("dirichlet", 0.1)),
    ("dirichlet:0.1:capped", PartitionRule("dirichlet", 0.1, "capped")),
    (" dirichlet : 5 : equal ", PartitionRule("dirichlet", 5.0, "equal")),
]


@pytest.mark.parametrize(("text", "rule"), RULES)
def test_rules_are_read(text: str, rule: PartitionRule) -> None:
    assert parse_rule(text) == rule
    population = partition_dataset(table(61), text, 6, 0, holdout=0)
    sizes = [population.size(device) for device in population.devices]
    assert sum(sizes) == (60 if rule.word == "equal" else 61)
    assert rule.word != "equal" or set(sizes) == {10}
    assert rule.word != "capped" or min(sizes) == 10


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("dirichlet:0.1:cap", r"partition 'dirichlet:0.1:cap': 'cap' is not known; did you mean 'capped'\?"),
        ("dirichlet:0.1:equals", r"did you mean 'equal'\?"),
        ("dirichlet:0.1:", "'' is not known; choose one of: capped, equal, fedml"),
        (
            "dirichlet:capped",
            r"must be dirichlet:ALPHA\[:capped\|equal\|fedml\] with ALPHA a finite number above 0, such as",
        ),
        ("dirichlet:0.1:capped:2", "must be dirichlet:ALPHA"),
        ("iid:equal", "'iid:equal' must be iid"),
    ],
)
def test_wrong_words_are_refused(text: str, said: str) -> None:
    with pytest.raises(InputError, match=said):
        parse_rule(text)
