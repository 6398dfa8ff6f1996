"""Checks that the input shape, the classes and the options of a model fit its architecture."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from os import PathLike, fspath
from pathlib import Path
from typing import TypeGuard

from torch import nn

from undergrowth.core import InputError, suggest
from undergrowth.models.architecture import Architecture, Option
from undergrowth.models.initialisation import INITS, Init

COMMON_OPTIONS = ("norm", "init", "weights", "skip_head", "projection", "image_size", "freeze")
MAX_PARAMETERS = 100_000_000_000  # 400 GB
MAX_IMAGE_SIZE = 10_000  # pixels per side


def _is_count(value: object) -> TypeGuard[int]:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 1


def check_norm(architecture: Architecture, name: str, norm: str | None) -> str:
    if norm is None:
        return next(iter(architecture.norms))
    if not isinstance(norm, str) or norm not in architecture.norms:
        raise InputError(
            f"model {name}: norm {norm!r} is not supported; choose one of: {', '.join(architecture.norms)}"
        )
    return norm


def check_init(architecture: Architecture, name: str, init: str | None) -> Init:
    """The start of the weights: `init`, or the default of the architecture."""
    if init is None:
        return architecture.init
    known = next((each for each in INITS if each == init), None)
    if known is None:
        raise InputError(f"model {name}: init {init!r} is not known; {suggest(str(init), INITS)}")
    return known


def check_start(name: str, weights: object, skip_head: object) -> Path | None:
    """The file of initial weights, or None."""
    if not isinstance(skip_head, bool):
        raise InputError(f"model {name}: skip_head must be true or false, not {skip_head!r}")
    if weights is None:
        return None
    if not isinstance(weights, str | PathLike) or not fspath(weights):
        raise InputError(f"model {name}: weights must be the path of a file, not {weights!r}")
    try:
        return Path(weights).expanduser()
    except RuntimeError as error:  # ~name of an unknown user
        raise InputError(f"model {name}: weights '{weights}': {error}") from None


def check_projection(name: str, projection: object) -> int | None:
    """The number of outputs of the projection head, or None."""
    if projection is None or _is_count(projection):
        return projection
    raise InputError(
        f"model {name}: projection must be a whole number of at least 1, such as 256, or null, not {projection!r}"
    )


def check_image_size(
    architecture: Architecture, name: str, shape: Sequence[int], image_size: object
) -> tuple[int, ...]:
    """The shape of one sample after the model has resized it."""
    if image_size is None:
        return tuple(shape)
    if not _is_count(image_size) or image_size > MAX_IMAGE_SIZE:
        raise InputError(
            f"model {name}: image_size must be a number of pixels per side from 1 to {MAX_IMAGE_SIZE}, such as 128, "
            f"not {image_size!r}"
        )
    if architecture.takes == "tokens" or len(shape) != 3:
        raise InputError(f"model {name}: image_size {image_size} is for images, not for inputs of shape {tuple(shape)}")
    return shape[0], image_size, image_size


def check_freeze(name: str, freeze: object) -> str | None:
    """The level below which nothing is trained, or None. Whether the model has it is seen when it is built."""
    if freeze is None or isinstance(freeze, str):
        return freeze
    raise InputError(f"model {name}: freeze must be the name of a split level, such as head, not {freeze!r}")


def check_classes(name: str, classes: int) -> int:
    if not _is_count(classes):
        raise InputError(f"model {name}: classes must be a whole number of at least 1, not {classes!r}")
    return classes


def check_shape(architecture: Architecture, name: str, shape: Sequence[int], norm: str) -> tuple[int, ...]:
    """The shape of one sample, without the batch dimension."""
    sizes = tuple(shape)
    if not sizes or not all(map(_is_count, sizes)):
        raise InputError(f"model {name}: the input shape must be whole numbers of at least 1, not {sizes}")
    if architecture.takes == "tokens" and len(sizes) != 1:
        raise InputError(f"model {name}: takes sequences of tokens, of shape (length,), not inputs of shape {sizes}")
    if architecture.takes == "images":
        _check_image(architecture, name, sizes, norm)
    return sizes


def _check_image(architecture: Architecture, name: str, shape: tuple[int, ...], norm: str) -> None:
    if len(shape) != 3:
        hint = {1: "use mlp or logistic for a table", 2: f"did you mean {(1, *shape)}?"}.get(len(shape), "")
        sentence = f"model {name}: takes images of shape (channels, height, width), not inputs of shape {shape}"
        raise InputError(f"{sentence}; {hint}" if hint else sentence)
    smallest = architecture.norms[norm]
    if min(shape[1:]) < smallest:
        others = [kind for kind, side in architecture.norms.items() if side <= min(shape[1:])]
        hint = f"; norm '{others[0]}' works" if others else ""
        raise InputError(
            f"model {name}: with norm '{norm}' it needs images of at least {smallest}×{smallest} pixels, "
            f"not {shape[1]}×{shape[2]}{hint}"
        )


def check_positions(
    architecture: Architecture, name: str, options: Mapping[str, Option], tokens: int
) -> dict[str, Option]:
    """The size of the vocabulary, which has room for the tokens. Refuses a model with one output for a sequence."""
    if not architecture.per_position:
        raise InputError(
            f"model {name}: the task next-token needs outputs for every position; use lstm or your own model"
        )
    vocabulary = options["vocabulary"]
    assert isinstance(vocabulary, int)
    return {"vocabulary": max(vocabulary, tokens)}


def check_options(architecture: Architecture, name: str, given: Mapping[str, object]) -> dict[str, Option]:
    """All options: the given values, and the defaults of the others."""
    for key in given:
        if key not in architecture.options:
            hint = suggest(key, [*architecture.options, *COMMON_OPTIONS])
            raise InputError(f"model {name}: unknown option '{key}'; {hint}")
    return {
        key: _check_option(name, key, given[key], default) if key in given else default
        for key, default in architecture.options.items()
    }


def _check_option(name: str, key: str, value: object, default: Option) -> Option:
    if default is None:
        if value is not None and not isinstance(value, str | PathLike):
            raise InputError(f"model {name}: option {key} must be the path of a file, not {value!r}")
        return None if value is None else fspath(value)
    if isinstance(default, float):
        if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < 1:
            raise InputError(
                f"model {name}: option {key} must be a probability from 0 to below 1, such as 0.3, not {value!r}"
            )
        return float(value)
    if isinstance(default, tuple):
        values = value if isinstance(value, list | tuple) else (value,)
        if not all(map(_is_count, values)):
            raise InputError(
                f"model {name}: option {key} must be a list of whole numbers of at least 1, "
                f"such as {list(default)}, not {value!r}"
            )
        return tuple(values)
    if not _is_count(value):
        raise InputError(
            f"model {name}: option {key} must be a whole number of at least 1, such as {default}, not {value!r}"
        )
    return value


def check_parameters(name: str, build: Callable[[], nn.Module]) -> nn.Module:
    """The module without memory that `build` makes. Refuses one with more parameters than fit into any memory."""
    try:
        module = build()
        count = sum(parameter.numel() for parameter in module.parameters())
    except (RuntimeError, TypeError) as error:
        if "verflow" not in str(error):  # torch cannot count the bytes of a tensor
            raise
        count = MAX_PARAMETERS + 1
    if count > MAX_PARAMETERS:
        raise InputError(
            f"model {name}: it would have more than {MAX_PARAMETERS:,} parameters; give smaller options, or data with "
            f"fewer classes"
        )
    return module
