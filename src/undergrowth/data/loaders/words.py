"""Texts as rows of tokens: words of a plain vocabulary, or what the tokenizer of a pretrained model makes of them.

Of words, token 0 is padding, 1 is an unknown word, 2 is the first word of the vocabulary, and so on. The padding comes
first, so that a recurrent model reads the words last.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Sequence
from itertools import islice
from pathlib import Path

import numpy as np

from undergrowth.core import InputError
from undergrowth.data.loaders import tokenizer as pretrained
from undergrowth.data.loaders.files import file_error
from undergrowth.data.loaders.tokenizer import Text

SEPARATOR = "[sep]"  # a word between the two texts of a pair
PADDING, UNKNOWN, FIRST_WORD = 0, 1, 2

# A genitive, a word or number, or one punctuation mark.
_WORD = re.compile(r"'s\b|\w+|[^\w\s]")

OPTIONS = {
    "length": "words per text; longer texts are cut and shorter ones padded",
    "vocabulary": "number of tokens: padding, unknown word, and the most frequent words",
    "words": "file with a word at the start of every line, such as GloVe's; by default the training texts are counted",
    "tokenizer": "model (name or folder) whose tokenizer splits the texts, with the extra hf; by default that of the "
    "run's model if it is an hf: model",
}


def token_rows(
    parts: Sequence[Sequence[Text]], length: int, vocabulary: int, words: str | None, tokenizer: str | None
) -> list[np.ndarray]:
    """The tokens of all texts of each part, N × length. The vocabulary is that of the first part."""
    check_options(length, vocabulary, words, tokenizer)
    if tokenizer is not None:
        return [pretrained.encode(texts, tokenizer, length) for texts in parts]
    split = [[_words_of(text, length) for text in texts] for texts in parts]
    tokens = build_vocabulary(split[0], words, vocabulary)
    return [encode(texts, tokens, length) for texts in split]


def _words_of(text: Text, length: int) -> list[str]:
    """The words of a text; of a pair, the first text is cut so that the second has room."""
    if isinstance(text, str):
        return tokenise(text)
    second = [SEPARATOR, *tokenise(text[1])][:length]
    return [*tokenise(text[0])[: length - len(second)], *second]


def check_options(length: int, vocabulary: int, words: str | None, tokenizer: str | None = None) -> None:
    for option, value, least in (("length", length, 1), ("vocabulary", vocabulary, FIRST_WORD + 1)):
        if isinstance(value, bool) or not isinstance(value, int) or value < least:
            raise InputError(f"{option} is {value!r}; it must be a whole number of at least {least}")
    if words is not None and not isinstance(words, str | Path):
        raise InputError(f"words is {words!r}; it must be the path of a file with a word at the start of every line")
    if tokenizer is not None and not isinstance(tokenizer, str):
        raise InputError(f"tokenizer is {tokenizer!r}; it must be the name or the folder of a model")
    if tokenizer is not None and words is not None:
        raise InputError("words and tokenizer are both given; give one of them")


def tokenise(text: str) -> list[str]:
    """The words, numbers and punctuation marks of a text, in lower case."""
    return _WORD.findall(text.lower())


def build_vocabulary(texts: Iterable[Sequence[str]], words: str | None, vocabulary: int) -> dict[str, int]:
    """The token of every known word: the first words of the file `words`, or the most frequent words of the texts."""
    if words is not None:
        ranked = _read(Path(words).expanduser(), vocabulary - FIRST_WORD)
    else:
        counts = Counter(word for text in texts for word in text)
        ranked = sorted(counts, key=lambda word: (-counts[word], word))[: vocabulary - FIRST_WORD]
    tokens: dict[str, int] = {}
    for rank, word in enumerate(ranked):
        tokens.setdefault(word, FIRST_WORD + rank)
    return tokens


def encode(texts: Sequence[Sequence[str]], tokens: dict[str, int], length: int) -> np.ndarray:
    """The tokens of the first `length` words of every text, N × length."""
    rows = np.full((len(texts), length), PADDING, dtype=np.int32)
    for row, text in zip(rows, texts, strict=True):
        kept = [tokens.get(word, UNKNOWN) for word in text[:length]]
        row[length - len(kept) :] = kept
    return rows


def _read(path: Path, count: int) -> list[str]:
    if not path.is_file():
        raise InputError(f"words: there is no file '{path}'")
    try:
        # Only \n ends a line, because some words contain other line breaks.
        with path.open(encoding="utf-8", newline="\n") as file:
            return [line.rstrip("\r\n").partition(" ")[0] for line in islice(file, count)]
    except (OSError, UnicodeDecodeError) as error:
        raise file_error(path, f"it cannot be read as text: {error}") from error
