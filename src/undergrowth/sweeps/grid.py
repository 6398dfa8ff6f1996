"""The runs of a sweep: every combination of the choices in the dictionary of an experiment.

    run: {seed: [0, 1, 2]}                                   a choice of three values
    method: [fedavg, {name: fedprox, mu: [0.01, 0.1]}]       a choice of sections, one with a choice inside
    sweep: [{name: slow, train: {lr: 0.01}}, {name: fast}]   named variants, each with changes to the rest of the file

A setting that is a list by nature keeps its list; a list of lists is a choice between them.
"""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import product
from typing import Any

from pydantic import BaseModel

from undergrowth.core import InputError
from undergrowth.report.run_record import flatten
from undergrowth.runs.config import Experiment
from undergrowth.runs.sections import section_type
from undergrowth.sweeps.layers import Raw, as_section, merge_layers
from undergrowth.sweeps.list_settings import is_list_setting

VARIANTS = "sweep"  # the key of the named variants
_SEED = "run.seed"
MAX_RUNS = 100_000  # of a sweep: a mistake in a range would fill the memory


@dataclass(frozen=True)
class Variant:
    """One experiment of a sweep, for each of its seeds."""

    name: str
    raws: Mapping[Any, Raw]  # seed → the dictionary of the experiment; seeds are not validated yet


def expand(raw: Mapping[str, Any]) -> list[Variant]:
    """The variants of a sweep in the order of the file; the last choice varies fastest."""
    base = {key: value for key, value in raw.items() if key != VARIANTS}
    variants: list[Variant] = []
    for name, changes in _named_changes(raw.get(VARIANTS)):
        groups = _by_variant(_combinations(merge_layers(base, changes)))
        firsts = [next(iter(group.values())) for group in groups]
        labels = _labels(firsts) if len(firsts) > 1 else ["" if name else _method_name(firsts[0])]
        for label, group in zip(labels, groups, strict=True):
            variants.append(Variant(", ".join(part for part in (name, label) if part), group))
    counts = Counter(variant.name for variant in variants)
    if doubled := next((name for name, count in counts.items() if count > 1), None):
        raise InputError(f"two variants of the sweep are '{doubled}'; give them other names in `sweep`")
    return variants


def _named_changes(written: Any) -> Iterator[tuple[str, Raw]]:
    """The names of the variants, and the sections of each. Without named variants, one without name and changes."""
    if written is None:
        yield "", {}
        return
    if not isinstance(written, list) or not written:
        raise InputError(
            f"sweep {written!r} should be a list of variants, such as [{{name: fast, train: {{lr: 0.1}}}}]"
        )
    names = set()
    for number, entry in enumerate(written, 1):
        name = entry.get("name") if isinstance(entry, Mapping) else None
        if not isinstance(name, str) or not name:
            raise InputError(f"sweep: variant {number} needs a name, as in {{name: fast, train: {{lr: 0.1}}}}")
        if name in names:
            raise InputError(f"sweep: two variants have the name '{name}'; names must differ")
        names.add(name)
        yield name, {key: value for key, value in entry.items() if key != "name"}


def _combinations(raw: Mapping[str, Any]) -> list[Raw]:
    return _product({key: _choices(key, section_type(Experiment, key), value) for key, value in raw.items()})


def _choices(section: str, kind: type[BaseModel] | None, value: Any) -> list[Any]:
    """The alternatives for a section: a name, a value or a dictionary each."""
    if isinstance(value, list):
        if not value:
            raise InputError(f"{section} [] is an empty list of choices; write at least one")
        return [each for item in value for each in _choices(section, kind, item)]
    if kind is None or not isinstance(value, Mapping):
        return [as_section(section, value)]
    # Which options are lists by nature depends on the name.
    names = value["name"] if isinstance(value.get("name"), list) else [value.get("name")]
    found = []
    for name in names:
        named = {**value, "name": name} if "name" in value else value
        found += _product({key: _values(section, kind, name, key, inner) for key, inner in named.items()})
    return found


def _values(section: str, kind: type[BaseModel], name: Any, key: str, value: Any) -> list[Any]:
    """The alternatives for one key of a section."""
    inner = section_type(kind, key)
    if inner is not None and not is_list_setting(section, kind, name, key):
        return _choices(key, inner, value)
    if not isinstance(value, list):
        return [value]
    if is_list_setting(section, kind, name, key) and not (value and all(isinstance(item, list) for item in value)):
        return [value]
    if not value:
        raise InputError(f"{section}.{key} [] is an empty list of choices; write at least one")
    return list(value)


def _product(choices: Mapping[str, list[Any]]) -> list[Raw]:
    runs = math.prod(len(values) for values in choices.values())
    if runs > MAX_RUNS:
        raise InputError(f"the lists of the sweep have {runs:,} combinations; write at most {MAX_RUNS:,}")
    return [dict(zip(choices, chosen, strict=True)) for chosen in product(*choices.values())]


def _by_variant(raws: list[Raw]) -> list[dict[Any, Raw]]:
    """Experiments that differ only in their seed, together."""
    groups: dict[str, dict[Any, Raw]] = {}
    for raw in raws:
        settings = raw.get("run")
        seed = settings.get("seed", 0) if isinstance(settings, Mapping) else 0
        seed = seed if isinstance(seed, int) else repr(seed)  # validation refuses what is not a number later
        group = groups.setdefault(json.dumps(_without_seed(raw), sort_keys=True, default=repr), {})
        if seed in group:
            raise InputError(f"two runs of the sweep are equal, with run.seed {seed!r}; write every choice once")
        group[seed] = raw
    return list(groups.values())


def _labels(raws: list[Raw]) -> list[str]:
    """For each experiment the settings in which it differs from the others, in a few words."""
    flat = [_without_seed(raw) for raw in raws]
    paths = dict.fromkeys(path for each in flat for path in each)
    changed = [path for path in paths if any(each.get(path) != flat[0].get(path) for each in flat)]
    if any(path.startswith("method.") for path in changed):  # the name of the method first, also if it is the same
        changed = ["method.name", *(path for path in changed if path != "method.name")]
    labels = [", ".join(_part(path, each[path]) for path in changed if each.get(path) is not None) for each in flat]
    if len(set(labels)) < len(labels):
        labels = [", ".join(f"{path} {each.get(path)}" for path in changed) for each in flat]
    return [label or "default" for label in labels]


def _method_name(raw: Raw) -> str:
    return str(_without_seed(raw).get("method.name", Experiment().method.name))


def _part(path: str, value: Any) -> str:
    section, _, key = path.partition(".")
    if key == "name" or (not key and isinstance(value, str)):
        return str(value)
    return f"{key or section} {value}"


def _without_seed(raw: Mapping[str, Any]) -> dict[str, Any]:
    """Every setting of an experiment by its path, such as "train.lr", but for the seed."""
    flat = flatten({section: as_section(section, value) for section, value in raw.items()})
    return {path: value for path, value in flat.items() if path != _SEED}
