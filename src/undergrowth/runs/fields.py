"""Types for the fields of an experiment: numbers within limits, and paths."""

from __future__ import annotations

from os import PathLike, fspath
from typing import Annotated, Any

from pydantic import BeforeValidator, Field

from undergrowth.core import MAX_NUMBER, MAX_WHOLE_NUMBER


def _refuse_booleans(value: Any) -> Any:
    """Refuses booleans, alone or in a list: Python treats them as 1 and 0, and YAML reads `yes` and `on` as true."""
    if any(isinstance(item, bool) for item in (value if isinstance(value, list | tuple) else (value,))):
        raise ValueError("should be a number, not true or false")
    return value


def _as_text(value: Any) -> Any:
    return fspath(value) if isinstance(value, PathLike) else value


def _topology(value: Any) -> Any:
    has_words = isinstance(value, dict) and all(isinstance(key, str) for key in value)
    if has_words or (isinstance(_as_text(value), str) and value):
        return _as_text(value)
    raise ValueError("should be star, tree:4x5, a file, or the keys of a topology file, such as {tree: {servers: [4]}}")


def _count_or_auto(value: Any) -> Any:
    if value != "auto" and (type(value) is not int or not 1 <= value <= MAX_WHOLE_NUMBER):
        raise ValueError("should be a whole number of at least 1, or auto")
    return value


NO_BOOLEANS = BeforeValidator(_refuse_booleans)
Number = Annotated[float, NO_BOOLEANS, Field(allow_inf_nan=False)]
Above0 = Annotated[Number, Field(gt=0, le=MAX_NUMBER)]
AtLeast0 = Annotated[Number, Field(ge=0, le=MAX_NUMBER)]
Fraction = Annotated[Number, Field(ge=0, le=1)]
FractionAbove0 = Annotated[Number, Field(gt=0, le=1)]
FractionBelow1 = Annotated[Number, Field(ge=0, lt=1)]
Whole = Annotated[int, NO_BOOLEANS]
Count = Annotated[Whole, Field(ge=1, le=MAX_WHOLE_NUMBER)]
CountOrAuto = Annotated[int | str, BeforeValidator(_count_or_auto)]
Place = Annotated[str, Field(min_length=1), BeforeValidator(_as_text)]
TopologySetting = Annotated[str | dict[str, Any], BeforeValidator(_topology)]
