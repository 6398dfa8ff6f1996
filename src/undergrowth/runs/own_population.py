"""Checks of a population of the user: an object with the data of every device."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from numbers import Integral
from typing import Any

from torch import Tensor

from undergrowth.core import InputError, Shard
from undergrowth.core.errors import explain_errors
from undergrowth.data import Population


def check_population(population: Population) -> None:
    """Refuses attributes and results of the wrong type. Of the samples, those of one device and of the server's test
    set are looked at; the others are built when they are needed.
    """
    what = f"data '{population.name}'"
    devices, shape, classes = population.devices, population.shape, population.classes
    if not _is_sequence(devices):
        raise InputError(f"{what}: devices is a {type(devices).__name__}; it must be a tuple or list of names")
    strange = next((each for each in devices if not isinstance(each, str)), None)
    if strange is not None:
        raise InputError(f"{what}: the device name {strange!r} must be a text")
    if not _is_sequence(shape) or not all(isinstance(size, Integral) and size > 0 for size in shape):
        raise InputError(f"{what}: shape is {shape!r}; it must be the shape of one sample, such as (3, 32, 32)")
    if not isinstance(classes, Integral) or classes < 1:
        raise InputError(f"{what}: classes is {classes!r}; it must be a whole number of at least 1")
    with_samples = [device for device in devices if _size(what, population, device)]
    for device in with_samples[:1]:
        shard = _shard(what, f"train('{device}')", population.train, device)
        if tuple(shard.x.shape[1:]) != tuple(shape):
            raise InputError(
                f"{what}: a sample of train('{device}') has shape {tuple(shard.x.shape[1:])}, but shape is {shape}"
            )
        _shard(what, f"test('{device}')", population.test, device)
    _shard(what, "central_test()", population.central_test)
    public = getattr(population, "public", None)
    if public is not None:
        _shard(what, "public", lambda: public)


def _is_sequence(found: object) -> bool:
    """Arrays of numpy count as sequences; a text does not."""
    return hasattr(found, "__len__") and hasattr(found, "__getitem__") and not isinstance(found, str | Mapping)


def _size(what: str, population: Population, device: str) -> int:
    with explain_errors(f"{what}: size('{device}') failed"):
        size = population.size(device)
    if not isinstance(size, Integral) or size < 0:
        raise InputError(f"{what}: size('{device}') is {size!r}; it must be a whole number of at least 0")
    return int(size)


def _shard(what: str, written: str, function: Callable[..., Any], *arguments: Any) -> Shard:
    with explain_errors(f"{what}: {written} failed"):
        found = function(*arguments)
    if not isinstance(found, Shard):
        raise InputError(f"{what}: {written} is a {type(found).__name__}; it must be a Shard")
    if not (isinstance(found.x, Tensor) and isinstance(found.y, Tensor) and found.x.ndim and found.y.ndim):
        raise InputError(f"{what}: {written} must hold x and y as tensors with a row for each sample")
    if len(found.x) != len(found.y):
        raise InputError(f"{what}: {written} has {len(found.x)} inputs and {len(found.y)} labels; they must be equal")
    return found
