"""`undergrowth methods`: the ways of learning together."""

from __future__ import annotations

import inspect
from dataclasses import MISSING, fields
from typing import Annotated, Any

import typer

from undergrowth.cli.output import AsJson, console, print_json


def methods(
    name: Annotated[str | None, typer.Argument(metavar="NAME", help="One of them, to see all about it.")] = None,
    json: AsJson = False,
) -> None:
    """List the methods; with a NAME: its paper and formula, its options, an example.

    Example: undergrowth methods fedprox
    """
    from undergrowth.core import InputError, nearest
    from undergrowth.methods import METHODS
    from undergrowth.report.tables import table

    if name is None:
        rows: list[dict[str, Any]] = [
            {"method": each, "title": title(METHODS[each]), "options": options(METHODS[each])} for each in METHODS
        ]
        if json:
            print_json(rows)
            return
        shown = [(row["method"], row["title"], ", ".join(_short(option) for option in row["options"])) for row in rows]
        console().print(table(("method", "what it is", "options"), shown))
        return
    if name not in METHODS:
        raise InputError(f"method '{name}' is not known; {nearest(name, METHODS)}")
    _tell(name, METHODS[name], json)


def _tell(name: str, method: type[Any], json: bool) -> None:
    from undergrowth.report.tables import table

    described = options(method)
    example = f"undergrowth run --method {name}"
    if method.needs_public:
        example += " -s public=0.1"
    if described:
        example += f" -s method.{described[0]['option']}={described[0]['default']}"
    if json:
        text = explanation(method)
        print_json({"method": name, "explanation": text, "options": described, "example": example})
        return
    screen = console()
    screen.print(f"{name}\n")
    screen.print(explanation(method))
    if described:
        columns = ("option", "default", "limits", "what it does")
        rows = [(row["option"], row["default"], row["limits"], row["explanation"]) for row in described]
        screen.print(table(columns, rows))
    else:
        screen.print("\nIt has no options.\n")
    screen.print(f"example: {example}")


def options(method: type[Any]) -> list[dict[str, Any]]:
    """The fields of a method, with what its author says of each."""
    found = []
    for field in fields(method):
        limits = [f"{words} {limit:g}" for words, limit in field.metadata.get("limits", {}).items()]
        choices = field.metadata.get("choices", ())
        if choices:
            limits.append("one of " + ", ".join(choices))
        found.append({
            "option": field.name,
            "default": None if field.default is MISSING else field.default,
            "limits": ", ".join(limits),
            "explanation": field.metadata.get("explanation", ""),
        })  # fmt: skip
    return found


def explanation(method: type[Any]) -> str:
    """The docstring of the file that the method is in."""
    return inspect.cleandoc(getattr(inspect.getmodule(method), "__doc__", None) or "")


def title(method: type[Any]) -> str:
    """The first line of its own docstring where it has one (dataclasses make theirs up), or else of its file's."""
    own = inspect.cleandoc(method.__doc__ or "")
    text = explanation(method) if not own or own.startswith(f"{method.__name__}(") else own
    return text.partition("\n")[0]


def _short(option: dict[str, Any]) -> str:
    return f"{option['option']}={option['default']}"
