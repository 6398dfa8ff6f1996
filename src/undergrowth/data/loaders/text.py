"""Any text file: the next character at every position, in the lines of speaking roles if the text is a play.

A speech is a line that ends with a colon, at the start of the text or after an empty line, and the lines after it up to
the next empty line:

    First Citizen:
    Before we proceed any further, hear me speak.
"""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np

from undergrowth.core import InputError
from undergrowth.data.dataset import Dataset
from undergrowth.data.dataset_entry import DatasetEntry
from undergrowth.data.loaders.files import MissingFilesError, file_error, read_bytes
from undergrowth.data.loaders.targets import NO_LABEL

_SPEECH = re.compile(r"(?:\A|\n\n)([^\n:]{1,60}):\n(.*?)(?=\n\n|\n?\Z)", re.DOTALL)

MAX_LENGTH = 1_000_000  # of a sample


def load(path: Path, *, length: int = 80, test_share: float = 0.1) -> Dataset:
    """Pieces of `length` characters; the label of a position is the character after it; the field is `role`.

    All speeches of a role are one text. The last `test_share` of the pieces of every role are the central test set.
    """
    if isinstance(length, bool) or not isinstance(length, int) or not 1 <= length <= MAX_LENGTH:
        raise InputError(f"length is {length!r}; it must be a whole number from 1 to {MAX_LENGTH}")
    if isinstance(test_share, bool) or not isinstance(test_share, int | float) or not 0 < test_share < 1:
        raise InputError(f"test_share is {test_share!r}; it must be a number between 0 and 1, such as 0.1")
    file = _find(path)
    texts = _texts(file)
    letters = sorted(set("".join(texts.values())))
    number = {letter: place for place, letter in enumerate(letters)}
    parts: dict[bool, list[tuple[np.ndarray, np.ndarray]]] = {True: [], False: []}
    roles: list[str] = []
    for role, text in texts.items():
        x, y = _pieces(np.array([number[letter] for letter in text], dtype=np.int16), length)
        kept = len(x) - int(test_share * len(x) + 1e-9)
        parts[True].append((x[:kept], y[:kept]))
        parts[False].append((x[kept:], y[kept:]))
        roles += [role] * kept
    (x, y), (test_x, test_y) = (
        tuple(np.concatenate(arrays) for arrays in zip(*parts[is_train], strict=True)) for is_train in (True, False)
    )
    if not len(test_x):
        raise file_error(
            file, f"no role has {1 / test_share:.0f} pieces of {length} characters; set a smaller data.length"
        )
    name, fields = file.name.partition(".")[0], {"role": np.array(roles)}
    return Dataset(name, x, y, test_x, test_y, len(letters), tuple(letters), fields, task="next-token")


def _find(path: Path) -> Path:
    if path.is_file():
        return path
    files = sorted([*path.glob("*.txt"), *path.glob("*.txt.gz")])
    if len(files) > 1:
        raise InputError(f"path is '{path}', a folder with {len(files)} text files; name one of them")
    if not files:
        raise MissingFilesError("it contains no .txt or .txt.gz file" if path.is_dir() else "there is no such file")
    return files[0]


def _texts(file: Path) -> dict[str, str]:
    """The text of each role with at least two characters. A text without roles is that of one role."""
    try:
        text = read_bytes(file).decode("utf-8").replace("\r\n", "\n")
    except UnicodeDecodeError as error:
        raise file_error(file, "it is not UTF-8 text") from error
    texts: dict[str, str] = {}
    for role, speech in _SPEECH.findall(text):
        texts[role] = texts.get(role, "") + speech + "\n"
    texts = {role: words for role, words in texts.items() if len(words) > 1} or {file.name.partition(".")[0]: text}
    if max(map(len, texts.values())) < 2:
        raise file_error(file, "it has fewer than two characters; there is nothing to predict")
    return texts


def _pieces(tokens: np.ndarray, length: int) -> tuple[np.ndarray, np.ndarray]:
    """Inputs and the tokens that follow, samples × length. The last piece is filled with tokens that do not count."""
    count = -(-(len(tokens) - 1) // length)
    x, y = np.zeros(count * length, tokens.dtype), np.full(count * length, NO_LABEL, tokens.dtype)
    x[: len(tokens) - 1], y[: len(tokens) - 1] = tokens[:-1], tokens[1:]
    return x.reshape(count, length), y.reshape(count, length)


ENTRY = DatasetEntry(
    name="text",
    title="Any text file, next character at every position, by speaking role",
    shape=(80,),
    licence="that of the file",
    how_to_get="give the path of a .txt or .txt.gz file",
    layout="one UTF-8 file; in a play, a line ROLE: before each speech and an empty line after it",
    example='load("text", "~/data/tinyshakespeare.txt")',
    loader=load,
    fields=("role",),
    loader_options={
        "length": "characters of one sample",
        "test_share": "fraction of every role's samples for the central test set, the last ones",
    },
    task="next-token",
)
