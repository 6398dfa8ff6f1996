"""Notation: settings written as a name, numbers and a word, such as ``hinge:4:2`` or ``dirichlet:0.1:capped``.

In place of numbers, a text such as the name of a file may follow: ``trace:phones.csv``.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

from undergrowth.core.errors import InputError, suggest


@dataclass(frozen=True)
class Number:
    """One number of a form: its name in messages, its limits, and its value if it is left out."""

    name: str
    at_least: float | None = None
    above: float | None = None
    at_most: float | None = None
    whole: bool = False
    default: float | None = None  # None: the number must be written

    def read(self, text: str) -> float | None:
        """The number, or None if `text` is not one within the limits."""
        try:
            number = int(text) if self.whole else float(text)
        except ValueError:
            return None
        fits = (
            -math.inf < number < math.inf
            and (self.at_least is None or number >= self.at_least)
            and (self.above is None or number > self.above)
            and (self.at_most is None or number <= self.at_most)
        )
        return number if fits else None

    @property
    def meaning(self) -> str:
        """The limits in words: ``ALPHA a number above 0``."""
        limits = {"of at least": self.at_least, "above": self.above, "of at most": self.at_most}
        words = " and ".join(f"{word} {limit:g}" for word, limit in limits.items() if limit is not None)
        return f"{self.name} a {'whole' if self.whole else 'finite'} number {words}".rstrip()


@dataclass(frozen=True)
class Form:
    """The numbers that follow a name, an example for messages, and words of which one may follow the numbers.

    A form with `rest` has no numbers. Everything after the first colon is one text, which `rest` names in messages.
    """

    numbers: tuple[Number, ...] = ()
    example: str = ""
    words: tuple[str, ...] = ()
    rest: str = ""
    rest_optional: bool = False

    def usage(self, name: str) -> str:
        """How it is written: ``entropy:FRACTION[:TEMPERATURE]``."""
        if self.rest:
            return f"{name}[:{self.rest}]" if self.rest_optional else f"{name}:{self.rest}"
        parts = [f"[:{each.name}]" if each.default is not None else f":{each.name}" for each in self.numbers]
        return name + "".join(parts) + (f"[:{'|'.join(self.words)}]" if self.words else "")


def parse(field: str, text: str, forms: Mapping[str, Form]) -> tuple[str, list[float]]:
    """The name and the numbers of a setting such as ``name:0.1:3``; defaults stand in for numbers left out.

    Raises an InputError that names `field`, the text and what would be right. `forms` has every known name.
    """
    name, numbers, _ = parse_with_word(field, text, forms)
    return name, numbers


def parse_with_word(field: str, text: str, forms: Mapping[str, Form]) -> tuple[str, list[float], str]:
    """Like `parse`, for forms with `words` or a `rest`; the third part is the word or the rest, or empty."""
    if not isinstance(text, str):
        raise InputError(f"{field} is {text!r} and must be a text such as '{_example(forms)}'")
    name, *texts = (part.strip() for part in text.split(":"))
    if name not in forms:
        raise InputError(f"{field} '{text}' is not known; {suggest(name, forms)}")
    form, word = forms[name], ""
    if form.rest:
        rest = text.partition(":")[2].strip()
        if not rest and (texts or not form.rest_optional):
            raise InputError(f"{field} '{text}' must be {form.usage(name)}, such as {form.example}")
        return name, [], rest
    if form.words and len(texts) == len(form.numbers) + 1:
        word = texts.pop()
        if word not in form.words:
            raise InputError(f"{field} '{text}': '{word}' is not known; {suggest(word, form.words)}")
    numbers = [number.read(each) for number, each in zip(form.numbers, texts, strict=False)]
    numbers += [number.default for number in form.numbers[len(texts) :]]
    if len(texts) > len(form.numbers) or None in numbers:
        meanings = ", ".join(number.meaning for number in form.numbers)
        example = f", such as {form.example}" if form.example else ""
        raise InputError(f"{field} '{text}' must be {form.usage(name)}{meanings and f' with {meanings}'}{example}")
    return name, [number for number in numbers if number is not None], word


def _example(forms: Mapping[str, Form]) -> str:
    return next((form.example for form in forms.values() if form.example), next(iter(forms)))
