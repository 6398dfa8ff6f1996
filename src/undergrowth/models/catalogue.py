"""The table of models, and building a model by name."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from os import PathLike
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from undergrowth.core import InputError, find_meant, suggest
from undergrowth.models import (
    cnn,
    efficientnet,
    efficientnet_v2,
    fusion_transformer,
    logistic,
    lstm,
    mlp,
    mobilenet,
    resnet,
    squeezenet,
    transformer,
    vgg,
    wrn,
)
from undergrowth.models.adaptation import add_resize, freeze_below
from undergrowth.models.architecture import Architecture, Option
from undergrowth.models.checks import (
    COMMON_OPTIONS,
    check_classes,
    check_freeze,
    check_image_size,
    check_init,
    check_norm,
    check_options,
    check_parameters,
    check_positions,
    check_projection,
    check_shape,
    check_start,
)
from undergrowth.models.hugging_face import OPTIONS as HUGGING_FACE_OPTIONS
from undergrowth.models.hugging_face import hugging_face_builder, is_hugging_face_model
from undergrowth.models.initialisation import INITS, init_for
from undergrowth.models.layers import Layers
from undergrowth.models.projection import add_projection
from undergrowth.models.staged import Staged
from undergrowth.models.weights import WithWeights, check_weights

# To add an architecture, add its module and one line here.
TABLE: tuple[Architecture, ...] = (
    logistic.LOGISTIC,
    mlp.MLP,
    cnn.CNN,
    wrn.WRN,
    resnet.RESNET_8,
    resnet.RESNET_18,
    resnet.RESNET_34,
    vgg.VGG_16,
    squeezenet.SQUEEZENET,
    mobilenet.MOBILENETV3_SMALL,
    efficientnet.EFFICIENTNET_B0,
    efficientnet.EFFICIENTNET_LITE0,
    efficientnet_v2.EFFICIENTNETV2_B0,
    lstm.LSTM,
    lstm.LSTM_WORDS,
    transformer.TRANSFORMER,
    fusion_transformer.FUSION_TRANSFORMER,
)


@dataclass(frozen=True)
class ModelEntry:
    """The description of a model for users."""

    name: str
    title: str
    source: str
    options: Mapping[str, Option]  # with the defaults
    meanings: Mapping[str, str]  # of the options
    norms: tuple[str, ...]  # the default first
    inits: tuple[str, ...]  # the default first
    levels: Mapping[str, str]  # split level → first stage of the upper part
    parameters: int  # for `shape` and `classes`
    shape: tuple[int, ...]
    classes: int
    example: str  # a line of an experiment file


class _SkipNormalInit(TorchFunctionMode):
    """Skips the normal initialisation of meta tensors, for which torch would import its compiler."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func is Tensor.normal_ or func is nn.init.normal_:
            return args[0] if args else kwargs["tensor"]
        return func(*args, **kwargs)


@dataclass(frozen=True)
class Recipe:
    """Builds a new module at every call. It is plain data, so that it can be sent to another process."""

    architecture: Architecture
    shape: tuple[int, ...]
    classes: int
    layers: Layers
    options: Mapping[str, Option]
    projection: int | None = None
    per_position: bool = False
    image_size: int | None = None  # `shape` is that of resized images
    freeze: str | None = None  # a level

    def __call__(self) -> Staged:
        more = {"per_position": True} if self.per_position else {}
        module = self.architecture.make(self.shape, self.classes, self.layers, **self.options, **more)
        if self.projection is not None:
            module = add_projection(module, self.projection, self.layers)
        if self.image_size is not None:
            module = add_resize(module, self.image_size)
        return module if self.freeze is None else freeze_below(module, self.freeze)

    def skeleton(self) -> Staged:
        """The module on meta tensors: no memory is allocated and no random numbers are drawn."""
        with torch.device("meta"), _SkipNormalInit():
            return self()


def names() -> list[str]:
    """The names of the models; capital letters stand for numbers."""
    return [row.name for row in TABLE]


