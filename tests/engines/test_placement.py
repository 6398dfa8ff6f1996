"""Placement: every job is placed once, policies do what they promise, and predictions increase."""

from __future__ import annotations

from itertools import product
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from undergrowth.bench.placement import simulate
from undergrowth.core import Context, InputError, Model, Packet, Shard, Task, Train
from undergrowth.engines import Job
from undergrowth.engines.jobs import count_batches
from undergrowth.engines.placement import (
    PLACEMENTS,
    Improved,
    Learned,
    assign_to_first_finished,
    improve,
    loads,
    lower_bound,
    placement,
)
from undergrowth.engines.prediction import fit, sum_measurements
from undergrowth.learning import GradientClient
from undergrowth.models import builder

settings.register_profile("undergrowth", deadline=None, derandomize=True, max_examples=60)
settings.load_profile("undergrowth")

SIZES = st.lists(st.integers(1, 400), max_size=60)
KINDS = st.lists(st.sampled_from(["cpu", "cuda:0", "cuda:1"]), min_size=1, max_size=6)
SPEEDS = {"cpu": 1.0, "cuda:0": 4.0, "cuda:1": 2.5}


def taught(name, batches, kinds):
    """A policy that has observed jobs on each kind of worker."""
    policy = placement(name)
    for kind in kinds:
        for x in (1, 3, 10, *batches):
            policy.observe(kind, x, (0.1 + 0.01 * x) / SPEEDS[kind])
    return policy


@pytest.mark.parametrize("name", PLACEMENTS)
@given(SIZES, KINDS)
def test_every_job_is_placed_exactly_once(name, batches, kinds):
    for policy in (placement(name), taught(name, batches, kinds)):
        for _ in range(2):
            shares = policy.place(batches, kinds)
            assert len(shares) == len(kinds)
            assert sorted(position for share in shares for position in share) == list(range(len(batches)))


def test_round_robin_deals_in_turn():
    assert placement("rr").place([5, 1, 9, 2, 7], ["cpu"] * 2) == [[0, 2, 4], [1, 3]]


def test_sorted_round_robin_deals_the_largest_first():
    assert placement("srr").place([5, 1, 9, 2, 7], ["cpu"] * 2) == [[2, 0, 1], [4, 3]]


def test_batch_uniform_gives_each_job_to_the_worker_with_fewest_batches():
    assert placement("bu").place([5, 1, 9, 2, 7], ["cpu"] * 2) == [[2, 3, 1], [4, 0]]


@pytest.mark.parametrize("name", ["lb", "lpt"])
def test_learning_policies_use_round_robin_until_they_know_every_kind(name):
    policy, batches, kinds = placement(name), [5, 1, 9, 2, 7], ["cpu", "cuda:0"]
    assert policy.place(batches, kinds) == [[0, 2, 4], [1, 3]]
    policy.observe("cpu", 5, 1.0)
    assert policy.place(batches, kinds) == [[0, 2, 4], [1, 3]]
    policy.observe("cuda:0", 5, 0.1)
    slow, fast = policy.place(batches, kinds)
    assert len(fast) > len(slow)
    assert 2 in fast  # the largest, to the fastest


@pytest.mark.parametrize("name", ["rr", "srr", "bu"])
def test_other_policies_do_not_depend_on_measured_seconds(name):
    policy, batches = placement(name), list(range(1, 40))
    before = policy.place(batches, ["cpu", "cpu"])
    policy.observe("cpu", 3, 100.0)
    assert policy.place(batches, ["cpu", "cpu"]) == before


def matrix(batches, kinds):
    return np.array([[(0.1 + 0.01 * x) / SPEEDS[kind] for x in batches] for kind in kinds])


@given(SIZES.filter(bool), KINDS)
def test_improving_never_ends_later_and_never_beats_the_bound(batches, kinds):
    times = matrix(batches, kinds)
    for start in (assign_to_first_finished(batches, times), placement("rr").place(batches, kinds)):
        better = improve(start, batches, times)
        assert sorted(position for share in better for position in share) == list(range(len(batches)))
        assert max(loads(better, times)) <= max(loads(start, times)) * (1 + 1e-12)
        assert max(loads(better, times)) >= lower_bound(times) * (1 - 1e-12)


@given(SIZES.filter(bool), KINDS)
def test_lpt_is_never_predicted_to_end_later_than_lb(batches, kinds):
    times = matrix(batches, kinds)
    plain, better = Learned()._search(batches, times), Improved()._search(batches, times)
    assert max(loads(better, times)) <= max(loads(plain, times)) * (1 + 1e-12)


