"""The settings with which a table was really run, in words, from the experiments themselves."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from undergrowth.report.run_record import flatten
from undergrowth.reproduce.results import CellResult

Settings = dict[str, str]  # path such as train.lr → value
_MACHINE = ("data.path", "public.path", "run.")  # settings that say where and how something is run
_NOTHING = "none"


def settings_lines(results: Sequence[CellResult]) -> list[str]:
    """What most cells have, then what each column, row and cell has instead. All other settings have their defaults."""
    pretrainings: dict[str, str] = {}  # its lines → its name
    cells = [(each.cell.row, each.cell.column, _settings(each, pretrainings)) for each in results]
    if not cells:
        return []
    common = _usual(settings for *_, settings in cells)
    lines = [f"all cells, unless a line below says otherwise: {_words(common)}"]
    of_columns = _groups((column, settings) for _, column, settings in cells)
    columns = {
        column: {path: value for path, value in _usual(found, common).items() if common.get(path) != value}
        for column, found in of_columns.items()
    }
    lines += _lines(columns)
    of_rows = _groups((row, _difference(settings, {**common, **columns[column]})) for row, column, settings in cells)
    rows = {row: _usual(found) for row, found in of_rows.items()}
    lines += _lines(rows)
    lines += _lines({
        f"{row}/{column}": _difference(settings, {**common, **columns[column], **rows[row]})
        for row, column, settings in cells
    })  # fmt: skip
    return lines + [f"pretraining {name}{line}" for steps, name in pretrainings.items() for line in steps.splitlines()]


def _settings(result: CellResult, pretrainings: dict[str, str]) -> Settings:
    """The settings of a cell. Its pretrainings get a letter, and are added to `pretrainings`."""
    settings = _flat(result.cell.raw)
    for kind, start in (("pretraining", result.start), ("pretraining of devices", result.cell.device_start)):
        if start:
            steps = [f", step {number}" if start.after else "" for number in range(1, len(start.chain) + 1)]
            texts = [f"{step}: {_words(_flat(each.raw))}" for step, each in zip(steps, start.chain, strict=True)]
            settings[kind] = pretrainings.setdefault("\n".join(texts), chr(ord("A") + len(pretrainings)))
    return settings


def _flat(raw: Mapping[str, Any]) -> Settings:
    servers = (raw["topology"] if isinstance(raw.get("topology"), Mapping) else {}).get("nodes")
    short = {"topology": f"{len(servers)} servers by name"} if servers else {}
    sections = {**raw, **short}.items()
    flat = flatten({section: {"name": value} if isinstance(value, str) else value for section, value in sections})
    return {path: _text(value) for path, value in flat.items() if not path.startswith(_MACHINE) and value is not None}


def _text(value: Any) -> str:
    if isinstance(value, list | tuple):
        return "[" + ", ".join(_text(each) for each in value) + "]"
    return str(value["name"]) if isinstance(value, Mapping) and set(value) == {"name"} else str(value)


def _groups(pairs: Iterable[tuple[str, Settings]]) -> dict[str, list[Settings]]:
    groups: dict[str, list[Settings]] = {}
    for name, settings in pairs:
        groups.setdefault(name, []).append(settings)
    return groups


def _usual(found: Iterable[Settings], common: Iterable[str] = ()) -> Settings:
    """The settings that more than half of `found` have, and "none" for those of `common` that more than half lack."""
    every = list(found)
    nothing = dict.fromkeys(common, _NOTHING)
    counts = Counter(item for settings in every for item in (nothing | settings).items())
    return {path: value for (path, value), count in counts.items() if 2 * count > len(every)}


def _difference(settings: Settings, usual: Settings) -> Settings:
    changed = {path: value for path, value in settings.items() if usual.get(path) != value}
    return changed | {path: _NOTHING for path, value in usual.items() if value != _NOTHING and path not in settings}


def _lines(changes: Mapping[str, Settings]) -> list[str]:
    """A line for all names with the same changes."""
    names: dict[str, list[str]] = {}
    for name, settings in changes.items():
        if settings:
            names.setdefault(_words(settings), []).append(name)
    return [f"{'; '.join(same)}: {words}" for words, same in names.items()]


def _words(settings: Settings) -> str:
    named = {path.removesuffix(".name"): value for path, value in settings.items()}
    return ", ".join(f"{path} {value}" for path, value in sorted(named.items()))