@cache  # building the skeleton of a deep model takes a tenth of a second
def describe(name: str) -> ModelEntry:
    """The description of a model. A name from `names()` with capital letters takes the numbers of its example."""
    shown = next((each.example for each in TABLE if each.name == name), name)
    row, numbers = _find(shown)
    layers = Layers(next(iter(row.norms)), init_for(row.init, row.shape))
    recipe = Recipe(row, row.shape, row.classes, layers, {**row.options, **numbers})
    module = recipe.skeleton()
    return ModelEntry(
        name=name,
        title=row.title,
        source=row.source,
        options=dict(row.options),
        meanings=dict(row.meanings),
        norms=tuple(row.norms),
        inits=(row.init, *(each for each in INITS if each != row.init)),
        levels=module.levels,
        parameters=sum(parameter.numel() for parameter in module.parameters()),
        shape=row.shape,
        classes=row.classes,
        example=f"model: {{{', '.join([f'name: {shown}', *_example_options(row)])}}}",
    )


def builder(
    name: str,
    shape: Sequence[int],
    classes: int,
    *,
    norm: str | None = None,
    init: str | None = None,
    weights: str | PathLike[str] | None = None,
    skip_head: bool = False,
    projection: int | None = None,
    per_position: bool = False,
    image_size: int | None = None,
    freeze: str | None = None,
    **options: object,
) -> Callable[[], nn.Module]:
    """A callable that builds a new module. It draws from torch's global random state, which the caller seeds.

    `shape` is that of one sample. A name such as hf:distilbert-base-uncased is a model of `transformers`, see
    `hugging_face.py`. `norm` is batch, group or none, `init` he-out, he-in, lecun, torch or by-size
    (see `initialisation.py`); the defaults depend on the architecture. `weights` is a file of initial weights; with
    `skip_head` the last layer is not loaded. `projection` is the number of outputs of a projection head before the last
    layer. `per_position`: the outputs are those of every position of a sequence, for the task next-token, whose tokens
    are the `classes`. With `image_size` the model resizes its input to images of that many pixels per side. The part
    below the level `freeze` is not trained. Wrong arguments raise an `InputError` here, not when the module is built.
    """
    if is_hugging_face_model(name):
        given = {
            "norm": norm,
            "init": init,
            "weights": weights,
            "skip_head": skip_head or None,
            "projection": projection,
        }
        options |= {key: value for key, value in given.items() if value is not None}
        return hugging_face_builder(name, shape, classes, image_size=image_size, freeze=freeze, **options)  # type: ignore[arg-type]
    row, numbers = _find(name)
    kind = check_norm(row, name, norm)
    inputs = check_image_size(row, name, shape, image_size)
    checked_shape, checked_classes = check_shape(row, name, inputs, kind), check_classes(name, classes)
    chosen = {**check_options(row, name, options), **numbers}
    if per_position:
        chosen |= check_positions(row, name, chosen, checked_classes)
    file = check_start(name, weights, skip_head)
    start = init_for(check_init(row, name, init), checked_shape)
    layers, size = Layers(kind, start), check_projection(name, projection)
    recipe = Recipe(
        row, checked_shape, checked_classes, layers, chosen, size, per_position, image_size, check_freeze(name, freeze)
    )
    skeleton = check_parameters(name, recipe.skeleton)
    if file is None:
        return recipe
    check_weights(skeleton, file, skip_head=skip_head)
    return WithWeights(recipe, file, skip_head)


def option_names(name: str) -> list[str]:
    """The options that `builder` takes for a model."""
    return [*HUGGING_FACE_OPTIONS] if is_hugging_face_model(name) else [*_find(name)[0].options, *COMMON_OPTIONS]


def _find(name: str) -> tuple[Architecture, dict[str, int]]:
    for row in TABLE:
        numbers = row.numbers_in(name)
        if numbers is not None:
            return row, numbers
    examples = [row.example for row in TABLE]
    family = re.sub(r"[^a-z]", "", name.lower())
    relatives = [each for each in examples if re.sub(r"[^a-z]", "", each) == family]
    if len(relatives) > 1 and find_meant(name, examples) is None:  # another depth, not a slip
        raise InputError(f"model: unknown name '{name}'; choose one of: {', '.join(sorted(examples))}")
    raise InputError(f"model: unknown name '{name}'; {suggest(name, examples)}")


def _example_options(row: Architecture) -> list[str]:
    """The first option, or else a normalisation other than the default, for the example."""
    for key, default in row.options.items():
        return [f"{key}: {list(default) if isinstance(default, tuple) else default}"]
    return [f"norm: {norm}" for norm in list(row.norms)[1:2]]
