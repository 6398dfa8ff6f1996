"""Word vectors: trained with the model, or read from a file and frozen.

Token 0 is padding, 1 is an unknown word, 2 is the first word of the vocabulary, and so on. Tokens beyond the vocabulary
of the model are treated as unknown words.
"""

from __future__ import annotations

import zipfile
from functools import lru_cache
from itertools import islice
from pathlib import Path

import numpy as np
import torch
from safetensors import SafetensorError
from safetensors.numpy import load_file
from torch import Tensor, nn

from undergrowth.core import InputError

UNKNOWN = 1
FIRST_WORD = 2


def replace_unknown(tokens: Tensor, vocabulary: int) -> Tensor:
    """The tokens, with UNKNOWN in place of those beyond the vocabulary."""
    return tokens.where(tokens < vocabulary, UNKNOWN)


class TrainedEmbedding(nn.Module):
    """A vector for every token, trained like any other weight."""

    def __init__(self, vocabulary: int, dimension: int) -> None:
        super().__init__()
        self.vocabulary = vocabulary
        self.vectors = nn.Embedding(vocabulary, dimension)

    def forward(self, tokens: Tensor) -> Tensor:
        vectors: Tensor = self.vectors(replace_unknown(tokens, self.vocabulary))
        return vectors


class FrozenEmbedding(nn.Module):
    """Vectors from a file. They are not part of the state of the model: never trained, sent, averaged or stored.

    Devices have them before training starts, like the program. The vector of padding is zero, and that of an unknown
    word is the mean of all words.
    """

    table: Tensor

    def __init__(self, vectors: np.ndarray) -> None:
        super().__init__()
        special = [np.zeros_like(vectors[0]), vectors.mean(axis=0)]
        self.register_buffer("table", torch.from_numpy(np.vstack([special, vectors])), persistent=False)

    def forward(self, tokens: Tensor) -> Tensor:
        return self.table[replace_unknown(tokens, len(self.table))]


def read_vectors(path: str, vocabulary: int) -> np.ndarray:
    """The vectors of the first words of a file, for the tokens from 2 to `vocabulary`.

    The file is in GloVe's text format (a word and its numbers on every line), or has one table in .npz or .safetensors.
    """
    file = Path(path).expanduser()
    if vocabulary <= FIRST_WORD:
        raise InputError(f"model lstm-words: option vocabulary must be above {FIRST_WORD}, not {vocabulary}")
    if not file.is_file():
        raise InputError(f"embeddings: there is no file '{file}'")
    status = file.stat()
    return _read(file, vocabulary - FIRST_WORD, status.st_mtime_ns, status.st_size)


@lru_cache(maxsize=2)  # a run builds a model several times: for checks, for use, and for its initial weights
def _read(path: Path, words: int, _modified: int, _size: int) -> np.ndarray:
    try:
        if path.suffix in (".npz", ".safetensors"):
            vectors = _read_table(path)[:words].astype(np.float32)
        else:
            vectors = _read_text(path, words)
    except (OSError, ValueError, EOFError, zipfile.BadZipFile, SafetensorError) as error:
        raise InputError(f"embeddings: '{path}' cannot be read: {error}") from error
    if not np.isfinite(vectors).all():
        raise InputError(f"embeddings: '{path}' contains NaN or an infinite number")
    return vectors


def _read_table(path: Path) -> np.ndarray:
    if path.suffix == ".safetensors":
        arrays = load_file(path)
    else:
        with np.load(path, allow_pickle=False) as content:
            arrays = {name: content[name] for name in content}
    tables = [array for array in arrays.values() if array.ndim == 2 and array.dtype.kind == "f" and array.size]
    if len(tables) != 1:
        raise ValueError(f"it contains {len(tables)} tables of numbers; it must contain one, with a row per word")
    return tables[0]


def _read_text(path: Path, words: int) -> np.ndarray:
    rows: list[np.ndarray] = []
    # Only \n ends a line, because some words contain other line breaks.
    with path.open(encoding="utf-8", newline="\n") as file:
        for number, line in enumerate(islice(file, words), start=1):
            dimension = len(rows[0]) if rows else line.rstrip().count(" ")
            word, *numbers = line.rstrip().rsplit(" ", dimension)
            if not word or len(numbers) != dimension or not dimension:
                raise ValueError(f"line {number} must be a word and its numbers, as many as on the first line")
            try:
                rows.append(np.array(numbers, dtype=np.float32))
            except ValueError as error:
                raise ValueError(f"line {number}: {error}") from error
    if not rows:
        raise ValueError("it is empty")
    return np.stack(rows)
