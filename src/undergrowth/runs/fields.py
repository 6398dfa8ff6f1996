"""The types of an experiment's fields: numbers with limits beyond which no run makes sense, and places on disk."""

from __future__ import annotations

from os import PathLike, fspath
from typing import Annotated, Any

from pydantic import BeforeValidator, Field

from undergrowth.core import MOST, MOST_WHOLE


def _no_truth(value: Any) -> Any:
    """Refuses true and false, alone or in a list: Python counts them as 1 and 0, and YAML reads `yes` and `on` so."""
    if any(isinstance(one, bool) for one in (value if isinstance(value, list | tuple) else (value,))):
        raise ValueError("should be a number, not true or false")
    return value


def _as_text(value: Any) -> Any:
    return fspath(value) if isinstance(value, PathLike) else value


NO_TRUTH = BeforeValidator(_no_truth)
Number = Annotated[float, NO_TRUTH, Field(allow_inf_nan=False)]
Above0 = Annotated[Number, Field(gt=0, le=MOST)]
AtLeast0 = Annotated[Number, Field(ge=0, le=MOST)]
Share = Annotated[Number, Field(ge=0, le=1)]
ShareAbove0 = Annotated[Number, Field(gt=0, le=1)]
ShareBelow1 = Annotated[Number, Field(ge=0, lt=1)]
Whole = Annotated[int, NO_TRUTH]
Count = Annotated[Whole, Field(ge=1, le=MOST_WHOLE)]
Place = Annotated[str, Field(min_length=1), BeforeValidator(_as_text)]
