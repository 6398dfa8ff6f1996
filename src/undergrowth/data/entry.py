"""What the catalogue tells about a data set, and how it is read."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from undergrowth.data.dataset import Dataset

# Options of every data set. None: all.
SAMPLES = {
    "train_samples": "training samples to keep, every class in its share",
    "test_samples": "test samples to keep, every class in its share",
}


@dataclass(frozen=True)
class Entry:
    """One line of the catalogue. None stands for: depends on the user's files."""

    name: str
    title: str
    shape: tuple[int, ...] | None  # of one input
    classes: int | None
    train: int | None  # samples
    test: int | None
    megabytes: float | None  # in memory once loaded
    licence: str
    how_to_get: str  # public home, file names, and where to put them
    layout: str  # the files below the folder that `path` names
    example: str
    loader: Callable[..., Dataset] = field(repr=False)
    fields: tuple[str, ...] = ()  # natural groupings that a partition can use
    embedded: bool = False  # comes with the package's dependencies: takes no path
    explained: Mapping[str, str] = field(default_factory=dict)  # what the loader's own options mean

    @property
    def options(self) -> dict[str, Any]:
        """What `load` takes for this data set beside name and path, each with its default."""
        parameters = inspect.signature(self.loader).parameters.values()
        own = {each.name: each.default for each in parameters if each.kind is each.KEYWORD_ONLY}
        return {**own, **dict.fromkeys(SAMPLES)}

    @property
    def meanings(self) -> dict[str, str]:
        """What every option means."""
        return {**self.explained, **SAMPLES}
