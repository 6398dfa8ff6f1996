"""What the catalogue knows about a data set, and how the data set is read."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from undergrowth.data.dataset import Dataset

# Options of every data set. Their default, None, keeps all samples and the normalisation of the loader.
SAMPLE_OPTIONS = {
    "train_samples": "training samples to keep, with the class frequencies of the whole set",
    "test_samples": "test samples to keep, with the class frequencies of the whole set",
}

IMAGE_OPTIONS = {
    "normalise": "true: per-channel normalisation, with published figures or those of the training images; false: "
    "none; {mean: [...], std: [...]}: with these; by default as the data set is read"
}


@dataclass(frozen=True, kw_only=True)
class DatasetEntry:
    """One data set of the catalogue. None means that the value depends on the user's files."""

    name: str
    title: str
    shape: tuple[int, ...] | None = None  # of one input
    classes: int | None = None
    train: int | None = None  # samples
    test: int | None = None
    megabytes: float | None = None  # in memory once loaded
    licence: str
    how_to_get: str  # where to download the files, and where to put them
    layout: str  # the files below the folder `path`
    example: str
    loader: Callable[..., Dataset] = field(repr=False)
    fields: tuple[str, ...] = ()  # natural groupings that a partition can use
    task: str = "classification"  # unless the loader has an option `task`
    embedded: bool = False  # comes with the dependencies of the package and takes no path
    loader_options: Mapping[str, str] = field(default_factory=dict)  # what the keyword arguments of the loader mean

    @property
    def options(self) -> dict[str, Any]:
        """What `load` takes for this data set besides name and path, with the defaults."""
        parameters = inspect.signature(self.loader).parameters.values()
        own = {each.name: each.default for each in parameters if each.kind is each.KEYWORD_ONLY}
        return {**own, **dict.fromkeys(self._common_options)}

    @property
    def meanings(self) -> dict[str, str]:
        """What every option means."""
        return {**self.loader_options, **self._common_options}

    @property
    def may_hold_images(self) -> bool:
        return self.shape is None or len(self.shape) == 3

    @property
    def _common_options(self) -> dict[str, str]:
        return {**SAMPLE_OPTIONS, **(IMAGE_OPTIONS if self.may_hold_images else {})}
