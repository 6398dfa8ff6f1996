"""`undergrowth methods`: the federated learning methods and their options."""

from __future__ import annotations

import inspect
import json as json_format
import shlex
from dataclasses import MISSING, fields
from typing import Any

from undergrowth.cli.output import AsJson, EntryName, console, print_json, print_rows


def methods(name: EntryName = None, json: AsJson = False) -> None:
    """List the methods. With NAME: its paper and formula, its options, and an example.

    Example: undergrowth methods fedprox
    """
    from undergrowth.core import InputError
    from undergrowth.methods import METHODS
    from undergrowth.runs.method_builder import method_class

    if name is None:
        rows: list[dict[str, Any]] = [
            {"method": each, "title": title(method), "tasks": tasks(method), "options": options(method)}
            for each, method in METHODS.items()
        ]
        shown = [
            (
                row["method"], row["title"], row["tasks"],
                ", ".join(f"{each['option']}={as_typed(each['default'])}" for each in row["options"]),
            )
            for row in rows
        ]  # fmt: skip
        print_rows(rows, json, ("method", "description", "tasks", "options"), shown)
        return
    method = method_class(name)
    if method is None:
        raise InputError(f"method '{name}' has no options that are known; it must be a Method that is a dataclass")
    _print_method(name, method, json)


def _print_method(name: str, method: type[Any], json: bool) -> None:
    from undergrowth.report.tables import table

    option_rows = options(method)
    example = build_example(name, method)
    if json:
        facts = {
            "method": name,
            "explanation": explanation(method),
            "options": option_rows,
            "ignored_settings": ignored_settings(method),
            "tasks": tasks(method),
        }
        print_json({**facts, "example": example})
        return
    screen = console()
    screen.print(f"{name}\n")
    screen.print(explanation(method))
    if option_rows:
        columns = ("option", "default", "limits", "description")
        rows = [
            (
                row["option"], None if row["default"] is None else as_typed(row["default"]), row["limits"],
                row["explanation"],
            )
            for row in option_rows
        ]  # fmt: skip
        screen.print(table(columns, rows))
    else:
        screen.print("\nThis method has no options.\n")
    if reason := _with_defaults(method, "needs_classes"):
        screen.print(f"task: classification only, because {reason}\n")
    if ignored := ignored_settings(method):
        screen.print(f"settings without effect: {', '.join(ignored)}\n")
    screen.print(f"example: {example}")


def build_example(name: str, method: type[Any]) -> str:
    """A command that runs the method, with an option of its own that has a default."""
    from undergrowth.learning.stragglers import StragglerOptions

    words = ["undergrowth", "run", "--method", name]
    if method.needs_public:
        words += ["-s", "public=0.1"]
    shared = {field.name for field in fields(StragglerOptions)}
    for row in options(method):
        if row["option"] not in shared and row["default"] is not None:
            words += ["-s", f"method.{row['option']}={as_typed(row['default'])}"]
            break
    return shlex.join(words)


def as_typed(value: Any) -> str:
    """The value of an option as it is typed on the command line and in files, which is YAML."""
    return value if isinstance(value, str) else json_format.dumps(value)


def options(method: type[Any]) -> list[dict[str, Any]]:
    """The options of a method: name, default, limits and explanation, from its dataclass fields."""
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


def ignored_settings(method: type[Any]) -> list[str]:
    """The settings that a method with its default options does not use; none if an option has no default."""
    return sorted(_with_defaults(method, "ignored_settings") or ())


def tasks(method: type[Any]) -> str:
    """The tasks that a method with its default options works with."""
    return "classification" if _with_defaults(method, "needs_classes") else "all"


def _with_defaults(method: type[Any], name: str) -> Any:
    """An attribute of the method with its default options; None if an option has no default."""
    if any(field.default is MISSING and field.default_factory is MISSING for field in fields(method)):
        return None
    return getattr(method(), name)


def module_docstring(defined: Any) -> str:
    """The docstring of the module that defines a class or function."""
    return inspect.cleandoc(getattr(inspect.getmodule(defined), "__doc__", None) or "")


def explanation(method: type[Any]) -> str:
    """The docstring of the method's module, which has the formulas; of its class if the module has none."""
    return module_docstring(method) or _class_docstring(method)


def title(method: type[Any]) -> str:
    """The first line of the docstring of the class, or of its module if the class has none."""
    return (_class_docstring(method) or module_docstring(method)).partition("\n")[0]


def _class_docstring(method: type[Any]) -> str:
    """The docstring that was written for a class; empty if it only has the one that `dataclass` generates."""
    docstring = inspect.cleandoc(method.__doc__ or "")
    return "" if docstring.startswith(f"{method.__name__}(") else docstring
