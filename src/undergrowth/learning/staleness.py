"""Staleness: the weight of an update by its age, the number of model versions since its device was asked."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

from undergrowth.core.notation import Form, Number, parse

FORMS = {
    "constant": Form(),
    "polynomial": Form((Number("A", at_least=0),), "polynomial:0.5"),
    "hinge": Form((Number("A", at_least=0), Number("B", at_least=0)), "hinge:10:4"),
}


@dataclass(frozen=True)
class Staleness:
    """constant: 1. polynomial:A: (1 + age)^−A. hinge:A:B: 1 up to an age of B, then 1 / (1 + A·(age − B))."""

    text: str = "constant"

    def __post_init__(self) -> None:
        self._parsed  # noqa: B018  (raises an InputError for a text that cannot be read)

    def __call__(self, age: int) -> float:
        kind, numbers = self._parsed
        if kind == "polynomial":
            return float((1 + age) ** -numbers[0])
        if kind == "hinge":
            return 1.0 if age <= numbers[1] else 1 / (1 + numbers[0] * (age - numbers[1]))
        return 1.0

    @cached_property
    def _parsed(self) -> tuple[str, list[float]]:
        return parse("method.staleness", self.text, FORMS)
