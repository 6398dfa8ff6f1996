"""Two LSTM layers and a linear layer on the last position, or on every one.

For characters, as in LEAF's Shakespeare model, or for words.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from undergrowth.models.architecture import Architecture
from undergrowth.models.embeddings import FrozenEmbedding, TrainedEmbedding, read_vectors
from undergrowth.models.layers import Layers
from undergrowth.models.staged import Staged


class Recurrent(nn.Module):
    """One LSTM layer that returns only its outputs, so that layers can be put in sequence."""

    def __init__(self, inputs: int, units: int) -> None:
        super().__init__()
        self.layer = nn.LSTM(inputs, units, batch_first=True)

    def forward(self, x: Tensor) -> Tensor:
        # cuDNN has no gradient in evaluation mode. Without dropout both modes compute the same.
        mode, self.layer.training = self.layer.training, torch.is_grad_enabled()
        outputs: Tensor = self.layer(x)[0]
        self.layer.training = mode
        return outputs


class LastPosition(nn.Module):
    """(batch, length, units) → (batch, units)."""

    def forward(self, x: Tensor) -> Tensor:
        return x[:, -1]


def make(
    _shape: tuple[int, ...],
    classes: int,
    layers: Layers,
    vocabulary: int,
    embedding: int,
    hidden: int,
    per_position: bool = False,
) -> Staged:
    """The model for int64 tokens below `vocabulary`."""
    return _recurrent(nn.Embedding(vocabulary, embedding), embedding, hidden, classes, layers, per_position)


def make_words(
    _shape: tuple[int, ...],
    classes: int,
    layers: Layers,
    vocabulary: int,
    embedding: int,
    hidden: int,
    embeddings: str | None,
    per_position: bool = False,
) -> Staged:
    """The model for word tokens (see `embeddings.py`). A file of vectors decides their dimension."""
    if embeddings is None:
        return _recurrent(TrainedEmbedding(vocabulary, embedding), embedding, hidden, classes, layers, per_position)
    vectors = read_vectors(embeddings, vocabulary)
    return _recurrent(FrozenEmbedding(vectors), vectors.shape[1], hidden, classes, layers, per_position)


def _recurrent(
    words: nn.Module, embedding: int, hidden: int, classes: int, layers: Layers, per_position: bool
) -> Staged:
    """Levels are after the embedding and after each LSTM layer."""
    stages: dict[str, nn.Module] = {
        "embedding": words,
        "recurrent1": Recurrent(embedding, hidden),
        "recurrent2": Recurrent(hidden, hidden),
        "last": nn.Identity() if per_position else LastPosition(),
        "head": layers.linear(hidden, classes, last=True),
    }
    return Staged(stages, {"low": "recurrent1", "mid": "recurrent2", "up": "last", "head": "head"})


LSTM = Architecture(
    name="lstm",
    title="Two LSTM layers on characters",
    source="Caldas et al., LEAF: A Benchmark for Federated Settings, 2018",
    make=make,
    takes="tokens",
    norms={"none": 1},
    init="torch",
    per_position=True,
    shape=(80,),
    classes=80,
    options={"vocabulary": 80, "embedding": 8, "hidden": 256},
    meanings={
        "vocabulary": "number of characters",
        "embedding": "dimension of the vector of a character",
        "hidden": "units of each LSTM layer",
    },
)

LSTM_WORDS = Architecture(
    name="lstm-words",
    title="Two LSTM layers on words",
    source="Shi, Sheffield thesis, §4.5.5, with frozen GloVe vectors of Pennington et al., 2014",
    make=make_words,
    takes="tokens",
    norms={"none": 1},
    init="torch",
    per_position=True,
    shape=(64,),
    classes=4,
    options={"vocabulary": 20_000, "embedding": 100, "hidden": 256, "embeddings": None},
    meanings={
        "vocabulary": "number of tokens; further words are unknown words",
        "embedding": "dimension of the vector of a word, if there is no file",
        "hidden": "units of each LSTM layer",
        "embeddings": "file of frozen vectors: GloVe's text, .npz or .safetensors; by default vectors are trained",
    },
)
