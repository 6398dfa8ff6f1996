"""Models of the library `transformers` (extra `hf`): `hf:NAME` from its cache or hub, `hf:FOLDER` from the disk.

The backbone is what AutoModel makes of it; a new linear head for the task replaces any other. Texts are classified by
the mean over their tokens or by the first token, images by the pooled features or the first token. Dropout is off,
because engines do not share the random state from which it would draw. A pooling layer that the head does not use is
left out, so that it is neither trained nor sent.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor, nn

from undergrowth.core import InputError, suggest
from undergrowth.models.adaptation import Resize
from undergrowth.models.checks import check_classes, check_freeze
from undergrowth.models.staged import stage_at
from undergrowth.models.transformer import thirds

PREFIX = "hf:"
POOLINGS = ("mean", "first")
OPTIONS = ("pooling", "image_size", "freeze")


def is_hugging_face_model(name: str) -> bool:
    return name.startswith(PREFIX)


@dataclass(frozen=True)
class HuggingFaceRecipe:
    """Builds a new module at every call. It is plain data, so that it can be sent to another process."""

    source: str  # name or folder
    shape: tuple[int, ...]
    classes: int
    pooling: str = "mean"
    image_size: int | None = None
    freeze: str | None = None

    def __call__(self) -> nn.Module:
        backbone = _load(self.source)
        is_text = len(self.shape) == 1
        kind: Callable[..., Classifier] = TextClassifier if is_text else ImageClassifier
        module = kind(backbone, self.classes, self.pooling if is_text else self.image_size)
        if self.freeze is not None:
            module.freeze_below(self.freeze)
        return module


def hugging_face_builder(
    name: str,
    shape: Sequence[int],
    classes: int,
    *,
    pooling: str = "mean",
    image_size: int | None = None,
    freeze: str | None = None,
    **unknown: object,
) -> HuggingFaceRecipe:
    """A callable that builds the model `name`, such as hf:distilbert-base-uncased, with a head for `classes` classes.

    Wrong arguments raise an `InputError` here, not when the module is built.
    """
    for key in unknown:
        raise InputError(f"model {name}: unknown option '{key}'; {suggest(key, OPTIONS)}")
    if pooling not in POOLINGS:
        raise InputError(f"model {name}: pooling must be one of {', '.join(POOLINGS)}, not {pooling!r}")
    if image_size is not None and (isinstance(image_size, bool) or not isinstance(image_size, int) or image_size < 1):
        raise InputError(
            f"model {name}: image_size must be a number of pixels per side, such as 224, not {image_size!r}"
        )
    source, sizes = os.path.expanduser(name.removeprefix(PREFIX)), tuple(shape)
    config = _config(source)
    takes_images = hasattr(config, "num_channels")
    if takes_images != (len(sizes) == 3):
        raise InputError(f"model {name}: takes {'images' if takes_images else 'texts'}, not inputs of shape {sizes}")
    if takes_images and config.num_channels != sizes[0]:
        raise InputError(f"model {name}: takes images of {config.num_channels} channels, not inputs of shape {sizes}")
    longest = getattr(config, "max_position_embeddings", None)
    if not takes_images and longest is not None and sizes[0] > longest:
        raise InputError(f"model {name}: takes at most {longest} tokens; data.length is {sizes[0]}")
    if takes_images and image_size is None:
        image_size = getattr(config, "image_size", None)
    return HuggingFaceRecipe(
        source, sizes, check_classes(name, classes), pooling, image_size, check_freeze(name, freeze)
    )


class Classifier(nn.Module):
    """A backbone, a pooling and a linear head. Levels are after the embeddings and after each third of the layers."""

    levels: dict[str, str]

    def __init__(self, backbone: nn.Module, pool: nn.Module, features: int, classes: int) -> None:
        super().__init__()
        self.backbone = backbone
        self.pool = pool
        self.head = nn.Linear(features, classes)
        layers = [f"backbone.{name}" for name in _layers(backbone)]
        below = [*layers, "pool"]
        low, mid, up = thirds(len(layers))
        named = {"embeddings": below[0], "low": below[low], "mid": below[mid], "up": below[up]} if layers else {}
        self.levels = {**named, "head": "head"}

    def freeze_below(self, level: str) -> None:
        """No parameter below `level` is trained. A backbone is frozen as a whole, or up to one of its layers."""
        first = stage_at(self.levels, level)
        reached = False
        for name, layer in self.named_modules():
            reached = reached or name == first
            inside = first.startswith(f"{name}.")  # its own parameters belong to the lower part
            if not reached and name:
                for parameter in layer.parameters(recurse=not inside):
                    parameter.requires_grad_(False)


class TextClassifier(Classifier):
    """Classifies rows of tokens; padding is left out of attention and of the mean."""

    def __init__(self, backbone: nn.Module, classes: int, pooling: str) -> None:
        config: Any = backbone.config
        super().__init__(backbone, MeanOfTokens() if pooling == "mean" else FirstToken(), config.hidden_size, classes)
        self.padding = config.pad_token_id or 0
        # Explicit rows of positions: with them BERT's embeddings can be computed for many devices at once.
        self.explicit = config.model_type == "bert"

    def forward(self, tokens: Tensor) -> Tensor:
        is_token = tokens != self.padding
        more = {}
        if self.explicit:
            positions = torch.arange(tokens.shape[1], device=tokens.device).expand_as(tokens)
            more = {"position_ids": positions, "token_type_ids": torch.zeros_like(tokens)}
        vectors = self.backbone(input_ids=tokens, attention_mask=is_token.long(), **more)["last_hidden_state"]
        # One tensor, so that the features at this level are all that the part above needs.
        marked = torch.cat([vectors, is_token.unsqueeze(2).to(vectors.dtype)], 2)
        logits: Tensor = self.head(self.pool(marked))
        return logits


class MeanOfTokens(nn.Module):
    """The mean over all tokens; the last channel says which positions are tokens."""

    def forward(self, x: Tensor) -> Tensor:
        is_token = x[:, :, -1:]
        mean: Tensor = (x[:, :, :-1] * is_token).sum(1) / is_token.sum(1).clamp(min=1)
        return mean


class FirstToken(nn.Module):
    """The vector of the first token, which stands for the whole text."""

    def forward(self, x: Tensor) -> Tensor:
        return x[:, 0, :-1]


class ImageClassifier(Classifier):
    """Classifies images, which it resizes to the size that the backbone was trained with."""

    def __init__(self, backbone: nn.Module, classes: int, image_size: int | None) -> None:
        config: Any = backbone.config
        sizes = getattr(config, "hidden_sizes", None)
        super().__init__(backbone, PooledImage(), sizes[-1] if sizes else config.hidden_size, classes)
        self.resize = nn.Identity() if image_size is None else Resize(image_size)

    def forward(self, x: Tensor) -> Tensor:
        logits: Tensor = self.head(self.pool(self.backbone(pixel_values=self.resize(x))["last_hidden_state"]))
        return logits


class PooledImage(nn.Module):
    """The mean of a feature map, or the first of a row of tokens."""

    def forward(self, x: Tensor) -> Tensor:
        return x.mean((2, 3)) if x.dim() == 4 else x[:, 0]


def _layers(backbone: nn.Module) -> list[str]:
    """The names of the encoder layers: the entries of the longest list of modules."""
    lists = {name: layer for name, layer in backbone.named_modules() if isinstance(layer, nn.ModuleList)}
    outermost = [name for name in lists if not any(name.startswith(f"{other}.") for other in lists)]
    longest = max(outermost, key=lambda name: len(lists[name]), default=None)
    return [] if longest is None else [f"{longest}.{number}" for number in range(len(lists[longest]))]


def _transformers() -> Any:
    try:
        import transformers
    except ImportError as error:
        raise InputError("model hf: needs transformers: pip install 'undergrowth[hf]'") from error
    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    return transformers


def _find(source: str, load: Callable[..., Any]) -> Any:
    """What `load` reads from a folder or the cache or, if it is in neither, from the hub."""
    try:
        return load(source, local_files_only=True)
    except (OSError, ValueError) as error:
        if os.path.isdir(source):
            raise InputError(f"model hf:{source}: the folder cannot be read as a model: {_line(error)}") from None
    try:
        return load(source)
    except (OSError, ValueError) as error:
        raise InputError(
            f"model hf:{source}: there is no such folder, it is not in the Hugging Face cache, and the hub does not "
            f"give it ({_line(error)}); check the name, or copy the model into a folder and write hf:FOLDER"
        ) from None


def _line(error: Exception) -> str:
    return str(error).strip().splitlines()[0][:160]


@lru_cache(maxsize=8)
def _config(source: str) -> Any:
    return _find(source, _transformers().AutoConfig.from_pretrained)


def _load(source: str) -> nn.Module:
    """The pretrained backbone, in float32, without dropout and without the layer that pools for other tasks."""
    transformers = _transformers()
    config = _find(source, transformers.AutoConfig.from_pretrained)
    for key, value in config.to_dict().items():
        if "drop" in key and isinstance(value, float):
            setattr(config, key, 0.0)
    # Plain products: their FLOPs are counted, and several devices can be computed at once.
    plain = {"config": config, "dtype": torch.float32, "attn_implementation": "eager"}

    def load(source: str, **where: Any) -> nn.Module:
        model = transformers.AutoModel
        try:
            module: nn.Module = model.from_pretrained(source, **plain, **where, add_pooling_layer=False)
        except TypeError:  # an architecture without that layer
            module = model.from_pretrained(source, **plain, **where)
        return module

    module: nn.Module = _find(source, load)
    for layer in module.modules():
        if isinstance(layer, nn.Embedding):
            layer.padding_idx = None  # padding has no gradient anyway, and stacks of devices do not support it
    return module
