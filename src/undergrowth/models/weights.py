"""Loads the weights of a model from a file; an error lists the names and shapes that do not fit."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from os import PathLike
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file
from torch import Tensor, nn

from undergrowth.core import InputError
from undergrowth.learning.adapters import with_adapted_names
from undergrowth.models.published import with_own_names

PICKLE_SUFFIXES = (".pt", ".pth", ".th", ".bin")
MAX_NAMES_IN_MESSAGE = 3


@dataclass(frozen=True)
class WithWeights:
    """Builds a module with `build` and loads the file `weights` into it. It is plain data if `build` is."""

    build: Callable[[], nn.Module]
    weights: Path
    skip_head: bool | None = False  # as in `load_weights`

    def __call__(self) -> nn.Module:
        module = self.build()
        load_weights(module, self.weights, skip_head=self.skip_head)
        return module

    @property
    def without_file(self) -> Callable[[], nn.Module]:
        """Builds the same module with random weights, for `Model.initial`."""
        inner: Callable[[], nn.Module] = getattr(self.build, "without_file", self.build)
        return inner

    @property
    def ladder(self) -> Mapping[str, Any]:
        """The smaller models that belong to the model, if it is an object that has any."""
        return getattr(self.build, "ladder", {})


def load_weights(module: nn.Module, path: str | PathLike[str], *, skip_head: bool | None = False) -> None:
    """Loads a `.safetensors`, `.pt`, `.pth`, `.th` or `.bin` file without running code from it.

    The file contains a state dict, or a checkpoint with one under "state_dict". If every name starts with "module.",
    the prefix is dropped. The names and shapes must be those of the module, or those of the published file for its
    architecture; of two names for one tied weight, the file needs only the first. With `skip_head` the head of the file
    is ignored and the module keeps its head; None: only if the two heads have different shapes. If loading fails, the
    module is unchanged.
    """
    module.load_state_dict(check_weights(module, path, skip_head=skip_head), strict=False)


def check_weights(module: nn.Module, path: str | PathLike[str], *, skip_head: bool | None = False) -> dict[str, Tensor]:
    """The tensors of the file that the module would load. Raises an `InputError` if they do not fit."""
    tensors = check_tensors(module, _read(Path(path)), f"weights: '{path}'", skip_head=skip_head)
    trained = dict(module.named_parameters())
    for name, tensor in tensors.items():  # a buffer may hold infinite numbers, such as the mask of attention
        if tensor.isnan().any() or (name in trained and tensor.isinf().any()):
            raise InputError(f"weights: '{path}' holds NaN or an infinite number in {name}; name a file without")
    return tensors


def check_tensors(
    module: nn.Module, found: Mapping[str, Tensor], origin: str, *, skip_head: bool | None = False
) -> dict[str, Tensor]:
    """The tensors among `found` that the module would load. `origin`: what they are, for the `InputError`."""
    wanted = module.state_dict(keep_vars=True)
    found = with_adapted_names(wanted, with_own_names(module, found))
    head = _head_prefixes(module, found)
    if skip_head is None:
        skip_head = head is not None and any(name.startswith(head) for name in _misfits(found, wanted))
        if skip_head and all(name.startswith(head or ()) for name in found):
            raise InputError(f"{origin} has nothing but another head for this model, which keeps its own")
    if skip_head:
        if head is None:
            raise InputError("skip_head: this model has no level 'head'")
        found = {name: tensor for name, tensor in found.items() if not name.startswith(head)}
        wanted = {name: tensor for name, tensor in wanted.items() if not name.startswith(head)}

    misfits = _misfits(found, wanted)
    if misfits:
        shown = "; ".join(_difference(name, found, wanted) for name in misfits[:MAX_NAMES_IN_MESSAGE])
        more = f"; and {len(misfits) - MAX_NAMES_IN_MESSAGE} more" if len(misfits) > MAX_NAMES_IN_MESSAGE else ""
        only_head = head is not None and all(name.startswith(head) for name in misfits)
        hint = "; only the head differs: skip_head=True keeps the head of the model" if only_head else ""
        raise InputError(f"{origin} does not fit the model: {shown}{more}{hint}")
    return found


def _misfits(found: Mapping[str, Tensor], wanted: Mapping[str, Tensor]) -> list[str]:
    """The names that are missing on one side or have different shapes."""
    first_names = {id(tensor): name for name, tensor in reversed(list(wanted.items()))}
    needed = set(first_names.values())
    misfits = [
        name
        for name, tensor in wanted.items()
        if (name in needed if name not in found else found[name].shape != tensor.shape)
    ]
    return misfits + [name for name in found if name not in wanted]


def _head_prefixes(module: nn.Module, found: Mapping[str, Tensor]) -> tuple[str, ...] | None:
    """How the names of the head begin. A projection that the file does not have is new like a head of another shape."""
    levels = getattr(module, "levels", None)
    if not isinstance(levels, dict) or "head" not in levels:
        return None
    is_new = "projection" in levels and not any(name.startswith("projection.") for name in found)
    return (f"{levels['head']}.", *(["projection."] if is_new else []))


def _difference(name: str, found: Mapping[str, Tensor], wanted: Mapping[str, Tensor]) -> str:
    if name not in found:
        return f"{name} ({_size(wanted[name])}) is not in the file"
    if name not in wanted:
        return f"{name} ({_size(found[name])}) is not in the model"
    return f"{name} is {_size(found[name])} in the file and {_size(wanted[name])} in the model"


def _size(tensor: Tensor) -> str:
    return "×".join(map(str, tensor.shape)) or "a single number"


def _read(path: Path) -> dict[str, Tensor]:
    if path.suffix != ".safetensors" and path.suffix not in PICKLE_SUFFIXES:
        raise InputError(f"weights: '{path}' must end in .safetensors, {', '.join(PICKLE_SUFFIXES)}")
    if not path.is_file():
        raise InputError(f"weights: there is no file '{path}'")
    try:
        path.open("rb").close()
    except OSError as error:
        raise InputError(f"weights: '{path}' cannot be read: {error.strerror}") from None
    try:
        if path.suffix == ".safetensors":
            content: object = load_file(path)
        else:
            content = torch.load(path, map_location="cpu", weights_only=True)
    # A damaged file can make the readers raise almost any error.
    except Exception as error:
        raise InputError(
            f"weights: '{path}' cannot be read as a file of tensors; it is damaged, or contains more than the "
            f"state_dict() of a model ({type(error).__name__})"
        ) from error
    return _state(content, path)


def _state(content: object, path: Path) -> dict[str, Tensor]:
    if isinstance(content, dict) and isinstance(content.get("state_dict"), dict):
        content = content["state_dict"]
    if not isinstance(content, dict) or not content:
        raise InputError(f"weights: '{path}' contains no state dict, the names and tensors of a model")
    for name, value in content.items():
        if not isinstance(name, str) or not isinstance(value, Tensor):
            raise InputError(
                f"weights: '{path}' contains {name!r} of type {type(value).__name__}, but a state dict has only tensors"
            )
    # DataParallel and DistributedDataParallel add this prefix to every name.
    if all(name.startswith("module.") for name in content):
        return {name.removeprefix("module."): tensor for name, tensor in content.items()}
    return content
