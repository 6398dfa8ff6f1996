"""The tables and figures of the package, each in a file of `tables/`.

A file may name another table as its `base`: keys that it does not give are those of the base. `experiment` is merged
section by section and `scales` scale by scale, so that both tables share runs. `common` names notes of
`common_notes.yaml`, which follow those of the table.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import cache
from importlib import resources

from undergrowth.core import InputError, suggest
from undergrowth.devices.plain_yaml import load_yaml
from undergrowth.reproduce.table import FIGURE, Raw, Table


@cache
def load_tables() -> dict[str, Table]:
    """All tables and figures by their first number, in numerical order; those that begin with a letter are last."""
    package = resources.files(__package__)
    files = [file for file in (package / "tables").iterdir() if file.name.endswith(".yaml")]
    raw = {file.name.removesuffix(".yaml"): load_yaml(file.read_text(encoding="utf-8")) for file in files}
    notes = load_yaml((package / "common_notes.yaml").read_text(encoding="utf-8"))
    loaded = [Table.model_validate(_with_notes(_with_base(each, raw), notes)) for each in raw.values()]
    loaded.sort(key=_order)
    return {table.name: table for table in loaded}


def _order(table: Table) -> tuple[str, int, int, str, bool]:
    chapter, number = re.split("[.-]", table.name.removeprefix(FIGURE), maxsplit=1)
    letter, count = ("", int(chapter)) if chapter.isdecimal() else (chapter, 0)
    place, name = (int(number), "") if number.isdecimal() else (0, number)
    return letter, count, place, name, table.is_figure


def _with_base(raw: Raw, files: Mapping[str, Raw]) -> Raw:
    """A table with the keys that it takes from the table that it names as its `base`."""
    if "base" not in raw:
        return raw
    base = _with_base(files[raw["base"]], files)
    own = {key: value for key, value in raw.items() if key != "base"}
    experiment = {
        section: {**base["experiment"].get(section, {}), **value} if isinstance(value, dict) else value
        for section, value in own.get("experiment", {}).items()
    }
    scales = {name: {**scale, **own.get("scales", {}).get(name, {})} for name, scale in base["scales"].items()}
    return {**base, **own, "experiment": {**base["experiment"], **experiment}, "scales": scales}


def _with_notes(raw: Raw, notes: Mapping[str, str]) -> Raw:
    """A table whose notes are followed by the common ones that it names."""
    shared = [notes[name] for name in raw.get("common", ())]
    own = {key: value for key, value in raw.items() if key != "common"}
    return {**own, "notes": [*own.get("notes", ()), *shared]}


def find_table(name: str) -> Table:
    """The table with the number `name`."""
    numbers = {number: table for table in load_tables().values() for number in table.tables}
    if name not in numbers:
        raise InputError(f"table '{name}' is not known; {suggest(name, numbers)}")
    return numbers[name]
