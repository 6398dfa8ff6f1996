"""Texts as rows of tokens, a token for every word.

Tokens are ranks of words: 0 fills up short texts, 1 is a word that is not known, 2 the first word of the list, and so
on. The filling comes first, so that a recurrent model reads the words last.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Sequence
from itertools import islice
from pathlib import Path

import numpy as np

from undergrowth.core.errors import InputError
from undergrowth.data.loaders.files import broken

FILL, UNKNOWN, SPECIAL = 0, 1, 2  # SPECIAL: tokens before the first word

# A genitive, a word or number, or a single mark.
_WORD = re.compile(r"'s\b|\w+|[^\w\s]")

MEANINGS = {
    "length": "words of a text that are kept; shorter texts are filled up",
    "vocabulary": "tokens there are: filling, words that are not known, and the most frequent words",
    "words": "file with a word at the start of every line, such as GloVe's; without one the training texts are counted",
}


def check_options(length: int, vocabulary: int, words: str | None) -> None:
    for option, value, least in (("length", length, 1), ("vocabulary", vocabulary, SPECIAL + 1)):
        if isinstance(value, bool) or not isinstance(value, int) or value < least:
            raise InputError(f"{option} is {value!r}; it must be a whole number of at least {least}")
    if words is not None and not isinstance(words, str | Path):
        raise InputError(f"words is {words!r}; it must be the name of a file with a word at the start of every line")


def tokenise(text: str) -> list[str]:
    """The words, numbers and marks of a text, in small letters."""
    return _WORD.findall(text.lower())


def word_list(texts: Iterable[Sequence[str]], words: str | None, vocabulary: int) -> dict[str, int]:
    """The token of every known word: those of the file `words`, or those that are most frequent in the texts."""
    if words is not None:
        ranked = _read(Path(words).expanduser(), vocabulary - SPECIAL)
    else:
        counts = Counter(word for text in texts for word in text)
        ranked = sorted(counts, key=lambda word: (-counts[word], word))[: vocabulary - SPECIAL]
    tokens: dict[str, int] = {}
    for rank, word in enumerate(ranked):
        tokens.setdefault(word, SPECIAL + rank)
    return tokens


def encode(texts: Sequence[Sequence[str]], tokens: dict[str, int], length: int) -> np.ndarray:
    """The first words of every text, N × length."""
    rows = np.full((len(texts), length), FILL, dtype=np.int32)
    for row, text in zip(rows, texts):
        kept = [tokens.get(word, UNKNOWN) for word in text[:length]]
        row[length - len(kept) :] = kept
    return rows


def _read(path: Path, most: int) -> list[str]:
    if not path.is_file():
        raise InputError(f"words: there is no file '{path}'")
    try:
        # Lines end with \n alone: some words are other kinds of line breaks.
        with path.open(encoding="utf-8", newline="\n") as file:
            return [line.rstrip("\r\n").partition(" ")[0] for line in islice(file, most)]
    except (OSError, UnicodeDecodeError) as error:
        raise broken(path, f"it cannot be read as text: {error}") from error
