"""LEAF's Shakespeare model: embedded characters, two LSTM layers, the last position."""

from __future__ import annotations

from torch import Tensor, nn

from undergrowth.models.architecture import Architecture
from undergrowth.models.staged import Staged


class Recurrent(nn.Module):
    """One LSTM layer that gives its outputs only, so that layers can stand one after the other."""

    def __init__(self, inputs: int, units: int) -> None:
        super().__init__()
        self.layer = nn.LSTM(inputs, units, batch_first=True)

    def forward(self, x: Tensor) -> Tensor:
        outputs: Tensor = self.layer(x)[0]
        return outputs


class LastPosition(nn.Module):
    """(batch, length, units) → (batch, units)."""

    def forward(self, x: Tensor) -> Tensor:
        return x[:, -1]


def make(_shape: tuple[int, ...], classes: int, _norm: str, vocabulary: int, embedding: int, hidden: int) -> Staged:
    """Takes int64 tokens below `vocabulary`. Levels lie after the embedding and after each LSTM layer."""
    stages: dict[str, nn.Module] = {
        "embedding": nn.Embedding(vocabulary, embedding),
        "recurrent1": Recurrent(embedding, hidden),
        "recurrent2": Recurrent(hidden, hidden),
        "last": LastPosition(),
        "head": nn.Linear(hidden, classes),
    }
    return Staged(stages, {"low": "recurrent1", "mid": "recurrent2", "up": "last", "head": "head"})


LSTM = Architecture(
    name="lstm",
    title="Two LSTM layers on characters",
    source="Caldas et al., LEAF: A Benchmark for Federated Settings, 2018",
    make=make,
    takes="tokens",
    norms={"none": 1},
    shape=(80,),
    classes=80,
    options={"vocabulary": 80, "embedding": 8, "hidden": 256},
)
