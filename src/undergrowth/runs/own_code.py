"""The code behind objects of the user: a model, a loss and metrics that were given to `ug.run` itself.

A run stores hashes of their source and of the layers that they make, because names and shapes of weights are the same
with another activation. A resumed run must find the same. Of a lambda only what it makes is compared: its source is
the line that it is written on, which differs between `ug.run` and `ug.resume`.
"""

from __future__ import annotations

import functools
import hashlib
import inspect
import re
import sysconfig
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from types import FunctionType
from typing import Any

from torch import nn

from undergrowth.core import Task

LAYERS = "the model's layers"
_INSTALLED = tuple(sysconfig.get_path(kind) for kind in ("purelib", "platlib", "stdlib"))


def code_hashes(given: Mapping[str, Any], task: Task) -> dict[str, str]:
    """A hash for each piece of code, by its name in messages.

    `given`: the objects of the user, by the argument of `run` that they came with.
    """
    texts: dict[str, str] = {}
    modules = [model.module for model in (task.model, *task.ladder.values())] if given.get("model") else []
    classes = {type(each) for module in modules for each in module.modules()}
    functions = [given.get("model"), given.get("loss"), *(given.get("metrics") or {}).values()]
    every = dict.fromkeys((*map(_unwrapped, functions), *sorted(classes, key=lambda kind: kind.__qualname__)))
    for found in every:
        if found is not None and (text := _source(found)):
            texts[found.__name__] = texts.get(found.__name__, "") + text
    if modules:
        lines = [line for module in modules for line in (repr(module), *_attributes(module))]
        texts[LAYERS] = re.sub(" at 0x[0-9a-f]+", "", "\n".join(lines))  # addresses differ in every process
    return {name: hashlib.sha256(text.encode()).hexdigest() for name, text in texts.items()}


def changed_code(before: Mapping[str, str], given: Mapping[str, Any], task: Task) -> list[str]:
    """The names of the pieces of code whose hash is not that in `before`."""
    now = code_hashes(given, task)
    return [name for name, found in before.items() if name in now and now[name] != found]


def _unwrapped(function: Any) -> Any:
    while isinstance(function, functools.partial):
        function = function.func
    return function if isinstance(function, FunctionType | type) or function is None else type(function)


def _source(found: Any) -> str:
    """The source of a function or class, if it can be had and is not that of an installed package."""
    if found.__name__ == "<lambda>" or (found.__module__ or "").partition(".")[0] in ("torch", "undergrowth"):
        return ""
    with suppress(OSError, TypeError):
        if (inspect.getsourcefile(found) or "").startswith(_INSTALLED):
            return ""
        return inspect.cleandoc(inspect.getsource(found))
    # Of a class in a notebook, only the functions have a source.
    functions = (
        [each for each in vars(found).values() if isinstance(each, FunctionType)] if isinstance(found, type) else []
    )
    return "\n".join(map(_source, functions))


def _attributes(module: nn.Module) -> Iterator[str]:
    """What `repr` does not show of layers of the user: numbers with a fraction, texts, and functions by name.

    Whole numbers are left out, because a layer may count its calls.
    """
    for name, layer in module.named_modules():
        for key, value in vars(layer).items():
            if key.startswith("_") or type(layer).__module__.startswith("torch."):
                continue
            if isinstance(value, bool | float | str) and key != "training":
                yield f"{name}.{key} = {value!r}"
            elif isinstance(value, Callable) and hasattr(value, "__name__"):  # type: ignore[arg-type]
                yield f"{name}.{key} = {value.__name__}"
