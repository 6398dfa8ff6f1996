"""The next character of a text, by speaking role."""

from __future__ import annotations

import gzip
from pathlib import Path

import numpy as np
import pytest

from undergrowth.core import InputError
from undergrowth.data import load

PLAY = "Ann:\nabcabc\nab: c\n\nBob:\nxy\n\nAnn:\nca\n"


def test_a_play_is_cut_into_pieces_by_role(tmp_path: Path) -> None:
    (tmp_path / "play.txt.gz").write_bytes(gzip.compress(PLAY.encode()))
    data = load("text", tmp_path, length=4, test_share=0.5)
    letters = data.class_names
    assert letters == tuple(sorted(set("abcabc\nab: c\nca\nxy\n"))) and data.classes == len(letters)
    assert list(data.fields["role"]) == ["Ann", "Ann", "Bob"] and data.task == "next-token"
    both = [
        np.concatenate([np.asarray(one), np.asarray(other)])
        for one, other in ((data.x, data.test_x), (data.y, data.test_y))
    ]
    spoken = dict.fromkeys(["abca", "bc\na", "b: c", "\nca\n", "xy"])  # the inputs, without the padding of the last
    texts = {
        "".join(letters[t] for t, after in zip(x, y, strict=True) if after >= 0) for x, y in zip(*both, strict=True)
    }
    assert texts == {text if text != "\nca\n" else "\nca" for text in spoken}
    follows = [letters[token] for token in np.asarray(data.y)[0]]
    assert "".join(follows) == "bcab"  # after each of "abca"


def test_a_text_without_roles_is_one_role(tmp_path: Path) -> None:
    (tmp_path / "plain.txt").write_text("no roles here\n" * 20)
    data = load("text", tmp_path / "plain.txt", length=10)
    assert set(data.fields["role"]) == {"plain"} and data.name == "plain"


def test_bad_input(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="there is no such file"):
        load("text", tmp_path / "missing.txt")
    (tmp_path / "short.txt").write_text("a")
    with pytest.raises(InputError, match="fewer than two characters"):
        load("text", tmp_path / "short.txt")
    (tmp_path / "short.txt").write_text("abc")
    with pytest.raises(InputError, match="set a smaller"):
        load("text", tmp_path / "short.txt")
    with pytest.raises(InputError, match="length is 0; it must be a whole number"):
        load("text", tmp_path / "short.txt", length=0)
