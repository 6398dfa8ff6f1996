"""Options: the fields of a method, each with an explanation and limits."""

from __future__ import annotations

import math
import operator
from collections.abc import Sequence
from dataclasses import field, fields, is_dataclass
from typing import Any

from undergrowth.core.errors import InputError, suggest

MAX_NUMBER = 1e30  # largest value of a number: it still fits into single precision
MAX_WHOLE_NUMBER = 2**31 - 1  # largest value of a whole number
_COMPARISONS = {"at least": operator.ge, "above": operator.gt, "at most": operator.le, "below": operator.lt}


def option(
    default: Any,
    explanation: str,
    *,
    at_least: float | None = None,
    above: float | None = None,
    at_most: float | None = None,
    below: float | None = None,
    choices: Sequence[str] = (),
    importable: bool = False,
) -> Any:
    """A dataclass field that `undergrowth methods NAME` explains and that a run checks before it starts.

    importable: in an experiment, a value `module:object` stands for an object of the user.
    """
    limits = {"at least": at_least, "above": above, "at most": at_most, "below": below}
    kept = {words: limit for words, limit in limits.items() if limit is not None}
    about = {"explanation": explanation, "limits": kept, "choices": tuple(choices), "importable": importable}
    return field(default=default, metadata=about)


def check_options(owner: Any, prefix: str) -> None:
    """Raise an InputError for the first option outside its limits; the message calls it `prefix.option`."""
    for described in fields(owner) if is_dataclass(owner) else ():
        value = getattr(owner, described.name)
        path = f"{prefix}.{described.name}"
        choices = described.metadata.get("choices", ())
        if choices and value not in choices:
            raise InputError(f"{path} '{value}' is not known; {suggest(str(value), choices)}")
        limits = described.metadata.get("limits", {})
        values = value if isinstance(value, tuple | list) else (value,)
        for number in (each for each in values if limits and each is not None):
            if not _within(number, limits):
                wanted = " and ".join(f"{words} {limit:g}" for words, limit in limits.items())
                raise InputError(f"{path} {value!r} must be a finite number {wanted}")
            most = MAX_WHOLE_NUMBER if isinstance(number, int) else MAX_NUMBER
            if number > most:
                raise InputError(f"{path} {value!r} must be at most {most}")


def _within(number: Any, limits: dict[str, float]) -> bool:
    if isinstance(number, bool) or not isinstance(number, int | float) or not -math.inf < number < math.inf:
        return False
    return all(_COMPARISONS[words](number, limit) for words, limit in limits.items())
