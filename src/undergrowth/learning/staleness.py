"""Staleness: how much less an update counts for every version of the model that it missed."""

from __future__ import annotations

from dataclasses import dataclass

from undergrowth.core import InputError


@dataclass(frozen=True)
class Staleness:
    """constant: 1. polynomial:A: (1 + age)^−A. hinge:A:B: 1 up to an age of B, then 1 / (1 + A·(age − B))."""

    text: str = "constant"

    def __call__(self, age: int) -> float:
        kind, *numbers = self._parts()
        if kind == "polynomial":
            return float((1 + age) ** -numbers[0])
        if kind == "hinge":
            return 1.0 if age <= numbers[1] else 1 / (1 + numbers[0] * (age - numbers[1]))
        return 1.0

    def _parts(self) -> tuple[str, *tuple[float, ...]]:
        kind, *texts = self.text.split(":")
        try:
            numbers = tuple(float(text) for text in texts)
        except ValueError:
            numbers = (-1.0,)
        wanted = {"constant": 0, "polynomial": 1, "hinge": 2}
        if wanted.get(kind) != len(numbers) or not all(0 <= number < float("inf") for number in numbers):
            raise InputError(
                f"method.staleness '{self.text}' is not known; write constant, polynomial:A or hinge:A:B "
                "with numbers of at least 0, such as polynomial:0.5"
            )
        return kind, *numbers
