"""`undergrowth engines`: the engines that compute the work of devices."""

from __future__ import annotations

from undergrowth.cli.methods import module_docstring
from undergrowth.cli.output import AsJson, EntryName, console, print_json, print_rows


def engines(name: EntryName = None, json: AsJson = False) -> None:
    """List the engines. With NAME: its description and an example.

    Example: undergrowth engines processes
    """
    from undergrowth.core import InputError, suggest
    from undergrowth.engines import ENGINES
    from undergrowth.runs.engine_choice import choose_engine

    engines = {"auto": choose_engine, **ENGINES}
    if name is not None and name not in engines:
        raise InputError(f"engine '{name}' is not known; {suggest(name, engines)}")
    entries = [
        {"engine": each, "explanation": module_docstring(engine), "example": f"undergrowth run --engine {each}"}
        for each, engine in engines.items()
        if name in (None, each)
    ]
    if name is None:
        rows = [(entry["engine"], entry["explanation"].partition("\n")[0]) for entry in entries]
        print_rows(entries, json, ("engine", "description"), rows)
    elif json:
        print_json(entries[0])
    else:
        console().print(f"{name}\n\n{entries[0]['explanation']}\n\nexample: {entries[0]['example']}")
