"""Low-rank adapters (LoRA, Hu et al. 2021): frozen weights with small trained matrices beside them.

A linear layer y = W·x + b becomes y = W·x + b + (alpha / rank)·B·A·x. A (rank × inputs) starts random, B (outputs ×
rank) starts at zero, so the adapted model starts as the model was. A, B and the head are trained; everything else is
frozen: not trained, averaged or sent, and the same tensors for all devices (`core/binding.py`).

A model of `transformers` gets the adapters of `peft`, any other one those below. Both compute the same.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Any

import torch.nn.functional as F
from torch import Tensor, nn

from undergrowth.core import InputError, suggest
from undergrowth.core.levels import find_levels

# The last part of the names that `transformers` and the zoo give to the projections of attention.
ATTENTION = frozenset({"query", "key", "value", "q_lin", "k_lin", "v_lin", "q_proj", "k_proj", "v_proj"})
ALWAYS_ALLOWED_RANK = 1024
_PEFT_NAME = "default"  # of the adapter in the layers of peft


@dataclass(frozen=True)
class Adapters:
    """What adapters a model gets.

    layers: names or patterns of linear layers; none: the projections of attention or, in a model without attention, all
    linear layers below the head. head: the name of the head's first submodule; None: that at the level `head`.
    """

    rank: int = 8
    alpha: float = 16.0
    layers: tuple[str, ...] = ()
    head: str | None = None


@dataclass(frozen=True)
class WithAdapters:
    """Builds a module with `build` and adds adapters to it. It is plain data if `build` is."""

    build: Callable[[], nn.Module]
    adapters: Adapters

    def __call__(self) -> nn.Module:
        return add_adapters(self.build(), self.adapters)

    @property
    def ladder(self) -> Mapping[str, Any]:
        """The smaller models that belong to the model, if it is an object that has any."""
        return getattr(self.build, "ladder", {})


class LoraLinear(nn.Linear):
    """A frozen linear layer with an adapter. Its weight and bias keep their names."""

    def __init__(self, base: nn.Linear, adapters: Adapters) -> None:
        nn.Module.__init__(self)
        self.in_features, self.out_features = base.in_features, base.out_features
        self.weight, self.bias = base.weight, base.bias
        self.lora_A = nn.Parameter(base.weight.new_empty(adapters.rank, base.in_features))
        self.lora_B = nn.Parameter(base.weight.new_zeros(base.out_features, adapters.rank))
        self.scale = adapters.alpha / adapters.rank
        nn.init.kaiming_uniform_(self.lora_A, a=math.sqrt(5))  # as peft does

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x) + self.scale * F.linear(F.linear(x, self.lora_A), self.lora_B)


@dataclass(frozen=True)
class Adapted:
    """A layer with an adapter: the layer without it, the names of A and B in the model, and alpha / rank."""

    base: nn.Linear
    first: str
    second: str
    scale: float


def add_adapters(module: nn.Module, adapters: Adapters) -> nn.Module:
    """The same module, frozen but for its head, with adapters; a module that has adapters is returned as it is."""
    if adapted_layers(module):
        return module
    head = adapters.head or find_levels(module).names.get("head", "")
    names = _choose(module, adapters.layers, head)
    _check_rank(module, names, adapters.rank)
    trained = {name for name, value in module.named_parameters() if value.requires_grad and is_inside(name, head)}
    if any(type(layer).__module__.startswith("transformers.") for layer in module.modules()):
        _add_those_of_peft(module, names, adapters)
    else:
        for name in names:
            layer = module.get_submodule(name)
            assert isinstance(layer, nn.Linear)
            set_layer(module, name, LoraLinear(layer, adapters))
    for layer in module.modules():
        if isinstance(layer, nn.TransformerEncoderLayer):
            # In evaluation torch would compute such a layer from its weights, without calling its linear layers.
            layer.activation_relu_or_gelu = 0
    for name, value in module.named_parameters():
        value.requires_grad_(is_adapter(name) or name in trained)
    return module


def adapted_layers(module: nn.Module) -> dict[str, Adapted]:
    """The layers of a module that have adapters, by name."""
    found = {}
    for name, layer in module.named_modules():
        if isinstance(layer, LoraLinear):
            found[name] = Adapted(layer, f"{name}.lora_A", f"{name}.lora_B", layer.scale)
        elif _PEFT_NAME in getattr(layer, "lora_A", ()):
            one, two = (f"{name}.{each}.{_PEFT_NAME}.weight" for each in ("lora_A", "lora_B"))
            found[name] = Adapted(layer.base_layer, one, two, layer.scaling[_PEFT_NAME])
    return found


def is_adapter(name: str) -> bool:
    """Whether a tensor of that name belongs to an adapter."""
    return ".lora_" in name


def with_adapted_names(wanted: Mapping[str, Tensor], found: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The tensors of a model without adapters under their names in the adapted model, and its adapters.

    wanted: the tensors of the adapted model. If it is not adapted, or `found` has adapters, `found` as it is.
    """
    adapters = {name: value.detach() for name, value in wanted.items() if is_adapter(name)}
    if not adapters or any(map(is_adapter, found)):
        return dict(found)
    names = {name.replace(".base_layer.", "."): name for name in wanted}  # peft puts the layer into another
    return {**{names.get(name, name): value for name, value in found.items()}, **adapters}


