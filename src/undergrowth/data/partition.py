"""Partitions a data set over devices by a rule such as "dirichlet:0.1".

    iid                     random samples, equal sizes
    dirichlet:ALPHA         each class in proportions drawn from Dir(ALPHA); a device may have no sample
    dirichlet:ALPHA:capped  the same, but a device with N/n samples gets none of the later classes; at least 10 each
    dirichlet:ALPHA:fedml   one of `capped`: the very partition that FedML draws for the same seed
    dirichlet:ALPHA:equal   equal sizes, each device with class probabilities drawn from Dir(ALPHA × frequencies)
    classes:K               at most K classes per device, equal sizes if the classes are equally large
    quantity:SIGMA          log-normal sizes with this sigma, labels distributed as in the whole set
    natural[:FIELD]         one device per value of a field of the data set, such as writer or role
    natural:FIELD+FIELD     one device per combination of values that occurs, such as natural:subject+environment

The classes of a regression are ten quantiles of its label (of the first one, if there are several). The tasks
multi-label and next-token have no classes, so `dirichlet` and `classes` do not work with them.

N is the number of samples, n that of devices. Every sample goes to at most one device. Three rules may leave samples
out: `classes` if the devices cannot hold all classes, `natural` if there are fewer devices than groups, and `equal` the
N mod n samples that are left over. A device without samples has empty shards and size 0.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from undergrowth.core import InputError, suggest
from undergrowth.core.notation import Form, Number, parse_with_word
from undergrowth.data import assignment, dirichlet
from undergrowth.data.dataset import Dataset, to_numpy
from undergrowth.data.labels import QUANTILES
from undergrowth.data.population import PartitionedPopulation

_DIRICHLET = {"": dirichlet.uncapped, "capped": dirichlet.capped, "equal": dirichlet.equal}
_FEDML = "fedml"  # the word of the rule that draws from the seed itself
_FORMS = {
    "iid": Form(),
    "dirichlet": Form((Number("ALPHA", above=0),), "dirichlet:0.1", words=(*tuple(_DIRICHLET)[1:], _FEDML)),
    "classes": Form((Number("K", at_least=1, whole=True),), "classes:2"),
    "quantity": Form((Number("SIGMA", at_least=0),), "quantity:1.0"),
    "natural": Form(example="natural:writer", rest="FIELD", rest_optional=True),
}


@dataclass(frozen=True)
class PartitionRule:
    """A parsed partition rule."""

    name: str
    number: float = 0.0  # ALPHA, K or SIGMA
    word: str = ""  # after ALPHA
    field: str | None = None


def parse_rule(rule: str) -> PartitionRule:
    """The rule of a text. Needs no data, so that a run with a wrong rule is refused early."""
    name, numbers, word = parse_with_word("partition", rule, _FORMS)
    if name == "natural":
        return PartitionRule(name, field=word or None)
    return PartitionRule(name, numbers[0] if numbers else 0.0, word)


def partition_dataset(
    dataset: Dataset, rule: str, clients: int | None, seed: int, holdout: float = 0.1
) -> PartitionedPopulation:
    """Partitions the training samples over `clients` devices; the same seed gives the same population.

    The fraction `holdout` of the samples of each device, rounded down, is the test set of the device. For `natural`,
    clients=None takes all groups, and a number draws as many groups at random.
    """
    parsed = parse_rule(rule)
    if isinstance(seed, bool) or not isinstance(seed, int | np.integer) or seed < 0:
        raise InputError(f"seed is {seed!r}; it must be a whole number of at least 0")
    if isinstance(holdout, bool) or not isinstance(holdout, int | float) or not 0 <= holdout < 1:
        raise InputError(f"holdout is {holdout!r}; it must be a number of at least 0 and below 1, such as 0.1")
    is_whole = isinstance(clients, int | np.integer) and not isinstance(clients, bool)
    if clients is not None and (not is_whole or clients < 1):
        raise InputError(f"clients is {clients!r}; it must be a whole number of at least 1")
    dataset.check()
    generator = np.random.default_rng(int(seed))
    groups: tuple[str, ...] = ()
    if parsed.name == "natural":
        owner, groups = _group(dataset, _group_fields(dataset, parsed.field), clients, generator)
        count = len(groups)
    else:
        count = _check_clients(dataset, rule, clients)
        owner = _assign(dataset, parsed, count, int(seed), generator)
    return _build_population(dataset, rule, owner, count, holdout, generator, groups)


def _check_clients(dataset: Dataset, rule: str, clients: int | None) -> int:
    if clients is None:
        raise InputError(f"clients is not given; partition '{rule}' needs the number of devices")
    if clients > len(dataset):
        raise InputError(
            f"clients is {clients}, but data set '{dataset.name}' has {len(dataset)} training samples; "
            "there can be at most one device per sample"
        )
    return int(clients)


def _assign(
    dataset: Dataset, rule: PartitionRule, clients: int, seed: int, generator: np.random.Generator
) -> np.ndarray:
    strata = dataset.strata
    if strata is None and rule.name in ("dirichlet", "classes"):
        natural = "natural, " if dataset.fields else ""
        raise InputError(
            f"partition '{rule.name}' divides classes, and data set '{dataset.name}' is for the task {dataset.task}, "
            f"which has no classes; choose {natural}iid or quantity:1.0"
        )
    labels = np.zeros(len(dataset), np.int64) if strata is None else strata
    if rule.word == _FEDML:
        return dirichlet.fedml(labels, clients, seed, rule.number)
    if rule.name == "dirichlet":
        return _DIRICHLET[rule.word](labels, clients, generator, rule.number)
    if rule.name == "quantity":
        return assignment.quantity(labels, clients, generator, rule.number)
    if rule.name == "classes":
        classes = dataset.classes if dataset.task == "classification" else QUANTILES
        if rule.number > classes:
            raise InputError(
                f"partition is 'classes:{rule.number}', but data set '{dataset.name}' has {classes} "
                f"classes; K must be from 1 to {classes}"
            )
        return assignment.classes(labels, clients, generator, int(rule.number))
    return assignment.iid(labels, clients, generator)


def _group_fields(dataset: Dataset, name: str | None) -> list[str]:
    """The fields that `natural` groups by: those that `name` lists, or the only field of the data set."""
    if not dataset.fields:
        raise InputError(
            f"partition is 'natural', but data set '{dataset.name}' has no field to group by; "
            "choose another rule, such as dirichlet:0.1"
        )
    if name is None:
        if len(dataset.fields) > 1:
            raise InputError(
                f"partition is 'natural', but data set '{dataset.name}' has several fields; "
                f"write natural:FIELD with one of: {', '.join(sorted(dataset.fields))}"
            )
        return [next(iter(dataset.fields))]
    fields = [name] if name in dataset.fields else [each.strip() for each in name.split("+")]
    for each in fields:
        if each not in dataset.fields:
            raise InputError(f"data set '{dataset.name}' has no field '{each}'; {suggest(each, dataset.fields)}")
    return fields


def _group(
    dataset: Dataset, fields: list[str], clients: int | None, generator: np.random.Generator
) -> tuple[np.ndarray, tuple[str, ...]]:
    """The owner of each sample, and the name of the group behind each device."""
    names, group = _combinations([_values(dataset, field) for field in fields])
    if clients is None or clients == len(names):
        return group, names
    if clients > len(names):
        raise InputError(
            f"clients is {clients}, but field '{'+'.join(fields)}' of data set '{dataset.name}' has {len(names)} "
            "groups; leave clients out to take them all"
        )
    chosen = generator.permutation(len(names))[:clients]
    owner = np.full(len(names), assignment.UNASSIGNED)
    owner[chosen] = np.arange(clients)
    return owner[group], tuple(names[place] for place in chosen)


def _values(dataset: Dataset, field: str) -> np.ndarray:
    values = to_numpy(dataset.fields[field])
    if values.ndim != 1:
        raise InputError(
            f"field '{field}' of data set '{dataset.name}' has shape {values.shape}; "
            "a field to group by has one entry per sample"
        )
    return values


def _combinations(columns: list[np.ndarray]) -> tuple[tuple[str, ...], np.ndarray]:
    """The combinations of values that occur, in the order of the first column, then the second; and each sample's."""
    values, codes = zip(*(np.unique(column, return_inverse=True) for column in columns), strict=True)
    found, group = np.unique(np.stack(codes, axis=1), axis=0, return_inverse=True)
    names = tuple("+".join(str(column[code]) for column, code in zip(values, row, strict=True)) for row in found)
    return names, group.reshape(-1)


def _build_population(
    dataset: Dataset,
    rule: str,
    owner: np.ndarray,
    count: int,
    holdout: float,
    generator: np.random.Generator,
    groups: tuple[str, ...],
) -> PartitionedPopulation:
    """Orders the samples by device, and at random within a device, so that a shard is one slice."""
    shuffled = generator.permutation(np.flatnonzero(owner != assignment.UNASSIGNED))
    order = shuffled[np.argsort(owner[shuffled], kind="stable")]
    sizes = np.bincount(owner[shuffled], minlength=count)
    # The small addition makes 0.1 × 30 equal 3. A device that has samples keeps at least one for training.
    held_out = np.minimum(np.floor(sizes * holdout + 1e-9), np.maximum(sizes - 1, 0)).astype(np.int64)
    starts = np.concatenate([[0], np.cumsum(sizes)])
    return PartitionedPopulation(dataset, rule, order, starts, held_out, groups)
