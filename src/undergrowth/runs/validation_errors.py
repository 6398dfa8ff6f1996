"""What pydantic found in the settings of a user, in one sentence with a path that the user can write."""

from __future__ import annotations

import re
from collections.abc import Sequence
from types import NoneType, UnionType
from typing import Any, Union, get_args, get_origin

from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails

from undergrowth.core import MAX_NUMBER, find_meant, suggest
from undergrowth.runs.sections import keys_of, section_type

_KEY = "[key]"  # the last step of pydantic's path to a key that is wrong
_KINDS = {
    "string_type": "a text", "dict_type": "a section", "list_type": "a list", "tuple_type": "a list",
    "int_type": "a whole number", "int_parsing": "a whole number", "int_from_float": "a whole number",
    "float_type": "a number", "float_parsing": "a number", "callable_type": "a function",
}  # fmt: skip
_LIMITS = ("gt", "ge", "lt", "le")


def explain(error: ValidationError, model: type[BaseModel], prefix: str = "", elsewhere: Sequence[str] = ()) -> str:
    """The first problem that pydantic found, in one sentence.

    `prefix`: the path of `model`. `elsewhere`: keys of other sections by their paths, of which an unknown one may be.
    """
    place, first, kinds = _first_problem(error, model)
    path = ".".join([prefix, *place] if prefix else place)
    if first["type"] == "extra_forbidden":
        return f"{path} is not a known key; {_suggest_key(model, place, elsewhere)}"
    if first["type"] == "invalid_key":  # a number, or a word that YAML reads as a number or as true
        section = ".".join([prefix, *place[:-1]] if prefix else place[:-1])
        key = f"the key {first['input']!r}"
        return f"{section + ': ' if section else ''}{key} must be a word, such as {keys_of(model, place[:-1])[0]}"
    if place[-1:] == [_KEY]:
        return f"{path.removesuffix(f'.{place[-2]}.{_KEY}')}: the key {first['input']!r} must be a word"
    if first["type"] == "missing":
        return f"{path} is missing in {first['input']!r}"
    if first["type"] == "model_type":
        keys = keys_of(model, place)
        or_name = "a name, or " if "name" in keys else ""
        return f"{path} {first['input']!r} should be {or_name}a section with keys such as {keys[0]}"
    comma = re.fullmatch(r"\s*(-?\d+),(\d+)\s*", first["input"]) if isinstance(first["input"], str) else None
    if comma and first["type"] in ("float_parsing", "int_parsing"):
        return f"{path} '{first['input']}' has a decimal comma; write {comma[1]}.{comma[2]}"
    return f"{path} {first['input']!r} {f'should be {kinds}' if kinds else _right_value(first, model, place)}"


def _suggest_key(model: type[BaseModel], place: Sequence[str], elsewhere: Sequence[str]) -> str:
    """The nearest key of the section; but first a key of that meaning, there or `elsewhere`.

    Only the keys of a section itself are looked for in other sections: what is in `model.lora` belongs there.
    """
    here = keys_of(model, place[:-1])
    meant = find_meant(place[-1], here)
    if meant is None and len(place) <= 2:
        sections = {path.rpartition(".")[2]: path for path in reversed(elsewhere)}
        meant = find_meant(place[-1], sections)
        if meant in sections:
            return f"did you mean '{sections[meant]}'?"
    return suggest(place[-1], here)


def _first_problem(error: ValidationError, model: type[BaseModel]) -> tuple[list[str], ErrorDetails, str]:
    """The place of the first problem, the problem, and the kinds of value that would be right if there are several.

    A value that may be of several kinds has a problem for each of them. Of these, the one deepest in the value is that
    of the kind which the user meant.
    """
    found = [(_place(model, each["loc"]), each) for each in error.errors()]
    start = found[0][0]
    if len(start) == len(found[0][1]["loc"]):
        return *found[0], ""
    place = max((each for each, _ in found if each[: len(start)] == start), key=len)
    problems = [each for other, each in found if other == place]
    kinds = list(dict.fromkeys(_KINDS.get(each["type"], "") for each in problems))
    return place, problems[0], "" if len(kinds) == 1 or "" in kinds else f"{', '.join(kinds[:-1])} or {kinds[-1]}"


def _place(model: type[BaseModel], steps: Sequence[int | str]) -> list[str]:
    """The steps without those that pydantic adds: in a value of several kinds, the name of the kind."""
    for number, step in enumerate(steps):
        inner = section_type(model, str(step))
        if inner is None:
            field = model.model_fields.get(str(step))
            if field is None or not _has_kinds(field.annotation):
                break
            rest = steps[number + 1 :]
            kept = [each for each, after in zip(rest, [*rest[1:], ""], strict=False) if _is_of_user(each, after)]
            return [str(each) for each in (*steps[: number + 1], *kept)]
        model = inner
    return [str(step) for step in steps]


def _is_of_user(step: int | str, after: int | str) -> bool:
    """Whether a step in a value of several kinds is a place in a list, or a key that is wrong."""
    return isinstance(step, int) or _KEY in (step, after)


def _has_kinds(annotation: Any) -> bool:
    kinds = [kind for kind in get_args(annotation) if kind is not NoneType]
    return get_origin(annotation) in (Union, UnionType) and len(kinds) > 1


def _right_value(problem: ErrorDetails, model: type[BaseModel], place: Sequence[str]) -> str:
    """The end of a sentence about the value at `place`: what it should be."""
    words = problem["msg"]
    if problem["type"] in ("tuple_type", "list_type"):
        example = f", such as [{problem['input']}]" if _may_be_item(problem["input"], model, place) else ""
        return f"should be a list{example}"
    for name, limit in problem.get("ctx", {}).items():
        if name in _LIMITS and (isinstance(limit, int) or limit == MAX_NUMBER):  # pydantic writes other digits
            words = f"{words.rpartition(' ')[0]} {limit}"
    return words.removeprefix("Input ").removeprefix("String ").removeprefix("Value error, ")


def _may_be_item(value: Any, model: type[BaseModel], place: Sequence[str]) -> bool:
    """Whether a value could be an item of the list at `place`: a number in one of numbers, a text in another."""
    for step in place[:-1]:
        model = section_type(model, step) or model
    field = model.model_fields.get(place[-1])
    item = next(iter(get_args(field.annotation)), None) if field else None
    of_numbers = item in (int, float) or next(iter(get_args(item)), None) in (int, float)
    return isinstance(value, int | float if of_numbers else str)
