"""Figures of profiles: the numbers that a device or a link is described by, as they are written in YAML."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import MISSING, dataclass, fields
from numbers import Real
from typing import Any

from undergrowth.core import InputError, suggest


@dataclass(frozen=True)
class Figure:
    """The unit of a numeric field, in words, and which numbers it may have."""

    unit: str
    zero: bool = False
    infinite: bool = False
    at_most: float = math.inf
    optional: bool = False  # it may be None
    whole: bool = False  # a whole number is an int

    def accepts(self, value: object) -> bool:
        if value is None:
            return self.optional
        if not isinstance(value, Real) or isinstance(value, bool) or math.isnan(value):
            return False
        number = float(value)
        fits = 0 <= number <= self.at_most and (number > 0 or self.zero)
        return fits and (self.infinite or not math.isinf(number))

    def read(self, value: object) -> object:
        """`value` as a number. YAML reads a number such as 2e9, which has no point, as a text."""
        if not isinstance(value, str):
            return value
        try:
            number = float(value)
        except ValueError:
            return value  # `check_figures` refuses it and names the field
        return int(number) if self.whole and number.is_integer() else number


def check_figures(what: str, profile: object, figures: Mapping[str, Figure]) -> None:
    """Raises an `InputError` that begins with `what` if a figure of `profile` is out of range."""
    for name, figure in figures.items():
        value = getattr(profile, name)
        if not figure.accepts(value):
            right = "a number of at least 0" if figure.zero else "a number above 0"
            raise InputError(f"{what}: {name} is {value!r} and must be {right} ({figure.unit})")


def read_figures(what: str, kind: type, values: Mapping[str, object], figures: Mapping[str, Figure]) -> dict[str, Any]:
    """The arguments of the dataclass `kind`, from the keys of a YAML file. Unknown and missing keys are refused."""
    known = {field.name: field for field in fields(kind)}
    for key in values:
        if key not in known:
            raise InputError(f"{what}: unknown field '{key}'; {suggest(str(key), known)}")
    for key, field in known.items():
        if key not in values and field.default is MISSING:
            raise InputError(f"{what}: {key} is missing; give it ({figures[key].unit if key in figures else 'a text'})")
    return {key: figures[key].read(value) if key in figures else value for key, value in values.items()}
