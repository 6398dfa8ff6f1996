"""Model: an `nn.Module` as a pure function of its weights, with named levels at which it can be split."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import InitVar, dataclass, field
from itertools import chain
from typing import Any

import torch
from torch import Tensor, nn

from undergrowth.core.binding import BoundModule, channels_last
from undergrowth.core.calls import record_calls, run_part
from undergrowth.core.errors import InputError, explain_errors
from undergrowth.core.levels import Levels, find_levels
from undergrowth.core.packet import Weights
from undergrowth.core.precision import bfloat16_on

# Frozen layers with random weights must have the same values wherever the module is built.
FROZEN_SEED = 0

# What torch says if a module calls `view` on images whose channels are innermost.
_NEEDS_ORDINARY_LAYOUT = "view size is not compatible"


def _seed(seed: int) -> None:
    """Seeds torch before a module is built. `torch.manual_seed` takes a hundred times as long without a GPU."""
    torch.default_generator.manual_seed(seed)
    if torch.cuda.is_initialized():
        torch.cuda.manual_seed_all(seed)


@dataclass(frozen=True)
class Output:
    """Result of one forward pass: logits, feature maps at the requested levels, buffers after the pass."""

    logits: Tensor
    maps: Mapping[str, Tensor]
    buffers: Mapping[str, Tensor]


@dataclass(frozen=True, eq=False)
class Model:
    """Runs the module that `build` returns with weights passed in by the caller; it stores none of them.

    Weights are the parameters that require a gradient and the buffers that belong to them. Frozen tensors stay in the
    module (see `constants`).

    The attribute `levels` of the module (level → name of the first submodule above the split), or `with_levels`, names
    the places where it can be split into a lower and an upper part. Without names the level `head` is the last linear
    layer, or the last stage with parameters of an `nn.Sequential`, and `with_example` guesses others.
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
    levels: Mapping[str, str] = field(init=False, repr=False)  # level → first submodule above the split

    def __post_init__(self, bound: BoundModule | None) -> None:
        if bound is None:
            with torch.random.fork_rng(devices=[]):
                _seed(FROZEN_SEED)
                bound = BoundModule(self.build())
        facts = {name: getattr(bound, name) for name in ("module", "parameters", "buffers", "shapes")}
        vars(self).update(binding=bound, **facts, levels=bound.levels.names)

    def initial(self, seed: int, random: bool = False) -> dict[str, Tensor]:
        """The weights of a new module, the same for the same seed.

        random: without those that `build` loads from a file, if it has an attribute `without_file`.
        """
        if self.torch_device == "meta":
            # Without building a module, or views of this one: a price would count the memory of both.
            state = self.module.state_dict(keep_vars=True)
            # Not `empty_like`, for which torch would load sympy.
            return {
                name: torch.empty(shape, dtype=state[name].dtype, device="meta") for name, shape in self.shapes.items()
            }
        with torch.random.fork_rng(devices=[]):
            _seed(seed)
            build = getattr(self.build, "without_file", self.build) if random else self.build
            state = build().state_dict()
        return {name: state[name].detach().clone().to(self.torch_device) for name in self.shapes}

    def to(self, torch_device: str) -> Model:
        """The model on another torch device: its initial weights, and tensors of the module that are no weights."""
        if torch_device == self.torch_device:
            return self
        # Parameters are moved first, because `Module.to` unties tied weights on the way to "meta".
        parameters = self.module.parameters()
        moved = {id(each): nn.Parameter(each.detach().to(torch_device), each.requires_grad) for each in parameters}
        bound = BoundModule(self._copy(moved).to(torch_device), self.binding.levels)
        return self._changed(bound, torch_device=torch_device)

    def for_another_thread(self) -> Model:
        """The same model with layers of its own: while it runs, a model writes the weights into its layers."""
        shared = {id(tensor): tensor for tensor in chain(self.module.parameters(), self.module.buffers())}
        return self._changed(BoundModule(self._copy(shared), self.binding.levels))

    def _copy(self, replaced: dict[int, Any]) -> nn.Module:
        """A copy of the module with other tensors in place of those with the ids in `replaced`."""
        with explain_errors("model: a copy of it is needed, and it holds something that cannot be copied"):
            return copy.deepcopy(self.module, replaced)

    def with_precision(self, mixed: bool) -> Model:
        """The model with training passes in bfloat16 (`mixed`) or in full precision."""
        return self._changed(self.binding, mixed=mixed)

    def with_not_alone(self, levels: frozenset[str | None]) -> Model:
        """The model with another value of `not_alone`."""
        return self._changed(self.binding, not_alone=levels)

    def with_levels(self, names: Mapping[str, str]) -> Model:
        """The model with these levels: level → name of the first submodule above the split."""
        return self._with_levels(find_levels(self.module, names))

    def with_example(self, x: Tensor) -> Model:
        """The model after a forward pass of one input, from which it knows the order of its submodules.

        From then on it can run from the features at its levels.
        """
        levels = self.binding.levels
        if levels.stages and not levels.guessed:
            return self
        weights = self.initial(0)
        with self._bound(weights, {name: weights[name] for name in self.buffers}, False):
            record = record_calls(self.module, x)
        model = self._with_levels(find_levels(self.module, None if levels.guessed else levels.names, record))
        if model.binding.levels.stages:
            return model
        crossed = {level: problem for level in model.levels if (problem := model._find_crossing(weights, x, level))}
        return self._with_levels(model.binding.levels.with_crossings(crossed))

    def _with_levels(self, levels: Levels) -> Model:
        return self._changed(self.binding.with_levels(levels))

    def _changed(self, bound: BoundModule, **fields: Any) -> Model:
        """The model that runs `bound`, with other values of some `fields`."""
        kept = {"torch_device": self.torch_device, "mixed": self.mixed, "not_alone": self.not_alone}
        return Model(self.build, **{**kept, **fields}, bound=bound)

    def _find_crossing(self, weights: Weights, x: Tensor, level: str) -> str | None:
        """Why the part above `level` cannot run from the features there alone, or None if it can."""
        name = self.levels[level]
        x = torch.cat([x[:1], x[:1]])  # another number of samples than in the record
        try:
            with torch.no_grad():
                whole, features = self(weights, x), self.run(weights, x, stop=level).logits
                if len(features) != len(x):
                    return f"the input of '{name}' has {len(features)} rows for {len(x)} samples"
                upper = self.run(weights, features, start=level).logits
        except InputError as error:
            return str(error)
        except Exception as error:  # blanks in place of values can make a forward pass raise almost any error
            return f"the model cannot run from the input of '{name}': {type(error).__name__}: {error}"
        if upper.shape == whole.shape and torch.allclose(upper, whole, rtol=1e-4, atol=1e-5):
            return None
        return f"more than the input of '{name}' reaches the part above it, such as a skip connection"

    @property
    def constants(self) -> dict[str, Tensor]:
        """Tensors that the module needs beside its weights, by name; they are not trained, averaged or sent.

        They are frozen parameters, the buffers of frozen layers, and buffers that are not in the module's state dict.
        """
        tensors = (*self.module.named_parameters(), *self.module.named_buffers())
        return {name: value.detach() for name, value in tensors if name not in self.shapes}

    def complete(self, weights: Weights) -> dict[str, Tensor]:
        """The weights together with the frozen tensors of the module's state dict."""
        persistent = self.module.state_dict().keys()
        return {**{name: value for name, value in self.constants.items() if name in persistent}, **weights}

    @property
    def has_dropout(self) -> bool:
        """Whether training steps need `keys`."""
        return bool(self.binding.dropouts)

    def trainable(self, level: str | None = None) -> tuple[str, ...]:
        """Names of the parameters above `level`, or of the whole model."""
        return self._above(self.parameters, level)

    def upper_buffers(self, level: str | None = None) -> tuple[str, ...]:
        """Names of the buffers that training the part above `level` changes."""
        return self._above(self.buffers, level)

    def smallest_batch(self, level: str | None = None) -> int:
        """The fewest samples on which the part above `level`, or the whole model, can be trained."""
        return 2 if level in self.not_alone else 1

    def check_batch(self, setting: str, batch: int, level: str | None = None) -> None:
        """Raise an InputError if that part cannot be trained on `batch` samples. `setting`: what users know it as."""
        fewest = self.smallest_batch(level)
        if batch < fewest:
            raise InputError(
                f"{setting} {batch}: the batch normalisation of this model needs at least {fewest} samples"
            )

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
        keys: Tensor | None = None,
    ) -> Output:
        """One forward pass.

        training: True, False, or a level: only the part above it runs in training mode.
        maps: levels at which to return the feature maps that cross the split.
        start: a level; `x` are the feature maps at it and only the part above runs.
        stop: a level to end at; `logits` are then the feature maps that cross that split.
        keys: of the samples, from which `KeyedDropout` draws; without them it drops nothing.
        """
        buffers = {k: weights[k] for k in self.buffers}
        if training is not False and buffers:
            buffers = {k: v.clone() for k, v in buffers.items()}  # batch norm writes into its statistics
        options = (buffers, training, maps, start, stop, keys)
        if self.binding.pools and x.dim() == 4 and x.device.type == "cpu":
            try:
                return self._run(weights, channels_last(x), *options)
            except RuntimeError as error:
                if _NEEDS_ORDINARY_LAYOUT not in str(error):
                    raise
                self.binding.pools = False
        return self._run(weights, x, *options)

    def _run(
        self,
        weights: Weights,
        x: Tensor,
        buffers: dict[str, Tensor],
        training: str | bool,
        maps: Sequence[str],
        start: str | None,
        stop: str | None,
        keys: Tensor | None,
    ) -> Output:
        precision = nullcontext() if training is False else self.in_precision(x.device.type)
        with self._bound(weights, buffers, training, keys), precision:
            if not (maps or start or stop):
                logits, found = self.module(x), dict[str, Tensor]()
            else:
                run_part = self._run_stages if self.binding.levels.stages else self._run_submodules
                logits, found = run_part(x, maps, start, stop)
            return Output(logits, found, buffers if training is False else self.binding.read(buffers))

    @contextmanager
    def _bound(
        self, weights: Weights, buffers: Weights, training: str | bool, keys: Tensor | None = None
    ) -> Iterator[None]:
        """The module has these weights, this mode and these keys in the block."""
        self.binding.set_mode(training)
        self.binding.bind(weights, buffers, keys)
        try:
            yield
        finally:
            self.binding.release()

    def in_precision(self, device_type: str) -> AbstractContextManager[None]:
        """The precision of training passes in the block."""
        return bfloat16_on(device_type) if self.mixed else nullcontext()

    def _run_stages(
        self, x: Tensor, maps: Sequence[str], start: str | None, stop: str | None
    ) -> tuple[Tensor, dict[str, Tensor]]:
        stages = self.binding.levels.stages
        kept: dict[str, Tensor] = {}
        levels_at: dict[int, list[str]] = {}
        for level in maps:
            levels_at.setdefault(self.position(level), []).append(level)
        first = self.position(start) if start else 0
        last = self.position(stop) if stop else len(stages)
        for position in range(first, last + 1):
            for level in levels_at.get(position, ()):
                kept[level] = x
            if position < last:
                x = self.module.get_submodule(stages[position])(x)
        return x, kept

    def _run_submodules(
        self, x: Tensor, maps: Sequence[str], start: str | None, stop: str | None
    ) -> tuple[Tensor, dict[str, Tensor]]:
        levels = self.binding.levels
        first = self.position(start) if start else 0
        last = self.position(stop) if stop else math.inf
        inside = {level: self.levels[level] for level in maps if first <= self.position(level) <= last}
        if start:
            levels.check_split(start)
        return run_part(self.module, x, inside, start and self.levels[start], stop and self.levels[stop], levels.record)

    def position(self, level: str) -> int:
        """The position of `level` in the order of execution. Raises `InputError` if the model has no such level."""
        return self.binding.levels.position(level)

    def check_split(self, level: str) -> None:
        """Raises `InputError` if the part above `level` cannot run from the features at it."""
        self.binding.levels.check_split(level)

    def _above(self, names: tuple[str, ...], level: str | None) -> tuple[str, ...]:
        return names if level is None else tuple(name for name in names if self.binding.levels.is_above(name, level))