def is_inside(name: str, place: str) -> bool:
    """Whether a submodule or a tensor is the submodule `place` or in it."""
    return f"{name}.".startswith(f"{place}.")


def set_layer(module: nn.Module, name: str, layer: nn.Module) -> None:
    """Puts a layer into the place of the submodule `name`."""
    parent, _, last = name.rpartition(".")
    setattr(module.get_submodule(parent), last, layer)


def _choose(module: nn.Module, patterns: tuple[str, ...], head: str) -> list[str]:
    """The names of the layers that get adapters."""
    # Not subclasses: nn.MultiheadAttention has one whose weight it uses without calling the layer.
    linear = [name for name, layer in module.named_modules() if type(layer) is nn.Linear and not is_inside(name, head)]
    if not linear:
        raise InputError("model.lora: the model has no linear layer below its head to which an adapter could be added")
    chosen = [name for name in linear if name.rpartition(".")[2] in ATTENTION] or linear
    if not patterns:
        return chosen
    for pattern in patterns:
        if not any(_matches(name, pattern) for name in linear):
            raise InputError(
                f"model.lora: layers has '{pattern}', which is no linear layer below the head; "
                f"{suggest(pattern, linear)}"
            )
    return [name for name in linear if any(_matches(name, pattern) for pattern in patterns)]


def _check_rank(module: nn.Module, names: list[str], rank: int) -> None:
    """Refuses a high rank that is above the sides of every layer. A low one adds nothing then, but costs little."""
    layers = [module.get_submodule(name) for name in names]
    longest = max(max(layer.in_features, layer.out_features) for layer in layers if isinstance(layer, nn.Linear))
    if rank > max(longest, ALWAYS_ALLOWED_RANK):
        raise InputError(
            f"model.lora: rank {rank} is above the inputs and outputs of every layer with an adapter; "
            f"write at most {longest}"
        )


def _matches(name: str, pattern: str) -> bool:
    return fnmatchcase(name, pattern) or name.endswith(f".{pattern}")


def _add_those_of_peft(module: nn.Module, names: list[str], adapters: Adapters) -> None:
    try:
        import peft
    except ImportError as error:
        raise InputError("model.lora: adapters of hf: models need peft: pip install 'undergrowth[hf]'") from error
    config = peft.LoraConfig(r=adapters.rank, lora_alpha=adapters.alpha, lora_dropout=0.0, target_modules=names)
    peft.inject_adapter_in_model(config, module)
