"""Reads a model's weights from a file and refuses, with names and shapes, what does not fit."""

from __future__ import annotations

from os import PathLike
from pathlib import Path

import torch
from safetensors.torch import load_file
from torch import Tensor, nn

from undergrowth.core.errors import InputError

PICKLED = (".pt", ".pth", ".th", ".bin")
NAMED_AT_MOST = 3


def load_weights(module: nn.Module, path: str | PathLike[str], *, skip_head: bool = False) -> None:
    """Loads `.safetensors`, or `.pt`, `.pth`, `.th`, `.bin` without running code from the file.

    The file holds a state dict, or a checkpoint with one under "state_dict"; a "module." before every name is
    dropped. Every tensor of the module must be in the file with its shape, and nothing else. With `skip_head`
    the file's head, whatever its shape, is left out and the module's own is kept. The module is changed
    wholly or not at all.
    """
    module.load_state_dict(check_weights(module, path, skip_head=skip_head), strict=not skip_head)


def check_weights(module: nn.Module, path: str | PathLike[str], *, skip_head: bool = False) -> dict[str, Tensor]:
    """The tensors of the file that the module would load; InputError where they do not fit."""
    path = Path(path)
    found = _read(path)
    wanted = module.state_dict()
    head = _head_prefix(module)
    if skip_head:
        if head is None:
            raise InputError("skip_head: this model names no level 'head', so there is no head to keep")
        found = {name: tensor for name, tensor in found.items() if not name.startswith(head)}
        wanted = {name: tensor for name, tensor in wanted.items() if not name.startswith(head)}

    misfits = [name for name in wanted if name not in found or found[name].shape != wanted[name].shape]
    misfits += [name for name in found if name not in wanted]
    if misfits:
        shown = "; ".join(_difference(name, found, wanted) for name in misfits[:NAMED_AT_MOST])
        more = f"; and {len(misfits) - NAMED_AT_MOST} more" if len(misfits) > NAMED_AT_MOST else ""
        only_head = head is not None and all(name.startswith(head) for name in misfits)
        hint = "; only the head differs: skip_head=True keeps a fresh one" if only_head else ""
        raise InputError(f"weights: '{path}' does not fit the model: {shown}{more}{hint}")
    return found


def _head_prefix(module: nn.Module) -> str | None:
    levels = getattr(module, "levels", None)
    return f"{levels['head']}." if isinstance(levels, dict) and "head" in levels else None


def _difference(name: str, found: dict[str, Tensor], wanted: dict[str, Tensor]) -> str:
    if name not in found:
        return f"{name} ({_size(wanted[name])}) is not in the file"
    if name not in wanted:
        return f"{name} ({_size(found[name])}) is not in the model"
    return f"{name} is {_size(found[name])} in the file and {_size(wanted[name])} in the model"


def _size(tensor: Tensor) -> str:
    return "×".join(map(str, tensor.shape)) or "a single number"


def _read(path: Path) -> dict[str, Tensor]:
    if path.suffix != ".safetensors" and path.suffix not in PICKLED:
        raise InputError(f"weights: '{path}' must end in .safetensors, {', '.join(PICKLED)}")
    if not path.is_file():
        raise InputError(f"weights: there is no file '{path}'")
    try:
        if path.suffix == ".safetensors":
            content: object = load_file(path)
        else:
            content = torch.load(path, map_location="cpu", weights_only=True)
    # A damaged file can make the readers raise nearly anything.
    except Exception as error:
        raise InputError(
            f"weights: '{path}' cannot be read as a file of tensors; it is damaged, or holds more than the "
            f"state_dict() of a model ({type(error).__name__})"
        ) from error
    return _state(content, path)


def _state(content: object, path: Path) -> dict[str, Tensor]:
    if isinstance(content, dict) and isinstance(content.get("state_dict"), dict):
        content = content["state_dict"]
    if not isinstance(content, dict) or not content:
        raise InputError(f"weights: '{path}' holds no state dict, the names and tensors of a model")
    for name, value in content.items():
        if not isinstance(name, str) or not isinstance(value, Tensor):
            raise InputError(
                f"weights: '{path}' holds {name!r} of type {type(value).__name__}, where a state dict has tensors only"
            )
    # DataParallel and DistributedDataParallel put this before every name.
    if all(name.startswith("module.") for name in content):
        return {name.removeprefix("module."): tensor for name, tensor in content.items()}
    return content
