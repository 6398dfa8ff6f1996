"""Spreads a data set over devices by a rule such as "dirichlet:0.1".

    iid              shuffled, even sizes
    dirichlet:ALPHA  each class in proportions drawn from Dir(ALPHA); a device may end up with no sample
    classes:K        at most K classes a device, even sizes where classes are even
    quantity:SIGMA   log-normal sizes with this sigma, labels as in the whole set
    natural[:FIELD]  one device for each writer, role, or whatever the data set's field names

Every sample goes to exactly one device. Two rules may leave samples out: `classes` when the devices cannot hold all
classes, and `natural` when fewer devices are asked for than there are groups. A device with no sample is well defined:
its shards are empty and its size is 0.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from undergrowth.core.errors import InputError, nearest
from undergrowth.data import assignment
from undergrowth.data.dataset import Dataset, to_numpy
from undergrowth.data.population import Partitioned

_FORMS = {
    "iid": "iid",
    "dirichlet": "dirichlet:ALPHA, such as dirichlet:0.1",
    "classes": "classes:K, such as classes:2",
    "quantity": "quantity:SIGMA, such as quantity:1.0",
    "natural": "natural or natural:FIELD, such as natural:writer",
}


@dataclass(frozen=True)
class Rule:
    """A partition rule, read from its text."""

    name: str
    number: float = 0.0  # ALPHA, K or SIGMA
    field: str | None = None


def parse_rule(rule: str) -> Rule:
    """Read a rule's text, or say what is wrong with it; needs no data, so that a run can be refused early."""
    if not isinstance(rule, str):
        raise InputError(f"partition is {rule!r}; it must be a text such as 'dirichlet:0.1'")
    name, colon, argument = (part.strip() for part in rule.partition(":"))
    if name not in _FORMS:
        raise InputError(f"partition '{rule}' is not known; {nearest(name, _FORMS)}")
    if name == "natural" and (argument or not colon):
        return Rule(name, field=argument or None)
    if name == "iid" and not colon:
        return Rule(name)
    try:
        number = float(argument)
    except ValueError:
        number = math.nan
    if name == "dirichlet" and 0 < number < math.inf:
        return Rule(name, number)
    if name == "classes" and number >= 1 and number == int(min(number, 1e9)):
        return Rule(name, number)
    if name == "quantity" and 0 <= number < math.inf:
        return Rule(name, number)
    bounds = {
        "dirichlet": ", ALPHA being a positive finite number",
        "classes": ", K being a whole number from 1 to the number of classes",
        "quantity": ", SIGMA being a finite number from 0 on",
    }
    raise InputError(f"partition is '{rule}'; it must be {_FORMS[name]}{bounds.get(name, '')}")


def partition(dataset: Dataset, rule: str, clients: int | None, seed: int, holdout: float = 0.1) -> Partitioned:
    """Spread the training samples over devices; the same seed gives the same population.

    Of each device's samples the share `holdout`, rounded down, is kept back as its own test part. `natural` takes
    clients=None (all groups) or a number of groups, which are then drawn by the seed.
    """
    parsed = parse_rule(rule)
    if isinstance(seed, bool) or not isinstance(seed, int | np.integer) or seed < 0:
        raise InputError(f"seed is {seed!r}; it must be a whole number from 0 on")
    if isinstance(holdout, bool) or not isinstance(holdout, int | float) or not 0 <= holdout < 1:
        raise InputError(f"holdout is {holdout!r}; it must be a number from 0 to below 1, such as 0.1")
    is_whole = isinstance(clients, int | np.integer) and not isinstance(clients, bool)
    if clients is not None and (not is_whole or clients < 1):
        raise InputError(f"clients is {clients!r}; it must be a whole number from 1 on")
    dataset.check()
    generator = np.random.default_rng(int(seed))
    groups: tuple[str, ...] = ()
    if parsed.name == "natural":
        owner, groups = _natural(dataset, parsed.field, clients, generator)
        count = len(groups)
    else:
        count = _count(dataset, rule, clients)
        owner = _assign(dataset, parsed, count, generator)
    return _gather(dataset, rule, owner, count, holdout, generator, groups)


def _count(dataset: Dataset, rule: str, clients: int | None) -> int:
    if clients is None:
        raise InputError(f"clients is not given; partition '{rule}' needs the number of devices")
    if clients > len(dataset):
        raise InputError(
            f"clients is {clients}, but data set '{dataset.name}' has {len(dataset)} training samples; "
            "there can be at most one device for each sample"
        )
    return int(clients)


def _assign(dataset: Dataset, rule: Rule, clients: int, generator: np.random.Generator) -> np.ndarray:
    labels = dataset.labels
    if rule.name == "dirichlet":
        return assignment.dirichlet(labels, clients, generator, rule.number)
    if rule.name == "quantity":
        return assignment.quantity(labels, clients, generator, rule.number)
    if rule.name == "classes":
        if rule.number > dataset.classes:
            raise InputError(
                f"partition is 'classes:{rule.number:g}', but data set '{dataset.name}' has {dataset.classes} "
                f"classes; K must be from 1 to {dataset.classes}"
            )
        return assignment.classes(labels, clients, generator, int(rule.number))
    return assignment.iid(labels, clients, generator)


def _natural(
    dataset: Dataset, name: str | None, clients: int | None, generator: np.random.Generator
) -> tuple[np.ndarray, tuple[str, ...]]:
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
        (name,) = dataset.fields
    elif name not in dataset.fields:
        raise InputError(f"data set '{dataset.name}' has no field '{name}'; {nearest(name, dataset.fields)}")
    values = to_numpy(dataset.fields[name])
    if values.ndim != 1:
        raise InputError(
            f"field '{name}' of data set '{dataset.name}' has shape {values.shape}; "
            "a field to group by has one entry for each sample"
        )
    groups, group = np.unique(values, return_inverse=True)
    if clients is None or clients == len(groups):
        return group, tuple(str(label) for label in groups)
    if clients > len(groups):
        raise InputError(
            f"clients is {clients}, but field '{name}' of data set '{dataset.name}' has {len(groups)} groups; "
            "leave clients out to take them all"
        )
    chosen = generator.permutation(len(groups))[:clients]
    owner = np.full(len(groups), assignment.NOBODY)
    owner[chosen] = np.arange(clients)
    return owner[group], tuple(str(label) for label in groups[chosen])


def _gather(
    dataset: Dataset,
    rule: str,
    owner: np.ndarray,
    count: int,
    holdout: float,
    generator: np.random.Generator,
    groups: tuple[str, ...],
) -> Partitioned:
    """Put each device's samples side by side, in random order, so that a shard is one slice."""
    shuffled = generator.permutation(np.flatnonzero(owner != assignment.NOBODY))
    order = shuffled[np.argsort(owner[shuffled], kind="stable")]
    sizes = np.bincount(owner[shuffled], minlength=count)
    # The small addition keeps 0.1 × 30 at 3; a device with any sample keeps one to train on.
    held = np.minimum(np.floor(sizes * holdout + 1e-9), np.maximum(sizes - 1, 0)).astype(np.int64)
    starts = np.concatenate([[0], np.cumsum(sizes)])
    return Partitioned(dataset, rule, order, starts, held, groups)
