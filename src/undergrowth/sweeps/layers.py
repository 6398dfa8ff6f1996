"""Raw experiments in layers: later ones change earlier ones."""

from __future__ import annotations

from typing import Any

Raw = dict[str, Any]

# Keys of a section that stay when a later layer names another method, data set or model.
_GENERAL_KEYS = {"data": ("partition", "clients", "holdout"), "public": ("samples", "share", "missing", "labelled")}
_NAMED_SECTIONS = ("method", "data", "public", "model", "fleet")


def merge_layers(*layers: Raw) -> Raw:
    """Merge raw experiments section by section. Later layers override earlier ones, key by key.

    A section that names another method, data set or model drops the options of the earlier one.
    """
    merged: Raw = {}
    for layer in layers:
        for section, value in layer.items():
            merged[section] = merge_section(section, merged.get(section), value)
    return merged


def merge_section(section: str, earlier: Any, later: Any) -> Any:
    """One section of `merge_layers`."""
    later, earlier = as_section(section, later), as_section(section, earlier)
    if not isinstance(later, dict):
        return later
    if isinstance(earlier, list) and "name" not in later:  # choices of a sweep: each of them is changed
        return [merge_section(section, each, later) for each in earlier]
    earlier = earlier if isinstance(earlier, dict) else {}
    if "name" in earlier and later.get("name", earlier["name"]) != earlier["name"]:
        earlier = {key: earlier[key] for key in _GENERAL_KEYS.get(section, ()) if key in earlier}
    return {**earlier, **later}


def as_section(section: str, value: Any) -> Any:
    """`value` with a bare name written out as {"name": value}, if the section may be one."""
    return {"name": value} if isinstance(value, str) and section in _NAMED_SECTIONS else value
