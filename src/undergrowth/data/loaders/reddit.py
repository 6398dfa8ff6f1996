"""Reddit: the next word in the comments of a user, in the format of LEAF's scripts."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from undergrowth.core import InputError
from undergrowth.data.dataset import Array, Dataset, to_numpy
from undergrowth.data.dataset_entry import DatasetEntry
from undergrowth.data.loaders.leaf import load_leaf
from undergrowth.data.loaders.targets import NO_LABEL
from undergrowth.data.loaders.words import FIRST_WORD, PADDING, UNKNOWN

_LENGTH = 10
_PADDING_WORD = "<PAD>"


def load(path: Path, *, vocabulary: int = 10_000) -> Dataset:
    """Pieces of ten words; the label of a position is the word after it; the field is `user`.

    Token 0 is padding, 1 an unknown word, 2 the most frequent word of the training comments, and so on.
    """
    if isinstance(vocabulary, bool) or not isinstance(vocabulary, int) or vocabulary <= FIRST_WORD:
        raise InputError(f"vocabulary is {vocabulary!r}; it must be a whole number of at least {FIRST_WORD + 1}")
    numbers = {_PADDING_WORD: 0}  # of the words, in the order in which they are found

    def numbered(pieces: list[Any]) -> np.ndarray:
        if any(not isinstance(piece, list) or len(piece) != _LENGTH for piece in pieces):
            raise ValueError(f"its comments must be lists of pieces of {_LENGTH} words")
        words = [word for piece in pieces for word in piece]
        if not all(isinstance(word, str) for word in words):
            raise ValueError("its words must be texts")
        found = [numbers.setdefault(word, len(numbers)) for word in words]
        return np.array(found, dtype=np.int32).reshape(-1, _LENGTH)

    def convert(x: list[Any], y: list[Any]) -> tuple[np.ndarray, np.ndarray]:
        if any(not isinstance(label, dict) or "target_tokens" not in label for label in y):
            raise ValueError("its labels must have target_tokens")
        following = [piece for label in y for piece in label["target_tokens"]]
        inputs = [piece for comment in x for piece in comment]
        if len(inputs) != len(following):
            raise ValueError(f"it has {len(inputs)} pieces and {len(following)} lists of following words")
        return numbered(inputs), numbered(following)

    data = load_leaf("reddit", path, convert, (), "user")
    tokens = _tokens(list(numbers), np.bincount(to_numpy(data.x).ravel(), minlength=len(numbers)), vocabulary)

    def labels(following: Array) -> np.ndarray:
        encoded: np.ndarray = tokens[to_numpy(following)]
        encoded[encoded == PADDING] = NO_LABEL
        return encoded

    x, test_x = tokens[to_numpy(data.x)], tokens[to_numpy(data.test_x)]
    return replace(
        data, x=x, y=labels(data.y), test_x=test_x, test_y=labels(data.test_y), classes=vocabulary, task="next-token"
    )


def _tokens(words: list[str], counts: np.ndarray, vocabulary: int) -> np.ndarray:
    """The token of each word, by its number, from how often the words occur."""
    known = [number for number in range(1, len(words)) if counts[number]]
    known.sort(key=lambda number: (-counts[number], words[number]))
    tokens = np.full(len(words), UNKNOWN, dtype=np.int32)
    tokens[0] = PADDING
    kept = known[: vocabulary - FIRST_WORD]
    tokens[kept] = FIRST_WORD + np.arange(len(kept))
    return tokens


ENTRY = DatasetEntry(
    name="reddit",
    title="Reddit (LEAF), next word at every position, by user, 10 words",
    shape=(_LENGTH,),
    licence="that of the comments' authors (pushshift.io); LEAF's scripts are BSD-2",
    how_to_get=(
        "download the data that data/reddit/README.md of LEAF (https://github.com/TalwalkarLab/leaf) links to, and put "
        "its folders train and test there"
    ),
    layout="train/*.json and test/*.json with users, user_data: {user: {x, y}}, pieces of ten words in x and in "
    "target_tokens of y",
    example='load("reddit", "~/data/reddit", vocabulary=50_000)',
    loader=load,
    fields=("user",),
    loader_options={"vocabulary": "number of tokens: padding, unknown word, and the most frequent words"},
    task="next-token",
)
