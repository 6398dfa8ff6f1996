"""Generic data for a server: some samples of a data set, drawn apart from everything else that is drawn."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import torch

from undergrowth.core.context import Context
from undergrowth.core.errors import InputError
from undergrowth.core.shard import Shard
from undergrowth.data.dataset import Dataset, rows

UNKNOWN = -1  # the label of a sample whose class nobody is told


def drawn(dataset: Dataset, share: float | None, samples: int | None, missing: Sequence[int], seed: int) -> np.ndarray:
    """Positions of so many training samples, or of that share of all, or else of all; none is of a missing class."""
    dataset.check()
    for label in missing:
        if not 0 <= label < dataset.classes:
            last = dataset.classes - 1
            raise InputError(f"public.missing {label} is not a class of data set '{dataset.name}': it has 0 to {last}")
    left = np.flatnonzero(~np.isin(dataset.labels, missing))
    count = samples or (len(left) if share is None else round(share * len(dataset)))
    asked = f"public.share {share:g}" if share is not None else f"public.samples {samples}"
    if not len(left):
        raise InputError(f"public.missing {list(missing)}: data set '{dataset.name}' has no other class")
    if count > len(left):
        others = " of other classes than the missing ones" if missing else ""
        raise InputError(f"{asked} is {count} samples, and data set '{dataset.name}' has {len(left)}{others}")
    if not count:
        raise InputError(f"{asked} is less than one of the {len(dataset)} samples of data set '{dataset.name}'")
    generator = np.random.default_rng(Context(seed, "server", 0).key("public"))
    return np.sort(generator.permutation(left)[:count])


def without(dataset: Dataset, positions: np.ndarray) -> Dataset:
    """The data set less these training samples."""
    kept = np.setdiff1d(np.arange(len(dataset)), positions)
    if not len(kept):
        raise InputError(f"public: it takes all training samples of data set '{dataset.name}'; leave the devices some")
    fields = {name: rows(values, kept) for name, values in dataset.fields.items()}
    return replace(dataset, x=rows(dataset.x, kept), y=rows(dataset.y, kept), fields=fields)


def unlabelled(shard: Shard) -> Shard:
    """The same inputs, and nobody can read what they are."""
    return Shard(shard.x, torch.full_like(shard.y, UNKNOWN))
