"""Public data: training samples that the server holds, drawn with a random stream that nothing else uses."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from undergrowth.core import Context, InputError, Shard, hidden_like
from undergrowth.data.dataset import Dataset, take_rows


def draw_public(
    dataset: Dataset, fraction: float | None, samples: int | None, missing: Sequence[int], seed: int
) -> np.ndarray:
    """Indices of `samples`, or `fraction` of the training set (default: all), without the classes in `missing`."""
    dataset.check()
    if missing and dataset.task != "classification":
        raise InputError(
            f"public.missing {list(missing)}: data set '{dataset.name}' is for {dataset.task}, which has no classes"
        )
    for label in missing:
        if not 0 <= label < dataset.classes:
            last = dataset.classes - 1
            raise InputError(f"public.missing {label} is not a class of data set '{dataset.name}': it has 0 to {last}")
    eligible = np.flatnonzero(~np.isin(dataset.labels, missing)) if missing else np.arange(len(dataset))
    count = samples or (len(eligible) if fraction is None else round(fraction * len(dataset)))
    asked = f"public.share {fraction:g}" if fraction is not None else f"public.samples {samples}"
    if not len(eligible):
        raise InputError(f"public.missing {list(missing)}: data set '{dataset.name}' has no other class")
    if count > len(eligible):
        others = " of other classes than the missing ones" if missing else ""
        raise InputError(f"{asked} is {count} samples, and data set '{dataset.name}' has {len(eligible)}{others}")
    if not count:
        raise InputError(f"{asked} is less than one of the {len(dataset)} samples of data set '{dataset.name}'")
    generator = np.random.default_rng(Context(seed, "server", 0).key("public"))
    return np.sort(generator.permutation(eligible)[:count])


def remove_samples(dataset: Dataset, indices: np.ndarray) -> Dataset:
    """The data set without these training samples."""
    kept = np.setdiff1d(np.arange(len(dataset)), indices)
    if not len(kept):
        raise InputError(f"public: it takes all training samples of data set '{dataset.name}'; leave some to devices")
    fields = {name: take_rows(values, kept) for name, values in dataset.fields.items()}
    return replace(dataset, x=take_rows(dataset.x, kept), y=take_rows(dataset.y, kept), fields=fields)


def hide_labels(shard: Shard) -> Shard:
    """The same inputs with labels that say nothing."""
    return Shard(shard.x, hidden_like(shard.y))
