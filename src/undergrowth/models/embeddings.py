"""Words as vectors: learnt with the model, or read from a file and left as they are.

Tokens are ranks of words: 0 fills up short texts, 1 is a word that is not known, 2 the first word of the list, and so
on. A model whose list is shorter than that of the data takes what is beyond it for words that are not known.
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

from undergrowth.core.errors import InputError

UNKNOWN = 1
SPECIAL = 2  # tokens before the first word


def known(tokens: Tensor, vocabulary: int) -> Tensor:
    return tokens.where(tokens < vocabulary, UNKNOWN)


class LearntWords(nn.Module):
    """A vector for every token, trained like any other weight."""

    def __init__(self, vocabulary: int, dimension: int) -> None:
        super().__init__()
        self.vocabulary = vocabulary
        self.vectors = nn.Embedding(vocabulary, dimension)

    def forward(self, tokens: Tensor) -> Tensor:
        vectors: Tensor = self.vectors(known(tokens, self.vocabulary))
        return vectors


class FrozenWords(nn.Module):
    """Vectors from a file. They are no part of the model's state: never trained, sent, averaged or stored.

    A device has them before training starts, as it has the program. What fills up is zero, what is not known is the
    mean of all words.
    """

    table: Tensor

    def __init__(self, vectors: np.ndarray) -> None:
        super().__init__()
        special = [np.zeros_like(vectors[0]), vectors.mean(axis=0)]
        self.register_buffer("table", torch.from_numpy(np.vstack([special, vectors])), persistent=False)

    def forward(self, tokens: Tensor) -> Tensor:
        return self.table[known(tokens, len(self.table))]


def read_vectors(path: str, vocabulary: int) -> np.ndarray:
    """The vectors of the first words of a file, one for each token from 2 to `vocabulary`.

    GloVe's text (a word and its numbers on every line), or one table in a .npz or .safetensors file.
    """
    place = Path(path).expanduser()
    if vocabulary <= SPECIAL:
        raise InputError(f"model lstm-words: option vocabulary must be above {SPECIAL}, not {vocabulary}")
    if not place.is_file():
        raise InputError(f"embeddings: there is no file '{place}'")
    changed = place.stat()
    return _read(place, vocabulary - SPECIAL, changed.st_mtime_ns, changed.st_size)


@lru_cache(maxsize=2)  # a model is made several times in a run: to be checked, to be used, for its first weights
def _read(path: Path, words: int, _changed: int, _size: int) -> np.ndarray:
    try:
        if path.suffix in (".npz", ".safetensors"):
            vectors = _only_table(path)[:words].astype(np.float32)
        else:
            vectors = _text(path, words)
    except (OSError, ValueError, EOFError, zipfile.BadZipFile, SafetensorError) as error:
        raise InputError(f"embeddings: '{path}' cannot be read: {error}") from error
    if not np.isfinite(vectors).all():
        raise InputError(f"embeddings: '{path}' holds NaN or an infinite number")
    return vectors


def _only_table(path: Path) -> np.ndarray:
    if path.suffix == ".safetensors":
        arrays = load_file(path)
    else:
        with np.load(path, allow_pickle=False) as content:
            arrays = {name: content[name] for name in content}
    tables = [array for array in arrays.values() if array.ndim == 2 and array.dtype.kind == "f" and array.size]
    if len(tables) != 1:
        raise ValueError(f"it holds {len(tables)} tables of numbers; one is needed, with a row for each word")
    return tables[0]


def _text(path: Path, words: int) -> np.ndarray:
    rows: list[np.ndarray] = []
    # Lines end with \n alone: some words are other kinds of line breaks.
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
