"""The description of an architecture, which every module of the zoo defines for the table of models."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Literal

from undergrowth.models.initialisation import Init
from undergrowth.models.staged import Staged

# A default of None is an optional file; one of type float is a probability.
Option = int | float | tuple[int, ...] | str | None


@dataclass(frozen=True)
class Architecture:
    """One row of the table of models. Capital letters in `name` stand for whole numbers, as in wrn-D-K."""

    name: str
    title: str
    source: str
    # make(shape, classes, layers, **numbers, **options); raises an InputError if the numbers are impossible.
    make: Callable[..., Staged]
    takes: Literal["anything", "images", "tokens"]
    # The supported normalisations, the default first, with the smallest image side for each: batch normalisation needs
    # a last feature map of more than one pixel, because otherwise a batch of one sample has no variance.
    norms: Mapping[str, int]
    init: Init  # the default start of its weights
    # The input for which the number of parameters is stated.
    shape: tuple[int, ...] = (3, 32, 32)
    classes: int = 10
    options: Mapping[str, Option] = field(default_factory=dict)
    meanings: Mapping[str, str] = field(default_factory=dict)  # of the options, for users
    per_position: bool = False  # whether `make` takes per_position=True: an output for every position of a sequence
    # The meanings of the numbers in the name, with their values in the example.
    numbers: Mapping[str, int] = field(default_factory=dict)

    @property
    def example(self) -> str:
        """The name with the numbers of the example in place of its capital letters."""
        values = iter(self.numbers.values())
        return re.sub("[A-Z]", lambda _: str(next(values)), self.name)

    def numbers_in(self, name: str) -> dict[str, int] | None:
        """The numbers in a name such as wrn-16-1, or None if it is not a name of this architecture."""
        match = re.fullmatch(re.sub("[A-Z]", "([1-9][0-9]*)", self.name), name)
        return None if match is None else dict(zip(self.numbers, map(int, match.groups()), strict=True))
