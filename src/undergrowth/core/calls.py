"""Calls: the order in which a module calls its submodules, and forward passes of a part of a module.

Hooks on all submodules record one forward pass: every call, the calls that it is inside of, and the shapes of its
output. A pass of the part below a submodule stops when that submodule is called. A pass of the part above it runs the
module's own `forward`: submodules that were called before do not compute but return blanks, tensors of the recorded
shapes, and the submodule gets the features in place of its input. Floating-point blanks are NaN, so that a value that
reaches the part above by another way, such as a skip connection, shows in the result.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from undergrowth.core.errors import InputError
from undergrowth.core.pytree import map_leaves, map_tensors

RECORDED_BATCH = 3  # samples of the recorded pass: a first dimension of this size is the batch


@dataclass(frozen=True)
class Blank:
    """Shape and type of a recorded tensor."""

    shape: tuple[int, ...]
    dtype: torch.dtype

    @staticmethod
    def like(tensor: Tensor) -> Blank:
        return Blank(tuple(tensor.shape), tensor.dtype)

    def tensor(self, batch: int, torch_device: torch.device) -> Tensor:
        """A tensor for `batch` samples: NaN, or 0 if its type has no NaN."""
        shape = (batch, *self.shape[1:]) if self.shape[:1] == (RECORDED_BATCH,) else self.shape
        value = float("nan") if self.dtype.is_floating_point else 0
        return torch.full(shape, value, dtype=self.dtype, device=torch_device)


@dataclass
class Call:
    """One call of a submodule in the recorded pass."""

    name: str
    inside: tuple[int, ...]  # positions of the calls that it is inside of, outermost first
    output: Any = None  # with a `Blank` in place of every tensor


@dataclass(frozen=True)
class CallRecord:
    """The calls of a forward pass, in order; the first is that of the module itself, whose name is empty."""

    input: Blank
    calls: tuple[Call, ...]

    def position(self, name: str) -> int:
        """The position of the first call of a submodule."""
        return next(position for position, call in enumerate(self.calls) if call.name == name)

    def skipped(self, name: str) -> dict[str, list[Any]]:
        """The outermost submodules that are called before `name`, each with the outputs of its calls in order."""
        end = self.position(name)
        around = set(self.calls[end].inside)
        outputs: dict[str, list[Any]] = {}
        for position, call in enumerate(self.calls[:end]):
            if position not in around and around.issuperset(call.inside):
                outputs.setdefault(call.name, []).append(call.output)
        return outputs


def record_calls(module: nn.Module, x: Tensor) -> CallRecord:
    """Records a forward pass of the first sample of `x`, repeated."""
    x = x[:1].expand(RECORDED_BATCH, *x.shape[1:]).clone()
    calls: list[Call] = []
    running: list[int] = []

    def enter(name: str, _layer: nn.Module, _args: Any) -> None:
        calls.append(Call(name, tuple(running)))
        running.append(len(calls) - 1)

    def leave(_layer: nn.Module, _args: Any, output: Any) -> None:
        calls[running.pop()].output = map_tensors(Blank.like, output)

    handles = []
    for name, layer in module.named_modules():
        handles.append(layer.register_forward_pre_hook(partial(enter, name)))
        handles.append(layer.register_forward_hook(leave))
    try:
        with torch.no_grad():
            module(x)
    finally:
        for handle in handles:
            handle.remove()
    return CallRecord(Blank.like(x), tuple(calls))


class _StopError(BaseException):
    """Ends a forward pass at a submodule. Not an `Exception`, which `forward` might catch."""

    def __init__(self, features: Tensor) -> None:
        super().__init__()
        self.features = features


def run_part(
    module: nn.Module,
    x: Tensor,
    maps: Mapping[str, str],
    start: str | None,
    stop: str | None,
    record: CallRecord | None = None,
) -> tuple[Tensor, dict[str, Tensor]]:
    """The result of a forward pass of a part of the module, and the inputs of the submodules in `maps` (key → name).

    start: a submodule; `x` is its input, and nothing before it computes. Needs `record`.
    stop: a submodule to end at; the result is its input.
    """
    kept: dict[str, Tensor] = {}
    with ExitStack() as hooks:
        if start is not None:
            assert record is not None
            x = _enter_at(module, x, start, record, hooks)
        for key, name in maps.items():
            _before(module, name, partial(_keep, kept, key), hooks)
        if stop is not None:
            _before(module, stop, _stop, hooks)
        try:
            result = module(x)
        except _StopError as end:
            return end.features, kept
    missing = [name for key, name in maps.items() if key not in kept] + ([] if stop is None else [stop])
    if missing:
        raise InputError(f"model.levels: '{missing[0]}' is not called in a forward pass of the model")
    return result, kept


def _keep(kept: dict[str, Tensor], key: str, features: Tensor) -> None:
    kept.setdefault(key, features)


def _stop(features: Tensor) -> None:
    raise _StopError(features)


def _before(module: nn.Module, name: str, act: Callable[[Tensor], Tensor | None], hooks: ExitStack) -> None:
    """Calls `act` with the input of a submodule whenever it is called; a tensor that it returns replaces the input."""

    def hook(_layer: nn.Module, args: tuple[Any, ...]) -> tuple[Any, ...] | None:
        if not args or not isinstance(args[0], Tensor):
            raise InputError(f"model.levels: '{name}' must be called with a tensor as its first argument")
        replaced = act(args[0])
        return None if replaced is None else (replaced, *args[1:])

    hooks.callback(module.get_submodule(name).register_forward_pre_hook(hook).remove)


def _set_forward(layer: nn.Module, forward: Callable[..., Any] | None) -> None:
    """Gives a layer a `forward` of its own, or with None that of its class again."""
    if forward is None:
        vars(layer).pop("forward")
    else:
        vars(layer)["forward"] = forward


def _enter_at(module: nn.Module, features: Tensor, start: str, record: CallRecord, hooks: ExitStack) -> Tensor:
    """Makes the module skip what it calls before `start`, which then gets `features`; returns the blank input."""
    skips = ExitStack()
    hooks.callback(skips.close)
    batch, torch_device = len(features), features.device

    def blank(leaf: Any) -> Any:
        return leaf.tensor(batch, torch_device) if isinstance(leaf, Blank) else leaf

    for name, outputs in record.skipped(start).items():
        layer, remaining = module.get_submodule(name), iter(outputs)

        def skip(*_args: Any, remaining: Iterator[Any] = remaining, **_kwargs: Any) -> Any:
            return map_leaves(blank, next(remaining))

        # A hook cannot keep `forward` from running, so an attribute of the instance hides it.
        skips.callback(_set_forward, layer, vars(layer).get("forward"))
        _set_forward(layer, skip)

    reached: list[bool] = []

    def enter(_blank: Tensor) -> Tensor | None:
        if reached:  # the submodule is called again
            return None
        reached.append(True)
        skips.close()
        return features

    _before(module, start, enter, hooks)
    return record.input.tensor(batch, torch_device)
