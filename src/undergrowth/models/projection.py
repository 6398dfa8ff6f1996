"""A projection head, as in MOON (Li et al. 2021): two linear layers between the features and the last layer."""

from __future__ import annotations

from torch import nn

from undergrowth.models.layers import Layers
from undergrowth.models.staged import Staged


def add_projection(module: Staged, size: int, layers: Layers) -> Staged:
    """The model with the stage `projection` before a new last layer, which gets its `size` outputs.

    The first layer of the projection has as many outputs as inputs. At the level `head` the features are now those of
    the projection. A level that was directly below the last layer is below the projection, as is the new level
    `projection`: what is above it is a head of three linear layers.
    """
    stages = dict(module.named_children())
    last = stages.pop("head")
    assert isinstance(last, nn.Linear)
    features = last.in_features
    stages["projection"] = nn.Sequential(layers.linear(features, features), nn.ReLU(), layers.linear(features, size))
    stages["head"] = layers.linear(size, last.out_features, last=True)
    moved = {level: "projection" for level, stage in module.levels.items() if stage == "head" and level != "head"}
    below = {level: stage for level, stage in module.levels.items() if level != "head"}
    return Staged(stages, {**below, **moved, "projection": "projection", "head": "head"}, module.published)
