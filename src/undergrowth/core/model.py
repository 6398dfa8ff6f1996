"""Model: an `nn.Module` as a pure function of its weights, with named levels at which it can be split."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import InitVar, dataclass, field
from itertools import chain

import torch
from torch import Tensor, nn

from undergrowth.core.binding import BoundModule, channels_last
from undergrowth.core.errors import InputError, suggest
from undergrowth.core.packet import Weights


@dataclass(frozen=True)
class Output:
    """Result of one forward pass: logits, feature maps at the requested levels, buffers after the pass."""

    logits: Tensor
    maps: Mapping[str, Tensor]
    buffers: Mapping[str, Tensor]


@dataclass(frozen=True, eq=False)
class Model:
    """Runs the module that `build` returns with weights passed in by the caller; it stores none.

    An `nn.Sequential` is a chain of stages. Its attribute `levels` (level → name of the first stage above the split)
    names the places where it can be split into a lower and an upper part. Without that attribute the last stage that
    has parameters is the level `head`. Any other module has only the level `head`: its last linear layer.
    """

    build: Callable[[], nn.Module]
    torch_device: str = "cpu"  # where `initial` makes weights
    mixed: bool = False  # training passes compute in bfloat16 where autocast allows it; weights keep their type
    not_alone: frozenset[str | None] = frozenset()  # levels above which training needs two samples; None: all layers
    bound: InitVar[BoundModule | None] = None  # the module, if it was built before

    binding: BoundModule = field(init=False, repr=False)
    module: nn.Module = field(init=False, repr=False)
    parameters: tuple[str, ...] = field(init=False, repr=False)  # names of what is trained
    buffers: tuple[str, ...] = field(init=False, repr=False)  # names of persistent state such as BatchNorm statistics
    shapes: Mapping[str, torch.Size] = field(init=False, repr=False)  # of parameters and buffers
    stages: tuple[str, ...] = field(init=False, repr=False)
    levels: Mapping[str, str] = field(init=False, repr=False)  # level → first stage, or layer, above the split

    def __post_init__(self, bound: BoundModule | None) -> None:
        if bound is None:
            with torch.random.fork_rng(devices=[]):
                bound = BoundModule(self.build())
        facts = ("module", "parameters", "buffers", "shapes", "stages", "levels")
        vars(self).update(binding=bound, **{name: getattr(bound, name) for name in facts})

    def initial(self, seed: int) -> dict[str, Tensor]:
        """Fresh weights, the same for the same seed."""
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            state = self.build().state_dict()
        return {name: state[name].detach().clone().to(self.torch_device) for name in self.shapes}

    def to(self, torch_device: str) -> Model:
        """The model on another torch device: its initial weights, and tensors of the module that are no weights."""
        if torch_device == self.torch_device:
            return self
        bound = BoundModule(copy.deepcopy(self.module).to(torch_device))
        return Model(self.build, torch_device, self.mixed, self.not_alone, bound)

    def for_another_thread(self) -> Model:
        """The same model with layers of its own: while it runs, a model writes the weights into its layers."""
        shared = {id(tensor): tensor for tensor in chain(self.module.parameters(), self.module.buffers())}
        bound = BoundModule(copy.deepcopy(self.module, shared))
        return Model(self.build, self.torch_device, self.mixed, self.not_alone, bound)

    def with_precision(self, mixed: bool) -> Model:
        """The model with training passes in bfloat16 (`mixed`) or in full precision."""
        return Model(self.build, self.torch_device, mixed, self.not_alone, self.binding)

    def with_not_alone(self, levels: frozenset[str | None]) -> Model:
        """The model with another value of `not_alone`."""
        return Model(self.build, self.torch_device, self.mixed, levels, self.binding)

    @property
    def constants(self) -> tuple[Tensor, ...]:
        """Tensors that the module needs beside its weights; they are not trained, sent or stored."""
        return tuple(table for name, table in self.module.named_buffers() if name not in self.shapes)

    def trainable(self, level: str | None = None) -> tuple[str, ...]:
        """Names of the parameters above `level`, or of the whole model."""
        if level is None:
            return self.parameters
        above = self._above(level)
        return tuple(name for name in self.parameters if name.startswith(above))

    def upper_buffers(self, level: str | None = None) -> tuple[str, ...]:
        """Names of the buffers that training the part above `level` changes."""
        return self.buffers if level is None else tuple(n for n in self.buffers if n.startswith(self._above(level)))

    def smallest_batch(self, level: str | None = None) -> int:
        """The fewest samples on which the part above `level`, or the whole model, can be trained."""
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
        maps: levels at which to return the feature maps that cross the split.
        start: a level; `x` are the feature maps at it and only the part above runs.
        stop: a level to end at; `logits` are then the feature maps that cross that split.
        """
        buffers = {k: weights[k] for k in self.buffers}
        if training is not False and buffers:
            buffers = {k: v.clone() for k, v in buffers.items()}  # batch norm writes into its statistics
        binding = self.binding
        if binding.pools and x.dim() == 4 and x.device.type == "cpu":
            x = channels_last(x)
        if training != binding.mode:
            binding.set_mode(training, self._above(training) if isinstance(training, str) else ())
        binding.bind(weights, buffers)
        try:
            with self._autocast(x.device.type) if self.mixed and training is not False else nullcontext():
                if not (maps or start or stop):
                    return Output(self.module(x), {}, buffers)
                return self._run_stages(x, maps, start, stop, buffers)
        finally:
            binding.release()

    def _autocast(self, device_type: str) -> AbstractContextManager[None]:
        # Without the cache of converted weights, which a recorded step would keep for ever.
        return torch.autocast(device_type, torch.bfloat16, cache_enabled=False)

    def _run_stages(
        self, x: Tensor, maps: Sequence[str], start: str | None, stop: str | None, buffers: Mapping[str, Tensor]
    ) -> Output:
        kept: dict[str, Tensor] = {}
        levels_at: dict[int, list[str]] = {}
        for level in maps:
            levels_at.setdefault(self.stage_of(level), []).append(level)
        first = self.stage_of(start) if start else 0
        last = self.stage_of(stop) if stop else len(self.stages)
        for position in range(first, last + 1):
            for level in levels_at.get(position, ()):
                kept[level] = x
            if position < last:
                x = self.module.get_submodule(self.stages[position])(x)
        return Output(x, kept, buffers)

    def stage_of(self, level: str) -> int:
        """Position of the first stage above `level`; an InputError if the model has no such level or no stages."""
        first = self._first_above(level)
        if not self.stages:
            raise InputError(
                f"split '{level}': feature maps need a model that is an nn.Sequential of stages, "
                f"and {type(self.module).__name__} is not one"
            )
        return self.stages.index(first)

    def _above(self, level: str) -> tuple[str, ...]:
        """Prefixes of the names of weights above a level."""
        first = self._first_above(level)
        if not self.stages:
            return (f"{first}.",)
        return tuple(f"{stage}." for stage in self.stages[self.stages.index(first) :])

    def _first_above(self, level: str) -> str:
        if level not in self.levels:
            raise InputError(f"split '{level}' is not a level of this model; {suggest(level, self.levels)}")
        return self.levels[level]
