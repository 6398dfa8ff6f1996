"""Formats of stored experiments and checkpoints, and the functions that bring older ones up to date.

To change a format, add a function under the number of the format that it reads. A key that is only renamed needs an
entry in `RENAMES`. A default that changes needs no upgrade: runs store the defaults that they began with. A new option
whose default computes something else than before needs one: older runs get the value that continues them as they were.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from fnmatch import fnmatchcase
from typing import Any, NamedTuple

from undergrowth import __version__
from undergrowth.core import InputError, State
from undergrowth.simulation.old_snapshots import upgrade_from_1, upgrade_from_2

Raw = dict[str, Any]


class Rename(NamedTuple):
    """A key of an experiment that has a new name."""

    format: int  # the first format of stored experiments with the new name
    section: str
    old: str
    new: str
    method: str | None = None  # the method whose option it is

    def applies_to(self, raw: Mapping[str, Any]) -> bool:
        """Whether the dictionary of an experiment contains the old key."""
        section = raw.get(self.section)
        if not isinstance(section, Mapping) or self.old not in section:
            return False
        return self.method is None or section.get("name") == self.method


RENAMES = (Rename(1, "train", "selection", "sampler"), Rename(1, "method", "selection", "selector", method="fedsplit"))

_FINE_TUNING = ("fedft", "fedft-rds", "fedft-eds")

# Format 0 did not store the defaults of options; these have changed since.
_DEFAULTS_OF_FORMAT_0 = {name: {"epochs": 5} for name in _FINE_TUNING}


def _add_defaults(document: Raw) -> Raw:
    return {**document, "defaults": {"method": _DEFAULTS_OF_FORMAT_0.get(document["settings"]["method"]["name"], {})}}


def _move_warm_rounds(document: Raw) -> Raw:
    """Warm rounds were an option of `fedft` and part of its rounds; the section `start` has them for every method."""
    settings, defaults = document["settings"], document["defaults"]
    method, default = settings["method"], defaults.get("method", {})
    if method["name"] not in _FINE_TUNING:
        return document
    settings = {**settings, "method": _without(method, "warm_rounds")}
    if warm_rounds := method.get("warm_rounds", 0):
        model = settings["model"]
        settings["model"] = _without(model, "weights", "skip_head")
        start = {"warm_rounds": warm_rounds, "warm_epochs": settings["train"]["epochs"]}
        settings["start"] = {"weights": model.get("weights"), **start}
    return {**document, "settings": settings, "defaults": {**defaults, "method": _without(default, "warm_rounds")}}


def _without(section: Mapping[str, Any], *keys: str) -> Raw:
    return {name: value for name, value in section.items() if name not in keys}


# Before format 2, `init` was not an option of models; their weights started like this.
_INIT_BEFORE_2 = {
    "torch": ("logistic", "mlp", "lstm", "lstm-words"),
    "he-in": ("cnn",),
    "he-out": ("wrn-*", "resnet-8", "resnet-18", "resnet-34", "vgg-16", "mobilenetv3-small", "efficientnet-b0"),
}


def _init_before_2(name: str) -> Raw:
    for init, names in _INIT_BEFORE_2.items():
        if any(fnmatchcase(name, pattern) for pattern in names):
            return {"init": init}
    return {}  # a model object of the user


def _add_init(document: Raw) -> Raw:
    model, defaults = document["settings"]["model"], document["defaults"]
    added = {"model": {**defaults.get("model", {}), **_init_before_2(model["name"])}}
    for number, rung in enumerate(model.get("ladder", ())):
        added[f"model.ladder.{number}"] = _init_before_2(rung["name"])
    return {**document, "defaults": {**defaults, **added}}


# Options that format 1 did not have, with the values that runs of that time used.
_OPTIONS_NEW_IN_FORMAT_2: dict[str, Raw] = {
    "fedat": {"form": "printed"},
    **{name: {"statistics": False} for name in ("heterofl", "fjord", "fedrolex")},
}


def _add_new_options(document: Raw) -> Raw:
    defaults = document["defaults"]
    added = _OPTIONS_NEW_IN_FORMAT_2.get(document["settings"]["method"]["name"], {})
    return {**document, "defaults": {**defaults, "method": {**defaults.get("method", {}), **added}}}


def _go_on_if_all_refused(document: Raw) -> Raw:
    settings = document["settings"]
    return {**document, "settings": {**settings, "run": {**settings.get("run", {}), "if_all_refused": "continue"}}}


EXPERIMENT_UPGRADES: dict[int, tuple[Callable[[Raw], Raw], ...]] = {
    0: (_add_defaults,),
    1: (_add_init, _add_new_options, _move_warm_rounds),
    2: (_go_on_if_all_refused,),
}
EXPERIMENT_FORMAT = 3


# Upgrades take and return the state that a run saves. A checkpoint without a number has format 1.
CHECKPOINT_UPGRADES: dict[int, Callable[[State], State]] = {
    1: lambda state: {**state, "simulation": upgrade_from_1(state["simulation"])},
    2: lambda state: {**state, "simulation": upgrade_from_2(state["simulation"])},
}
CHECKPOINT_FORMAT = 3


def upgrade_experiment(document: Raw, found: int) -> Raw:
    """The stored experiment in the current format; `found` is the format it was stored in."""
    for number in range(found, EXPERIMENT_FORMAT):
        settings = document["settings"]
        for rename in RENAMES:
            if rename.format == number + 1 and rename.applies_to(settings):
                section = dict(settings[rename.section])
                section[rename.new] = section.pop(rename.old)
                settings = {**settings, rename.section: section}
        document = {**document, "settings": settings}
        for upgrade in EXPERIMENT_UPGRADES.get(number, ()):
            document = upgrade(document)
    return document


def upgrade_checkpoint(state: State, found: int) -> State:
    """The state in a checkpoint in the current format; `found` is the format it was stored in."""
    for number in range(found, CHECKPOINT_FORMAT):
        state = CHECKPOINT_UPGRADES[number](state)
    return state


def check_format(what: str, found: int, newest: int) -> None:
    """Refuses what a newer version of the package wrote in a format that this version does not know."""
    if found > newest:
        raise InputError(
            f"{what} was written by a newer version of undergrowth (format {found}; version {__version__} reads "
            f"formats up to {newest}); install the newer version"
        )


def refuse_old_keys(raw: Mapping[str, Any]) -> None:
    """Refuses an experiment that uses the old name of a key, and says the new one."""
    for rename in RENAMES:
        if rename.applies_to(raw):
            raise InputError(f"{rename.section}.{rename.old} is now called {rename.section}.{rename.new}; write that")
    method = raw.get("method")
    if isinstance(method, Mapping) and method.get("name") in _FINE_TUNING and "warm_rounds" in method:
        raise InputError("method.warm_rounds is now called start.warm_rounds, with start.warm_epochs; write that")
