"""Levels: the named places at which a module can be split, and what is below and above each of them.

A level is named after a submodule: the features at the level are the input of that submodule, the part below is
everything that runs before it, and the part above is that submodule and everything after it.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from itertools import pairwise

from torch import nn

from undergrowth.core.calls import CallRecord
from undergrowth.core.errors import InputError, suggest

THIRDS = ("low", "mid", "up")  # levels after each third of the blocks of a module, if its levels are guessed
_ACTIVATIONS = nn.ReLU.__module__


@dataclass(frozen=True)
class Levels:
    """Facts about the split levels of a module. Copies of a model on other torch devices share them."""

    names: Mapping[str, str]  # level → first submodule above the split
    stages: tuple[str, ...] = ()  # of an nn.Sequential all of whose levels are between stages
    record: CallRecord | None = None  # of a module without stages
    guessed: bool = False  # whether the names are a guess and not the user's
    crossed: Mapping[str, str] = field(default_factory=dict)  # submodule whose input is not all that is needed → why
    places: Mapping[str, int] = field(default_factory=dict)  # submodule → its position in the order of execution
    used: set[str] = field(default_factory=set)  # levels that were asked for

    def position(self, level: str) -> int:
        """The position of a level in the order of execution. Raises `InputError` if there is no such level."""
        if level not in self.names:
            hint = suggest(level, self.names) if self.names else "it has none"
            raise InputError(f"split '{level}' is not a level of this model; {hint}")
        self.used.add(level)
        return self.places[self.names[level]]

    def is_above(self, name: str, level: str) -> bool:
        """Whether a submodule or a weight belongs to the part above `level`.

        A weight belongs to the submodule that holds it. A submodule that is never called itself, such as the output
        projection of `nn.MultiheadAttention`, belongs to the submodule around it.
        """
        position = self.position(level)
        while name not in self.places and name:
            name = name.rpartition(".")[0]
        return self.places.get(name, -1) >= position

    def check_split(self, level: str) -> None:
        """Raises `InputError` if the features at `level` are not all that the part above needs."""
        self.position(level)
        if not self.stages and self.record is None:
            raise InputError(f"split '{level}': the model cannot run from features before it has seen an input")
        if self.names[level] in self.crossed:
            raise InputError(f"split '{level}': {self.crossed[self.names[level]]}")

    def with_crossings(self, problems: Mapping[str, str]) -> Levels:
        """The levels after a check. `problems`: level at which features are not all that the part above needs → why.

        A guessed level with a problem moves up to the next level.
        """
        names = dict(self.names)
        if self.guessed:
            for level, above in reversed(list(pairwise(names))):
                names[level] = names[above] if level in problems else names[level]
        return replace(self, names=names, crossed={self.names[level]: why for level, why in problems.items()})


def find_levels(module: nn.Module, named: Mapping[str, str] | None = None, record: CallRecord | None = None) -> Levels:
    """The levels that `named` or the attribute `levels` of a module names, or else a guess.

    Without a record of the module's calls the guess is `head` alone, and the order of submodules is that of their
    definition.
    """
    named = getattr(module, "levels", None) if named is None else named
    order = [name for name, _ in module.named_modules()] if record is None else [call.name for call in record.calls]
    stages = tuple(module._modules) if isinstance(module, nn.Sequential) else ()
    if named is not None:
        names = _check_names(module, named)
    else:
        head = _find_head(module, stages or tuple(order))
        thirds = {} if head is None or record is None else _thirds(module, record, head)
        names = {} if head is None else {**thirds, "head": head}
    if not set(stages).issuperset(names.values()):
        stages = ()
    places = {name: place for place, name in enumerate(stages or dict.fromkeys(order))}
    for level, name in names.items():
        if name not in places:
            raise InputError(f"model.levels: {level} is '{name}', which is not called in a forward pass of the model")
    return Levels(names, stages, record, named is None, places=places)


def _check_names(module: nn.Module, named: Mapping[str, str]) -> dict[str, str]:
    known = [name for name, _ in module.named_modules() if name]
    for level, name in named.items():
        if name not in known:
            problem = f"model.levels: {level} is '{name}', which is no submodule of {type(module).__name__}"
            raise InputError(f"{problem}; {suggest(name, known)}")
    return dict(named)


def _find_head(module: nn.Module, order: tuple[str, ...]) -> str | None:
    """The last stage with parameters of an nn.Sequential, or the last linear layer of another module."""
    layers = [(name, module.get_submodule(name)) for name in order]
    if isinstance(module, nn.Sequential):
        found = [name for name, layer in layers if any(True for _ in layer.parameters())]
    else:
        found = [name for name, layer in layers if isinstance(layer, nn.Linear)]
    return found[-1] if found else None


def _thirds(module: nn.Module, record: CallRecord, head: str) -> dict[str, str]:
    """The levels low, mid and up: after the first, the second and the last third of the blocks below the head.

    Blocks are the outermost submodules with matrices or filters. An nn.Sequential is taken apart if there are fewer
    than three.
    """
    calls, end = record.calls, record.position(head)
    around = set(calls[end].inside)
    first = [place for place, call in enumerate(calls) if record.position(call.name) == place]

    def has_matrices(place: int) -> bool:
        return any(value.dim() > 1 for value in module.get_submodule(calls[place].name).parameters())

    candidates = [place for place in first if place < end and place not in around and has_matrices(place)]
    blocks = [place for place in candidates if around.issuperset(calls[place].inside)]
    while len(blocks) < len(THIRDS):
        chains = [place for place in blocks if isinstance(module.get_submodule(calls[place].name), nn.Sequential)]
        if not chains:
            break
        parts = [place for place in candidates if calls[place].inside[-1] == chains[-1]]
        blocks = sorted({*blocks, *parts} - {chains[-1]})
    if not blocks:
        return {}
    # The last third ends before the next submodule that is no activation: pooling, or the head.
    rest = [calls[place].name for place in first if place > blocks[-1] and blocks[-1] not in calls[place].inside]
    after = next(name for name in rest if type(module.get_submodule(name)).__module__ != _ACTIVATIONS)
    cuts = [*(calls[place].name for place in blocks[1:]), after]  # the submodule after each block
    return {level: cuts[math.ceil(len(cuts) * third / len(THIRDS)) - 1] for third, level in enumerate(THIRDS, 1)}
