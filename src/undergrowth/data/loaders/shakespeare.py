"""Shakespeare: the next character in the lines of a role, in the format of LEAF's scripts."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from undergrowth.core import InputError
from undergrowth.data.dataset import Array, Dataset, to_numpy
from undergrowth.data.dataset_entry import DatasetEntry
from undergrowth.data.loaders.leaf import load_leaf

# LEAF's alphabet, in LEAF's order, so that results and models can be compared.
ALPHABET = "\n !\"&'(),-.0123456789:;>?ABCDEFGHIJKLMNOPQRSTUVWXYZ[]abcdefghijklmnopqrstuvwxyz}"
_LENGTH = 80

# Token by code point. Any other character is encoded as the last one, as in LEAF.
_TOKENS = np.full(128, len(ALPHABET) - 1, dtype=np.int8)
_TOKENS[[ord(letter) for letter in ALPHABET]] = np.arange(len(ALPHABET))


def load(path: Path, *, task: str = "classification") -> Dataset:
    """Inputs of 80 characters; the label is the next character, or that of every position; the field is `role`."""
    if task not in ("classification", "next-token"):
        raise InputError(f"task '{task}': shakespeare can have the tasks classification, next-token")
    # Tokens stay bytes until a shard is built, because the full set would take 2.7 GB as int64.
    data = load_leaf("shakespeare", path, _convert, tuple(ALPHABET), "role")
    if task == "classification":
        return data
    y, test_y = (_next_tokens(x, y) for x, y in ((data.x, data.y), (data.test_x, data.test_y)))
    return replace(data, y=y, test_y=test_y, task=task)


def _next_tokens(x: Array, following: Array) -> np.ndarray:
    """The character after each position: the inputs, shifted by one, and the label."""
    return np.concatenate([to_numpy(x)[:, 1:], to_numpy(following)[:, None].astype(np.int8)], axis=1)


def _convert(x: list[Any], y: list[Any]) -> tuple[np.ndarray, np.ndarray]:
    for position, (text, following) in enumerate(zip(x, y, strict=True)):
        if not isinstance(text, str) or len(text) != _LENGTH:
            raise ValueError(f"its input {position} must be a text of {_LENGTH} characters")
        if not isinstance(following, str) or len(following) != 1:
            raise ValueError(f"its label {position} must be one character, not {following!r}")
    return encode("".join(x)).reshape(-1, _LENGTH), encode("".join(y)).astype(np.int64)


def encode(text: str) -> np.ndarray:
    """The tokens of a text, as int8."""
    points = np.frombuffer(text.encode("utf-32-le", "surrogatepass"), dtype="<u4")
    tokens: np.ndarray = _TOKENS[np.minimum(points, len(_TOKENS) - 1)]
    return tokens


ENTRY = DatasetEntry(
    name="shakespeare",
    title="Shakespeare (LEAF), next character by speaking role, 80 characters",
    shape=(_LENGTH,),
    classes=len(ALPHABET),
    train=3_803_542,
    test=422_616,
    megabytes=372,
    licence="public domain (Project Gutenberg); LEAF's scripts are BSD-2",
    how_to_get=(
        "run LEAF's data/shakespeare/preprocess.sh -s niid --sf 1.0 -k 0 -t sample "
        "(https://github.com/TalwalkarLab/leaf) and put its folders data/train and data/test there"
    ),
    layout="train/*.json and test/*.json with users, user_data: {user: {x, y}}",
    example='load("shakespeare", "~/data/shakespeare")',
    loader=load,
    fields=("role",),
    loader_options={
        "task": "classification (the character after the 80) or next-token (that after each); by default the run's"
    },
)
