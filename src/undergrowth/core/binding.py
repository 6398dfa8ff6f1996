"""BoundModule: runs an `nn.Module` with weights that are passed in instead of its own parameters."""

from __future__ import annotations

import copy
from collections.abc import Container, Mapping

import torch
from torch import Tensor, nn

from undergrowth.core.dropout import KeyedDropout, layer_keys
from undergrowth.core.levels import Levels, find_levels
from undergrowth.core.packet import Weights


class BoundModule:
    """A module, the places in it that weights are written to, and the facts about it that do not change.

    Parameters that require no gradient, and the buffers of frozen layers, are no weights: the module keeps its own
    tensors for them, which all devices share. A layer is frozen if none of its parameters requires a gradient, or by
    `freeze_buffers`. A mask of attention, a buffer with infinite values among others, is no weight either.
    """

    def __init__(self, module: nn.Module, levels: Levels | None = None) -> None:
        self.module = module
        self.levels = find_levels(module) if levels is None else levels
        self._layers = list(module.modules())
        self.dropouts = [layer for layer in self._layers if isinstance(layer, KeyedDropout)]
        self._modes: dict[str | bool, list[bool]] = {}  # argument of `set_mode` → the mode of every layer
        self._frozen_layers = _find_frozen_layers(module)
        self._places = _find_places(module, set(self._frozen_layers))
        # A tied weight counts once, by its first name. Under its other name it would be sent a second time, never be
        # trained, and overwrite the first on loading.
        names = {name for _, _, name, _ in self._places}
        self.shapes = {name: value.shape for name, value in module.state_dict().items() if name in names}
        self.parameters = tuple(name for name, value in module.named_parameters() if value.requires_grad)
        self.buffers = tuple(name for name in self.shapes if name not in set(self.parameters))
        self._buffer_places = [(place, key, name) for place, key, name, _ in self._places if name in self.buffers]
        kinds = {type(layer) for layer in module.modules()}
        # Not with batch normalisation, which spreads a last digit over the batch: engines use other layouts.
        self.pools = nn.MaxPool2d in kinds and not kinds & {nn.BatchNorm1d, nn.BatchNorm2d}

    def bind(self, weights: Weights, buffers: Mapping[str, Tensor], keys: Tensor | None) -> None:
        """Write the weights into the module, and the `keys` of the samples into its dropout layers, until `release`."""
        # Writing into the dictionaries of the module costs a tenth of torch.func.functional_call, which matters for
        # models whose step takes 200 µs. Plain tensors work there as well as Parameters.
        for place, key, name, _ in self._places:
            place[key] = buffers[name] if name in buffers else weights[name]
        if self.dropouts and keys is not None:
            for layer, own in zip(self.dropouts, layer_keys(keys, len(self.dropouts)), strict=True):
                layer.keys = own

    def read(self, buffers: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """The bound `buffers` after a forward pass: a layer may assign a new tensor instead of changing the old one."""
        found = dict(buffers)
        for place, key, name in self._buffer_places:
            value = place.get(key)
            if value is not None and value is not buffers[name]:
                found[name] = value.detach().to(buffers[name].dtype)
        return found

    def release(self) -> None:
        """Put the module's own tensors back."""
        for place, key, _, own in self._places:
            place[key] = own
        for layer in self.dropouts:
            layer.keys = None

    def with_levels(self, levels: Levels) -> BoundModule:
        """The same module, with other levels."""
        bound = copy.copy(self)
        bound.levels, bound._modes = levels, {}
        return bound

    def set_mode(self, training: str | bool) -> None:
        """Training or evaluation mode; with a level, training mode for the layers above it.

        Frozen layers are always in evaluation mode.
        """
        # The layers are compared, not the last call: other code may have changed the mode of the module.
        if [layer.training for layer in self._layers] == self._modes.get(training):
            return
        self.module.train(training is True)
        if isinstance(training, str):
            for name, layer in self.module.named_modules():
                layer.training = self.levels.is_above(name, training)
        for layer in self._frozen_layers:
            layer.training = False
        self._modes[training] = [layer.training for layer in self._layers]


def freeze_buffers(layer: nn.Module) -> None:
    """From now on a `BoundModule` runs the layer in evaluation mode only; its parameters are trained as before."""
    layer.has_frozen_buffers = True  # type: ignore[assignment]  # nn.Module declares that attributes are tensors


def _find_frozen_layers(module: nn.Module) -> list[nn.Module]:
    """Layers that always run in evaluation mode. A layer without parameters follows the layer that holds it."""
    frozen: list[nn.Module] = []
    known: dict[str, bool] = {}
    for name, layer in module.named_modules():
        flags = [value.requires_grad for value in layer.parameters()]
        known[name] = not any(flags) if flags else known.get(name.rpartition(".")[0], False)
        if known[name] or getattr(layer, "has_frozen_buffers", False):
            frozen.append(layer)
    return frozen


def _masks(layer: nn.Module) -> frozenset[str]:
    """Buffers with finite and other values, such as -inf in a mask of attention: constants, which have no mean."""
    found: frozenset[str] | None = getattr(layer, "mask_buffers", None)
    if found is None:  # the layer remembers them, because copies on the device meta have no values
        buffers = {key: value for key, value in layer._buffers.items() if value is not None and not value.is_meta}
        finite = {key: value.isfinite() for key, value in buffers.items() if value.is_floating_point()}
        found = frozenset(key for key, each in finite.items() if each.any() and not each.all())
        layer.mask_buffers = found  # type: ignore[assignment]
    return found


def _find_places(
    module: nn.Module, frozen: Container[nn.Module]
) -> list[tuple[dict[str, Tensor | None], str, str, Tensor | None]]:
    """For every trained parameter, and every persistent buffer of a layer that is not frozen: its dictionary and key,
    its name, and the module's own tensor.
    """
    persistent = module.state_dict().keys()
    places: list[tuple[dict[str, Tensor | None], str, str, Tensor | None]] = []
    first_names: dict[int, str] = {}
    for prefix, layer in module.named_modules(remove_duplicate=False):
        masks = _masks(layer)
        for place in (layer._parameters, layer._buffers):
            for key, value in place.items():
                name = f"{prefix}.{key}" if prefix else key
                if value is None or name not in persistent or key in masks:
                    continue
                if layer in frozen if place is layer._buffers else not value.requires_grad:
                    continue
                # Both places of a tied weight get the value of its first name.
                name = first_names.setdefault(id(value), name)
                places.append((place, key, name, value))
    return places


def channels_last(x: Tensor) -> Tensor:
    """The same images with their channels innermost, a layout in which a CPU pools ten times as fast.

    Layers keep the layout of their input. Images of one channel are already in this layout except for their strides.
    """
    if x.shape[1] > 1:
        return x.contiguous(memory_format=torch.channels_last)
    height, width = x.shape[2:]
    return x.as_strided(x.shape, (height * width, 1, width, 1)) if x.is_contiguous() else x
