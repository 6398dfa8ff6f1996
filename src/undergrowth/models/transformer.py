"""A small text transformer: word vectors and positions, encoder layers, the mean over all words, a linear head.

A layer is, for x of one text (Xiong et al. 2020, normalisation before each part):

    x ← x + output(softmax(q·kᵀ / √d)·v),  q, k, v = query, key, value(norm1(x)), in `heads` parts of d = width / heads
    x ← x + narrow(gelu(widen(norm2(x))))

Token 0 is padding, which no word attends to and the mean leaves out. Every stage passes on one tensor, so its last
channel says which positions are words: 1 or 0. Positions are counted over words, so that padding may come first or
last. There is no dropout.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional

from undergrowth.core import InputError
from undergrowth.models.architecture import Architecture
from undergrowth.models.embeddings import TrainedEmbedding
from undergrowth.models.layers import Layers
from undergrowth.models.staged import Staged

PADDING = 0
WIDENING = 4  # hidden units of a layer for each channel
MASKED = -1e4  # added to the scores of padding; finite, so that a text without words gives finite numbers


class TextEmbedding(nn.Module):
    """The vector of each word plus that of its position, and the channel that marks words."""

    def __init__(self, vocabulary: int, length: int, width: int) -> None:
        super().__init__()
        self.words = TrainedEmbedding(vocabulary, width)
        self.positions = nn.Embedding(length, width)

    def forward(self, tokens: Tensor) -> Tensor:
        is_word = tokens != PADDING
        positions = (is_word.cumsum(1) - 1).clamp(min=0)
        vectors = self.words(tokens) + self.positions(positions)
        return torch.cat([vectors, is_word.unsqueeze(2).to(vectors.dtype)], 2)


class EncoderLayer(nn.Module):
    """Attention over all words of a text, then two linear layers on every word."""

    def __init__(self, width: int, heads: int, layers: Layers) -> None:
        super().__init__()
        self.heads = heads
        self.norm1 = nn.LayerNorm(width)
        self.query = layers.linear(width, width)
        self.key = layers.linear(width, width)
        self.value = layers.linear(width, width)
        self.output = layers.linear(width, width)
        self.norm2 = nn.LayerNorm(width)
        self.widen = layers.linear(width, WIDENING * width)
        self.narrow = layers.linear(WIDENING * width, width)

    def forward(self, x: Tensor) -> Tensor:
        vectors, is_word = x[:, :, :-1], x[:, :, -1:]
        vectors = vectors + self.attend(self.norm1(vectors), is_word)
        inner = functional.gelu(self.widen(self.norm2(vectors)))
        vectors = vectors + self.narrow(inner)
        return torch.cat([vectors, is_word], 2)

    def attend(self, x: Tensor, is_word: Tensor) -> Tensor:
        query, key, value = (self.split(layer(x)) for layer in (self.query, self.key, self.value))
        scores = query @ key.transpose(2, 3) / (query.shape[-1] ** 0.5)
        scores = scores + MASKED * (1 - is_word[:, None, None, :, 0])
        mixed = functional.softmax(scores, 3) @ value
        outputs: Tensor = self.output(mixed.transpose(1, 2).flatten(2))
        return outputs

    def split(self, x: Tensor) -> Tensor:
        """(texts, length, width) → (texts, heads, length, width / heads)."""
        return x.reshape(*x.shape[:2], self.heads, -1).transpose(1, 2)


class MeanOfWords(nn.Module):
    """The mean of the normalised vectors of all words; (texts, length, width + 1) → (texts, width)."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(width)

    def forward(self, x: Tensor) -> Tensor:
        vectors, is_word = self.norm(x[:, :, :-1]), x[:, :, -1:]
        mean: Tensor = (vectors * is_word).sum(1) / is_word.sum(1).clamp(min=1)
        return mean


MAX_DEPTH = 1000


def thirds(layers: int) -> tuple[int, int, int]:
    """The numbers of encoder layers below the levels low, mid and up."""
    return layers // 3, 2 * layers // 3, layers


def encoder(embedding: nn.Module, classes: int, layers: Layers, width: int, depth: int, heads: int) -> Staged:
    """`depth` encoder layers, at most `MAX_DEPTH`, between an embedding and a linear layer on the mean over words.

    Levels low, mid and up are after each third of the layers.
    """
    if depth > MAX_DEPTH:
        raise InputError(f"model: option depth of a transformer must be at most {MAX_DEPTH}, not {depth}")
    stages = {"embedding": embedding}
    stages |= {f"layer{number + 1}": EncoderLayer(width, heads, layers) for number in range(depth)}
    stages |= {"pool": MeanOfWords(width), "head": layers.linear(width, classes, last=True)}
    names = list(stages)
    levels = {level: names[1 + below] for level, below in zip(("low", "mid", "up"), thirds(depth), strict=True)}
    return Staged(stages, {**levels, "head": "head"})


def make(
    shape: tuple[int, ...], classes: int, layers: Layers, vocabulary: int, width: int, depth: int, heads: int
) -> Staged:
    if width % heads:
        raise InputError(f"model transformer: option width must be a multiple of heads {heads}, not {width}")
    return encoder(TextEmbedding(vocabulary, shape[0], width), classes, layers, width, depth, heads)


TRANSFORMER = Architecture(
    name="transformer",
    title="A small encoder of texts",
    source="Vaswani et al., Attention Is All You Need, 2017; normalisation as in Xiong et al., 2020",
    make=make,
    takes="tokens",
    norms={"none": 1},
    init="torch",
    shape=(64,),
    classes=4,
    options={"vocabulary": 20_000, "width": 128, "depth": 2, "heads": 4},
    meanings={
        "vocabulary": "number of tokens; further words are unknown words",
        "width": "channels of each word",
        "depth": "encoder layers",
        "heads": "parts of the channels that attend separately",
    },
)
