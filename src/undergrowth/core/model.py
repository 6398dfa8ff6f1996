"""Model: an `nn.Module` seen as a pure function of its weights, with named places to split it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from undergrowth.core.errors import InputError, nearest
from undergrowth.core.packet import Weights


@dataclass(frozen=True)
class Output:
    """What one forward pass gave: logits, feature maps at the levels asked for, buffers as the pass left them."""

    logits: Tensor
    maps: Mapping[str, Tensor]
    buffers: Mapping[str, Tensor]


class Model:
    """Runs a module with weights that are handed in, and never keeps them.

    An `nn.Sequential` is a chain of stages. Its attribute `levels` (level → name of the first stage above the
    split) says where it may be cut into a lower part and an upper part; without that attribute the last stage
    that has parameters is the level `head`. Any other module has the level `head` only, its last linear layer.
    """

    def __init__(self, build: Callable[[], nn.Module]) -> None:
        self.build = build
        self.device = "cpu"
        self.mixed = False  # True: training passes compute in bfloat16 what bears it; weights stay as they are
        with torch.random.fork_rng(devices=[]):
            self.module = build()
        self.parameters = tuple(name for name, _ in self.module.named_parameters())
        state = self.module.state_dict()
        self._slots = self._find_slots(set(state))
        # A tied weight has two names in the state dict. Only the first counts: the other would travel beside it,
        # never be trained, and overwrite it when the weights are loaded into a plain module.
        first = {name for _, _, name, _ in self._slots}
        self.shapes = {name: value.shape for name, value in state.items() if name in first}
        self.buffers = tuple(name for name in self.shapes if name not in set(self.parameters))
        self.stages = tuple(self.module._modules) if isinstance(self.module, nn.Sequential) else ()
        self.levels = self._find_levels()
        kinds = {type(module) for module in self.module.modules()}
        # Not with batch normalisation, which spreads a last digit over the batch: engines lay maps out in other ways.
        self._pools = nn.MaxPool2d in kinds and not kinds & {nn.BatchNorm1d, nn.BatchNorm2d}
        self._mode: str | bool | None = None
        # Levels above which one sample cannot be trained on (None: the whole model), as where batch normalisation
        # meets maps of one pixel.
        self.not_alone: frozenset[str | None] = frozenset()

    def initial(self, seed: int) -> dict[str, Tensor]:
        """Fresh weights, the same for the same seed."""
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            state = self.build().state_dict()
        return {name: state[name].detach().clone().to(self.device) for name in self.shapes}

    def to(self, device: str) -> Model:
        """Makes `initial` give weights there, and moves what is not in the weights (constant tables, say)."""
        self.module.to(device)
        self.device = device
        self._slots = self._find_slots(set(self.shapes))
        return self

    @property
    def constants(self) -> tuple[Tensor, ...]:
        """Tables that the module needs beside its weights: nobody trains, sends or stores them."""
        return tuple(table for name, table in self.module.named_buffers() if name not in self.shapes)

    def trainable(self, level: str | None = None) -> tuple[str, ...]:
        """Names of the parameters of the part above `level`, or of the whole model."""
        if level is None:
            return self.parameters
        above = self._above(level)
        return tuple(name for name in self.parameters if name.startswith(above))

    def upper_buffers(self, level: str | None = None) -> tuple[str, ...]:
        """Names of the buffers that training the part above `level` changes."""
        return self.buffers if level is None else tuple(n for n in self.buffers if n.startswith(self._above(level)))

    def smallest_batch(self, level: str | None = None) -> int:
        """Samples that training the part above `level`, or the whole model, takes at least."""
        return 2 if level in self.not_alone else 1

    def __call__(self, weights: Weights, x: Tensor) -> Tensor:
        """Logits in evaluation mode."""
        return self.run(weights, x).logits

    def run(
        self,
        weights: Weights,
        x: Tensor,
        *,
        training: str | bool = False,
        maps: Sequence[str] = (),
        start: str | None = None,
        stop: str | None = None,
    ) -> Output:
        """One forward pass.

        training: True, False, or a level: only the part above it runs in training mode.
        maps: levels at which to keep the feature maps that cross the split.
        start: a level: `x` are the feature maps at it, and only the part above runs.
        stop: a level: ends there; `logits` are then the maps that would cross that split.
        """
        own = {k: weights[k] for k in self.buffers}
        if training is not False and own:
            own = {k: v.clone() for k, v in own.items()}  # batch norm writes into its statistics
        if self._pools and x.dim() == 4 and x.device.type == "cpu":
            x = _channels_last(x)
        self._set_mode(training)
        self._bind(weights, own)
        try:
            with self._shortened(x.device.type) if self.mixed and training is not False else nullcontext():
                if not (maps or start or stop):
                    return Output(self.module(x), {}, own)
                return self._run_stages(x, maps, start, stop, own)
        finally:
            for slot, key, _, home in self._slots:
                slot[key] = home

    def _shortened(self, device: str) -> AbstractContextManager[None]:
        # Without the cache of shortened weights, which a recorded step would keep for ever.
        return torch.autocast(device, torch.bfloat16, cache_enabled=False)

    def _run_stages(
        self, x: Tensor, maps: Sequence[str], start: str | None, stop: str | None, own: Mapping[str, Tensor]
    ) -> Output:
        kept: dict[str, Tensor] = {}
        wanted: dict[int, list[str]] = {}
        for level in maps:
            wanted.setdefault(self._stage(level), []).append(level)
        first = self._stage(start) if start else 0
        last = self._stage(stop) if stop else len(self.stages)
        for at in range(first, last + 1):
            for level in wanted.get(at, ()):
                kept[level] = x
            if at < last:
                x = self.module.get_submodule(self.stages[at])(x)
        return Output(x, kept, own)

    def _bind(self, weights: Weights, buffers: Mapping[str, Tensor]) -> None:
        # Writing into the dictionaries of the module costs a tenth of torch.func.functional_call, which counts
        # for models whose step takes 200 µs; plain tensors are as good as Parameters there.
        for slot, key, name, _ in self._slots:
            slot[key] = buffers[name] if name in buffers else weights[name]

    def _find_slots(self, wanted: set[str]) -> list[tuple[dict[str, Tensor | None], str, str, Tensor | None]]:
        slots: list[tuple[dict[str, Tensor | None], str, str, Tensor | None]] = []
        canonical: dict[int, str] = {}
        for prefix, module in self.module.named_modules(remove_duplicate=False):
            for slot in (module._parameters, module._buffers):
                for key, value in slot.items():
                    name = f"{prefix}.{key}" if prefix else key
                    if value is None or name not in wanted:
                        continue
                    # Both places of a tied weight get the value of its first name.
                    name = canonical.setdefault(id(value), name)
                    slots.append((slot, key, name, value))
        return slots

    def _find_levels(self) -> dict[str, str]:
        named = getattr(self.module, "levels", None)
        if named is not None:
            return dict(named)
        if self.stages:
            last = [stage for stage in self.stages if any(True for _ in self.module.get_submodule(stage).parameters())]
            return {"head": last[-1]} if last else {}
        linear = [name for name, module in self.module.named_modules() if isinstance(module, nn.Linear)]
        return {"head": linear[-1]} if linear else {}

    def _above(self, level: str) -> tuple[str, ...]:
        first = self._level(level)
        if not self.stages:
            return (f"{first}.",)
        return tuple(f"{stage}." for stage in self.stages[self.stages.index(first) :])

    def _stage(self, level: str) -> int:
        first = self._level(level)
        if not self.stages:
            raise InputError(
                f"split '{level}': feature maps need a model that is an nn.Sequential of stages, "
                f"and {type(self.module).__name__} is not one"
            )
        return self.stages.index(first)

    def _level(self, level: str) -> str:
        if level not in self.levels:
            raise InputError(f"split '{level}' is not a level of this model; {nearest(level, self.levels)}")
        return self.levels[level]

    def _set_mode(self, training: str | bool) -> None:
        if training == self._mode:
            return
        self._mode = training
        if isinstance(training, bool):
            self.module.train(training)
            return
        self.module.eval()
        above = self._above(training)
        for name, module in self.module.named_modules():
            if f"{name}.".startswith(above):
                module.train()


def _channels_last(x: Tensor) -> Tensor:
    """The same images with their channels innermost, in which a CPU pools ten times as fast.

    Layers keep the layout of what they get. Images of one channel lie both ways already; only their strides tell.
    """
    if x.shape[1] > 1:
        return x.contiguous(memory_format=torch.channels_last)
    high, wide = x.shape[2:]
    return x.as_strided(x.shape, (high * wide, 1, wide, 1)) if x.is_contiguous() else x