def test_improve_finds_a_swap_that_balances_the_load():
    times = np.array([[4.0, 3.0, 3.0], [4.0, 3.0, 3.0]])
    assert max(loads(improve([[0, 1, 2], []], [4, 3, 3], times), times)) == 6.0
    uneven = [[0, 1], [2, 3]]  # 6 + 5 against 5 + 2
    times = np.tile([6.0, 5.0, 5.0, 2.0], (2, 1))
    assert max(loads(improve(uneven, [6, 5, 5, 2], times), times)) == 10.0


def test_the_bound_of_equal_workers_is_the_mean_load_or_the_largest_job():
    assert lower_bound(np.tile([3.0, 2.0, 1.0], (2, 1))) == pytest.approx(3.0)
    assert lower_bound(np.tile([9.0, 2.0, 1.0], (2, 1))) == pytest.approx(9.0)
    assert lower_bound(np.tile([2.0, 2.0, 2.0, 2.0], (2, 1))) == pytest.approx(4.0)
    assert lower_bound(np.zeros((2, 0))) == 0.0


def test_the_bound_of_unequal_workers_is_the_total_over_their_speeds():
    work = np.full(30, 3.0)
    assert lower_bound(np.stack([work, work / 4])) == pytest.approx(work.sum() / 5)


@given(st.integers(1, 3), st.integers(1, 5), st.integers(0, 10_000))
def test_no_placement_beats_the_bound_whatever_the_times(workers, jobs, seed):
    times = np.random.default_rng(seed).uniform(0.1, 5, (workers, jobs))

    def end(choice: tuple[int, ...]) -> float:
        return max(sum(times[w, job] for job, chosen in enumerate(choice) if chosen == w) for w in range(workers))

    best = min(map(end, product(range(workers), repeat=jobs)))
    assert lower_bound(times) <= best * (1 + 1e-9)


@given(
    st.lists(st.tuples(st.integers(1, 500), st.floats(0, 100)), min_size=1, max_size=40),
    st.lists(st.tuples(st.integers(1, 500), st.floats(0, 100)), max_size=40),
)
def test_predictions_are_positive_and_increasing_whatever_was_measured(first, second):
    curve = fit([sum_measurements(measured) for measured in (first, second) if measured])
    seconds = curve.seconds(np.arange(1, 2000))
    assert (seconds > 0).all()
    assert (np.diff(seconds) > 0).all()


@pytest.mark.parametrize(("a", "b", "d"), [(0.02, 0.03, 0.05), (0.02, 0.0, 0.0), (0.02, -0.01, 0.1), (0.0, 0.5, 0.1)])
def test_the_curve_is_recovered(a, b, d):
    x = np.arange(1, 200)
    measured = list(zip(x.tolist(), (a * x + b * np.log(x) + d).tolist(), strict=True))
    curve = fit([sum_measurements(measured)])
    np.testing.assert_allclose(curve.seconds(x), a * x + b * np.log(x) + d, rtol=2e-3)


def test_with_one_size_only_time_is_taken_to_be_proportional():
    curve = fit([sum_measurements([(10, 1.0)] * 5)])
    np.testing.assert_allclose(curve.seconds([1, 10, 20]), [0.1, 1.0, 2.0], rtol=0.05)


def test_an_unknown_policy_is_refused():
    with pytest.raises(InputError, match=r"run.placement 'lbt' is not known; did you mean"):
        placement("lbt")


@pytest.mark.parametrize(("name", "bar"), [("lb", 1.05), ("lpt", 1.05)])
def test_what_learns_ends_near_the_bound_on_workers_of_different_speed(name, bar):
    for seed in range(3):
        ours, bound = simulate(name, 1000, rounds=4, seed=seed)
        assert ours <= bar * bound


@pytest.mark.parametrize(
    ("size", "drop_last", "batches"), [(20, True, 8), (23, False, 10), (23, True, 8), (3, True, 2)]
)
def test_the_batches_of_a_job_are_those_that_its_client_goes_through(size, drop_last, batches):
    x, y = torch.zeros(size, 1, 2, 2), torch.zeros(size, dtype=torch.int64)
    train = Train(epochs=2, batch=5, drop_last=drop_last)
    task = Task(Model(builder("logistic", (1, 2, 2), 2)), 2, train)
    job = Job("server", "a", Packet(task.model.initial(0)), Context(0, "a", 0))
    world = SimpleNamespace(task=task, shards=SimpleNamespace(size=lambda device: size))
    _, steps = GradientClient().begin(task, job.down, Shard(x, y), {}, job.context)
    assert count_batches(world, job) == len(steps) == batches
