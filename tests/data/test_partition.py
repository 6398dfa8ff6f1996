"""Partitions: every sample goes to one device, seeds reproduce, and each rule keeps its property."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from undergrowth.core.errors import InputError
from undergrowth.data.partition import partition_dataset
from undergrowth.data.population import PartitionedPopulation, is_population

from .samples import table

RULES = st.one_of(
    st.just("iid"),
    st.floats(1e-3, 1e3).map("dirichlet:{}".format),
    st.floats(1e-3, 1e3).map("dirichlet:{}:capped".format),
    st.sampled_from(["dirichlet:1e-300", "dirichlet:1.7e308"]),
    st.integers(1, 5).map("classes:{}".format),
    st.floats(0, 50).map("quantity:{}".format),
)


def samples(population: PartitionedPopulation) -> list[float]:
    """The numbers of all samples on all devices."""
    parts = [part(device).x for device in population.devices for part in (population.train, population.test)]
    return torch.cat(parts).flatten().tolist()


@settings(max_examples=60, deadline=None)
@given(RULES, st.integers(5, 60), st.integers(0, 2**40), st.floats(0, 0.99))
def test_every_sample_goes_to_exactly_one_device(rule: str, clients: int, seed: int, holdout: float) -> None:
    dataset = table(samples=60, classes=5, seed=seed)
    population = partition_dataset(dataset, rule, clients, seed, holdout)
    assert len(population.devices) == clients
    assert sorted(samples(population)) == list(range(60))
    sizes = [population.size(device) for device in population.devices]
    assert sizes == [len(population.train(device)) for device in population.devices]
    assert sizes == population.counts().sum(axis=1).tolist()
    for device, size in zip(population.devices, sizes, strict=True):
        held = len(population.test(device))
        assert held <= holdout * (held + size) + 1e-6
        assert size > 0 or held == 0  # a device with samples has a training sample


@settings(max_examples=20, deadline=None)
@given(RULES, st.integers(1, 60), st.integers(0, 1000))
def test_the_same_seed_gives_the_same_partition(rule: str, clients: int, seed: int) -> None:
    dataset = table()
    first, second = (partition_dataset(dataset, rule, clients, seed) for _ in range(2))
    assert samples(first) == samples(second)


@pytest.mark.parametrize(
    "rule", ["iid", "dirichlet:0.5", "dirichlet:0.5:capped", "dirichlet:9:equal", "classes:2", "quantity:1"]
)
def test_another_seed_gives_another_partition(rule: str) -> None:
    assert samples(partition_dataset(table(), rule, 6, 0)) != samples(partition_dataset(table(), rule, 6, 1))


@settings(max_examples=40, deadline=None)
@given(st.integers(1, 6), st.integers(1, 40), st.integers(0, 1000), st.booleans())
def test_classes_limits_the_classes_of_a_device(held: int, clients: int, seed: int, skewed: bool) -> None:
    generator = np.random.default_rng(seed)
    weights = np.array([0.9, 0.05, 0.03, 0.01, 0.01, 0.0]) if skewed else np.full(6, 1 / 6)
    dataset = table(120, 6, y=generator.choice(6, 120, p=weights))
    counts = partition_dataset(dataset, f"classes:{held}", clients, seed, holdout=0).counts()
    assert ((counts > 0).sum(axis=1) <= held).all()
    present = len(np.unique(dataset.labels))
    if clients * min(held, present) >= present:
        assert counts.sum() == 120
    else:
        assert (counts.sum(axis=0) > 0).sum() == clients * held


def test_classes_is_balanced_and_varied() -> None:
    dataset = table(1000, 10, y=np.arange(1000) % 10)
    counts = partition_dataset(dataset, "classes:2", 50, 0, holdout=0).counts()
    assert (counts.sum(axis=1) == 20).all() and ((counts > 0).sum(axis=1) == 2).all()
    assert len({tuple(row) for row in (counts > 0).tolist()}) > 15  # many different pairs


def test_iid_sizes_differ_by_at_most_one() -> None:
    counts = partition_dataset(table(61), "iid", 7, 0, holdout=0).counts().sum(axis=1)
    assert set(counts.tolist()) == {8, 9}


def test_dirichlet_follows_alpha() -> None:
    dataset = table(2000, 10)
    spread = {
        alpha: (partition_dataset(dataset, f"dirichlet:{alpha}", 20, 0).counts() > 0).sum(axis=1).mean()
        for alpha in (0.01, 0.3, 1000)
    }
    assert spread[0.01] < 2.5 < spread[0.3] < 9 < spread[1000]


def test_dirichlet_may_leave_a_device_empty() -> None:
    population = partition_dataset(table(), "dirichlet:0.01", 30, 0)
    empty = next(device for device in population.devices if population.size(device) == 0)
    assert population.train(empty).x.shape == (0, 1) and len(population.test(empty)) == 0


def test_quantity_is_log_normal_and_gives_every_device_a_sample() -> None:
    sizes = partition_dataset(table(20_000), "quantity:1.0", 200, 0, holdout=0).counts().sum(axis=1)
    assert sizes.min() >= 1
    assert 0.85 < np.log(sizes).std() < 1.15
    even = partition_dataset(table(), "quantity:0", 6, 0, holdout=0).counts().sum(axis=1)
    assert set(even.tolist()) == {10}


def test_natural_has_one_device_per_group() -> None:
    writers = np.array(["eve", "bob", "ann"])[np.arange(60) % 3]
    dataset = table(fields={"writer": writers, "day": np.arange(60) % 2})
    population = partition_dataset(dataset, "natural:writer", None, 0, holdout=0)
    assert population.groups == ("ann", "bob", "eve")
    assert sorted(population.train("device-001").x.flatten().tolist()) == list(range(1, 60, 3))
    fewer = [partition_dataset(dataset, "natural:writer", 2, seed).groups for seed in range(10)]
    assert len(set(fewer)) > 1 and all(len(groups) == 2 for groups in fewer)
    only = table(fields={"day": torch.arange(60) % 2})
    assert len(partition_dataset(only, "natural", None, 0).devices) == 2


def test_natural_with_several_fields_has_one_device_per_combination() -> None:
    writers = np.array(["eve", "bob", "ann"])[np.arange(60) % 3]
    dataset = table(fields={"writer": writers, "day": np.where(writers == "bob", 2, 10 - np.arange(60) % 2)})
    population = partition_dataset(dataset, "natural:writer+day", None, 0, holdout=0)
    assert population.groups == ("ann+9", "ann+10", "bob+2", "eve+9", "eve+10")
    assert sorted(population.train("device-002").x.flatten().tolist()) == list(range(1, 60, 3))
    with pytest.raises(InputError, match="has no field 'dy'; did you mean 'day'"):
        partition_dataset(dataset, "natural:writer+dy", None, 0)


def test_holdout() -> None:
    population = partition_dataset(table(60), "iid", 2, 0, holdout=0.1)
    assert [len(population.test(device)) for device in population.devices] == [3, 3]
    assert len(partition_dataset(table(60), "iid", 60, 0, holdout=0.9).test("device-00" + "0")) == 0


def test_names_are_padded_to_the_population() -> None:
    assert partition_dataset(table(), "iid", 2, 0).devices == ("device-000", "device-001")
    big = partition_dataset(table(2000), "iid", 1001, 0)
    assert big.devices[0] == "device-0000" and big.devices[-1] == "device-1000"


def test_a_partition_is_a_population() -> None:
    population = partition_dataset(table(), "iid", 2, 0)
    assert is_population(population)
    assert (population.name, population.classes, population.shape) == ("table", 5, (1,))
    assert len(population.central_test()) == 4


def test_a_device_of_a_large_population_is_found_by_name() -> None:
    dataset = table(20_000, 10)
    for rule in ("iid", "dirichlet:0.1", "dirichlet:0.1:equal", "quantity:1"):
        population = partition_dataset(dataset, rule, 10_000, 0)
        assert population.size(population.devices[-1]) == len(population.train(population.devices[-1]))


@pytest.mark.parametrize(
    ("rule", "said"),
    [
        ("dirichlett:0.1", "did you mean 'dirichlet'"),
        ("", "choose one of"),
        ("dirichlet", r"dirichlet:ALPHA\[:capped\|equal\|fedml\] with"),
        ("dirichlet:", "dirichlet:ALPHA"),
        (
            "dirichlet:0",
            r"'dirichlet:0' must be dirichlet:ALPHA\[:capped\|equal\|fedml\] with ALPHA a finite number above 0, such",
        ),
        ("dirichlet:-1", "a finite number above 0"),
        ("dirichlet:nan", "a finite number above 0"),
        ("dirichlet:inf", "a finite number above 0"),
        ("dirichlet:much", "a finite number above 0"),
        ("classes:0", "a whole number of at least 1"),
        ("classes:1.5", "a whole number of at least 1"),
        ("classes:inf", "a whole number of at least 1"),
        ("classes:6", "has 5 classes; K must be from 1 to 5"),
        ("quantity:-1", "SIGMA a finite number of at least 0"),
        ("quantity:inf", "of at least 0"),
        ("iid:3", "'iid:3' must be iid"),
        ("natural:", r"natural\[:FIELD\]"),
        ("natural", "has no field to group by"),
        (3, "partition is 3"),
        (None, "partition is None"),
    ],
)
def test_wrong_rules_are_refused(rule: str, said: str) -> None:
    with pytest.raises(InputError, match=said):
        partition_dataset(table(), rule, 6, 0)


def test_wrong_fields_are_refused() -> None:
    dataset = table(fields={"writer": np.arange(60) % 3, "image": np.zeros((60, 2)), "day": np.zeros(60)})
    with pytest.raises(InputError, match="no field 'writr'; did you mean 'writer'"):
        partition_dataset(dataset, "natural:writr", None, 0)
    with pytest.raises(InputError, match=r"several fields; .* day, image, writer"):
        partition_dataset(dataset, "natural", None, 0)
    with pytest.raises(InputError, match="one entry per sample"):
        partition_dataset(dataset, "natural:image", None, 0)
    with pytest.raises(InputError, match=r"clients is 4, .* 3 groups"):
        partition_dataset(dataset, "natural:writer", 4, 0)


@pytest.mark.parametrize("rule", ["iid", "dirichlet:1", "classes:2", "quantity:1"])
def test_wrong_numbers_of_clients_are_refused(rule: str) -> None:
    for clients, said in ((0, "at least 1"), (-3, "at least 1"), (2.5, "at least 1"), (61, "60 training samples")):
        with pytest.raises(InputError, match=f"clients is {clients}.*{said}"):
            partition_dataset(table(), rule, clients, 0)  # type: ignore[arg-type]
    with pytest.raises(InputError, match="clients is not given"):
        partition_dataset(table(), rule, None, 0)


def test_other_wrong_arguments_are_refused() -> None:
    with pytest.raises(InputError, match="holdout is 1"):
        partition_dataset(table(), "iid", 2, 0, holdout=1)
    with pytest.raises(InputError, match="holdout is nan"):
        partition_dataset(table(), "iid", 2, 0, holdout=float("nan"))
    with pytest.raises(InputError, match="seed is -1"):
        partition_dataset(table(), "iid", 2, -1)
    with pytest.raises(InputError, match="NaN"):
        partition_dataset(table(x=np.full((60, 1), np.nan)), "iid", 2, 0)
    with pytest.raises(InputError, match="'device-9' is not one of the 2 devices; did you mean 'device-00"):
        partition_dataset(table(), "iid", 2, 0).train("device-9")


def test_what_getattr_gives_counts_as_part_of_a_population() -> None:
    class Wrapper:
        def __getattr__(self, name: str) -> object:
            return getattr(population, name)

    population = partition_dataset(table(), "iid", 3, 0)
    assert is_population(Wrapper()) and not is_population(population.dataset)
