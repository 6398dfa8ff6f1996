"""FEMNIST, Shakespeare and Reddit from LEAF's JSON files."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from undergrowth.core.errors import InputError
from undergrowth.data import load, partition_dataset
from undergrowth.data.loaders.shakespeare import ALPHABET

LINE = ("To be, or not to be, that is the question:\n" * 2)[:80]


def pictures(count: int, label: int) -> dict[str, Any]:
    return {"x": [[0.25] * 784 for _ in range(count)], "y": [label] * count}


def write(folder: Path, *files: dict[str, Any], test: dict[str, Any]) -> Path:
    for part, contents in (("train", files), ("test", (test,))):
        (folder / part).mkdir(parents=True, exist_ok=True)
        for number, users in enumerate(contents):
            content = {"users": list(users), "num_samples": [], "user_data": users}
            (folder / part / f"all_data_{number}_niid.json").write_text(json.dumps(content))
    return folder


def test_femnist(tmp_path: Path) -> None:
    first, second = {"f01": pictures(3, 61), "f02": pictures(2, 0)}, {"f03": pictures(1, 9), "f04": pictures(0, 0)}
    write(tmp_path / "data", first, second, test={"f01": pictures(2, 1)})
    dataset = load("femnist", tmp_path)
    assert dataset.x.shape == (6, 1, 28, 28) and np.asarray(dataset.x).dtype == np.float32
    assert np.asarray(dataset.y).tolist() == [61, 61, 61, 0, 0, 9]
    assert (dataset.class_names[9], dataset.class_names[10], dataset.class_names[61]) == ("9", "A", "z")
    population = partition_dataset(dataset, "natural:writer", None, 0)
    assert population.groups == ("f01", "f02", "f03") and population.size("device-000") == 3


def test_shakespeare(tmp_path: Path) -> None:
    roles = {"HAMLET_1": {"x": [LINE, LINE], "y": ["a", "}"]}, "OPHELIA": {"x": ["é" * 80], "y": ["\n"]}}
    dataset = load("shakespeare", write(tmp_path, roles, test=roles))
    assert len(ALPHABET) == dataset.classes == 80 and dataset.shape == (80,)
    shard = dataset.shard([0, 1, 2])
    assert shard.x.dtype == torch.int64
    assert "".join(ALPHABET[token] for token in shard.x[0].tolist()) == LINE
    assert shard.y.tolist() == [ALPHABET.index("a"), 79, 0]
    assert set(shard.x[2].tolist()) == {79}  # as in LEAF, what is not in the alphabet counts as its last letter
    assert partition_dataset(dataset, "natural", None, 0).groups == ("HAMLET_1", "OPHELIA")


def comment(text: str) -> tuple[list[list[str]], dict[str, Any]]:
    """A comment and its label as LEAF writes them: pieces of ten words, and the words that follow."""
    words = text.split()
    inputs, following = ["<BOS>", *words, "<EOS>"], [*words, "<EOS>", "<PAD>"]
    padded = [[*part, *["<PAD>"] * (-len(part) % 10)] for part in (inputs, following)]
    pieces, targets = ([part[first : first + 10] for first in range(0, len(part), 10)] for part in padded)
    return pieces, {"subreddit": "pics", "target_tokens": targets}


def reddit_user(*texts: str) -> dict[str, Any]:
    x, y = zip(*map(comment, texts), strict=True)
    return {"x": list(x), "y": list(y)}


def test_reddit(tmp_path: Path) -> None:
    users = {"17": reddit_user("a b a b a b a c a", "a"), "18": reddit_user("b d")}
    dataset = load("reddit", write(tmp_path, users, test={"17": reddit_user("e b")}), vocabulary=6)
    # By frequency: a, b, then of the words that occur three times <BOS> and <EOS>; c, d and e are unknown.
    padding, unknown, a, b, begin, end = range(6)
    assert dataset.task == "next-token" and dataset.classes == 6 and dataset.shape == (10,)
    shard = dataset.shard([0, 1, 2, 3])
    assert shard.x[0].tolist() == [begin, a, b, a, b, a, b, a, unknown, a]
    assert shard.y[0].tolist() == [a, b, a, b, a, b, a, unknown, a, end]
    assert shard.x[1].tolist() == [end] + [padding] * 9 and set(shard.y[1].tolist()) == {-1}
    assert shard.y[3].tolist() == [b, unknown, end] + [-1] * 7
    assert dataset.central_test().x[0, :3].tolist() == [begin, unknown, b]
    population = partition_dataset(dataset, "natural", None, 0)
    assert population.groups == ("17", "18") and population.size("device-000") == 3


def test_wrong_comments_are_refused(tmp_path: Path) -> None:
    good = reddit_user("a b")
    for wrong, message in (
        ({"x": [[["a"] * 9]], "y": good["y"]}, "pieces of 10 words"),
        ({"x": [[[1] * 10]], "y": good["y"]}, "must be texts"),
        ({"x": good["x"], "y": [{}]}, "target_tokens"),
        ({"x": [good["x"][0] * 2], "y": good["y"]}, "2 pieces and 1"),
    ):
        with pytest.raises(InputError, match=message):
            load("reddit", write(tmp_path, {"17": wrong}, test={"17": good}))
    with pytest.raises(InputError, match="vocabulary is 2"):
        load("reddit", write(tmp_path, {"17": good}, test={"17": good}), vocabulary=2)


def test_a_missing_part_is_named(tmp_path: Path) -> None:
    write(tmp_path, {"f01": pictures(2, 1)}, test={})
    with pytest.raises(InputError, match=r"test: none of its files contains a sample"):
        load("femnist", tmp_path)
    next((tmp_path / "test").iterdir()).unlink()
    with pytest.raises(InputError, match=r"test contains no \*.json"):
        load("femnist", tmp_path)


@pytest.mark.parametrize(
    ("user", "said"),
    [
        ({"x": [[0.0] * 783], "y": [1]}, r"user 'f01': its inputs have shape \(1, 783\)"),
        ({"x": [[0.0] * 784, [0.0]], "y": [1, 1]}, "user 'f01': "),
        ({"x": [["a"] * 784], "y": [1]}, "user 'f01': "),
        ({"x": [[0.0] * 784], "y": [62]}, "integers from 0 to 61"),
        ({"x": [[0.0] * 784], "y": [0.5]}, "integers from 0 to 61"),
        ({"x": [[0.0] * 784], "y": [1, 2]}, "1 inputs and 2 labels"),
        ({"x": [[float("nan")] * 784], "y": [1]}, r"x\[0\] holds NaN"),
        ({"y": [1]}, "no lists 'x' and 'y'"),
        ([], "no lists 'x' and 'y'"),
    ],
)
def test_damaged_images_are_refused(user: Any, said: str, tmp_path: Path) -> None:
    write(tmp_path, {"f01": user}, test={"f01": pictures(2, 1)})
    with pytest.raises(InputError, match=said):
        load("femnist", tmp_path)


@pytest.mark.parametrize(
    ("x", "y", "said"),
    [
        (LINE[:79], "a", "input 0 must be a text of 80 characters"),
        (LINE, "ab", "label 0 must be one character, not 'ab'"),
        (LINE, 3, "label 0 must be one character, not 3"),
        (7, "a", "input 0 must be a text"),
    ],
)
def test_damaged_lines_are_refused(x: Any, y: Any, said: str, tmp_path: Path) -> None:
    write(tmp_path, {"HAMLET": {"x": [x], "y": [y]}}, test={"HAMLET": {"x": [LINE], "y": ["a"]}})
    with pytest.raises(InputError, match=f"0_niid.json: user 'HAMLET': its {said}"):
        load("shakespeare", tmp_path)


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b'{"users": ["a"', "truncated or not JSON"),
        (b"", "truncated or not JSON"),
        (b"\xff\xfe\xfa", "truncated or not JSON"),
        (b"[]", "no 'user_data'"),
        (b'{"user_data": 3}', "no 'user_data'"),
    ],
)
def test_damaged_files_are_refused(content: bytes, said: str, tmp_path: Path) -> None:
    write(tmp_path, {"f01": pictures(2, 1)}, test={"f01": pictures(2, 1)})
    (tmp_path / "train" / "b.json").write_bytes(content)
    with pytest.raises(InputError, match=f"b.json: .*{said}"):
        load("femnist", tmp_path)
