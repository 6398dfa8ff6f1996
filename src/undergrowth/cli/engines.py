"""`undergrowth engines`: where device work runs."""

from __future__ import annotations

import inspect
from typing import Annotated, Any

import typer

from undergrowth.cli.output import AsJson, console, print_json


def engines(
    name: Annotated[str | None, typer.Argument(metavar="NAME", help="One of them, to see all about it.")] = None,
    json: AsJson = False,
) -> None:
    """List the engines; with a NAME: what it does and an example.

    Example: undergrowth run --engine serial
    """
    from undergrowth.core import InputError, nearest
    from undergrowth.engines import ENGINES
    from undergrowth.report.tables import table
    from undergrowth.runs.engine_choice import choose_engine

    engines = {"auto": choose_engine, **ENGINES}
    if name is not None and name not in engines:
        raise InputError(f"engine '{name}' is not known; {nearest(name, engines)}")
    found = [
        {"engine": each, "explanation": _text(engine), "example": f"undergrowth run --engine {each}"}
        for each, engine in engines.items()
        if name in (None, each)
    ]
    if json:
        print_json(found if name is None else found[0])
    elif name is None:
        console().print(
            table(("engine", "what it is"), [(e["engine"], e["explanation"].partition("\n")[0]) for e in found])
        )
    else:
        console().print(f"{name}\n\n{found[0]['explanation']}\n\nexample: {found[0]['example']}")


def _text(engine: Any) -> str:
    """The docstring of the file that the engine is in."""
    return inspect.cleandoc(getattr(inspect.getmodule(engine), "__doc__", None) or "")
