"""What a file of the zoo says of its architecture, for the table of all of them."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Literal

from undergrowth.models.staged import Staged

# None: a file that need not be given.
Option = int | tuple[int, ...] | str | None


@dataclass(frozen=True)
class Architecture:
    """One row of the table. Capital letters in `name` stand for whole numbers, as in wrn-D-K."""

    name: str
    title: str
    source: str
    # make(shape, classes, norm, **numbers, **options); raises InputError for numbers that do not fit.
    make: Callable[..., Staged]
    takes: Literal["anything", "images", "tokens"]
    # The normalisations that it can be built with, the default first, and the smallest image side for each:
    # batch normalisation needs a last map of more than one pixel, or a batch of one sample has no variance.
    norms: Mapping[str, int]
    # The input that the parameter count is stated for.
    shape: tuple[int, ...]
    classes: int
    options: Mapping[str, Option] = field(default_factory=dict)
    meanings: Mapping[str, str] = field(default_factory=dict)  # of every option, for users
    # What the numbers in the name mean, each with its value in the example.
    numbers: Mapping[str, int] = field(default_factory=dict)

    @property
    def example(self) -> str:
        """The name with the example's numbers in the place of its letters."""
        values = iter(self.numbers.values())
        return re.sub("[A-Z]", lambda _: str(next(values)), self.name)

    def numbers_in(self, name: str) -> dict[str, int] | None:
        """The numbers that a user's name carries, or None where it is not a name of this architecture."""
        match = re.fullmatch(re.sub("[A-Z]", "([1-9][0-9]*)", self.name), name)
        return None if match is None else dict(zip(self.numbers, map(int, match.groups())))
