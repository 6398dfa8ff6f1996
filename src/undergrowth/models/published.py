"""Published files of weights: the same tensors in the same order as in a model of the zoo, under other names."""

from __future__ import annotations

from collections.abc import Mapping

from torch import Tensor, nn

from undergrowth.learning.adapters import is_adapter

_COUNTER = "num_batches_tracked"  # of batch normalisation; old files have none, and it does not change an output


def with_own_names(module: nn.Module, found: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The tensors under the names of the module, if they are those of the published file for its architecture.

    Otherwise as they are. A published 1×1 convolution in place of the head becomes a matrix. No file has a projection.
    """
    first = getattr(module, "published", None)
    if first is None or first not in found:
        return dict(found)
    new = [name for name in module.state_dict() if is_adapter(name) or name.startswith("projection.")]
    own = {name: value for name, value in module.state_dict().items() if name not in new}
    names = [name for name in own if not name.endswith(_COUNTER)]
    others = [name for name in found if not name.endswith(_COUNTER)]
    if len(names) != len(others):
        return dict(found)
    renamed = {name: own[name].new_zeros((), device="cpu") for name in own if name.endswith(_COUNTER)}
    for name, other in zip(names, others, strict=True):
        tensor = found[other]
        is_head = own[name].dim() == 2 and tensor.dim() == 4 and tensor.shape[2:] == (1, 1)
        renamed[name] = tensor.flatten(1) if is_head else tensor
    return {name: renamed[name] for name in own}
