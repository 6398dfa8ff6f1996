"""AG News from both layouts, and texts as tokens of words."""

from __future__ import annotations

import gzip
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import undergrowth as ug
from undergrowth.core.errors import InputError
from undergrowth.data import load
from undergrowth.data.loaders.words import PADDING, UNKNOWN, build_vocabulary, encode, tokenise

CSV = """"3","Oil rises","Oil rose,\\again, by  #36;2; ""high"", they said."
"2","A win","Spain #39;s team won &lt;b&gt;again&lt;/b&gt;"
"4","Space","A rocket"
"1","Talks","Talks in Rome
ended"
"""
TSV = "Oil rose by 2\tBusiness\nSpain won\tSports\n\nA rocket\tSci/Tech\nTalks ended\tWorld\n"


def write(folder: Path, train: str, test: str, ending: str) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / f"train.{ending}").write_text(train)
    (folder / f"test.{ending}").write_text(test)
    return folder


def test_the_public_csv_files(tmp_path: Path) -> None:
    write(tmp_path / "ag_news_csv", CSV, '"Class Index","Title","Description"\n"1","Rome","Oil talks"\n', "csv")
    dataset = load("agnews", tmp_path, length=12)
    assert dataset.labels.tolist() == [2, 1, 3, 0]
    assert (dataset.classes, dataset.class_names[2], dataset.shape) == (4, "Business", (12,))
    texts = [tokenise('Oil rises Oil rose, again, by $2; "high", they said.'), tokenise("A win Spain's team won again")]
    texts += [tokenise("Space A rocket"), tokenise("Talks Talks in Rome ended")]
    assert np.array_equal(dataset.x, encode(texts, build_vocabulary(texts, None, 20_000), 12))
    assert dataset.test_x[0][-3:].tolist() == [
        build_vocabulary(texts, None, 99)[word] for word in ("rome", "oil", "talks")
    ]
    assert len(dataset.test_y) == 1, "a header is no article"


def test_text_and_class_on_a_line(tmp_path: Path) -> None:
    folder = write(tmp_path, TSV, TSV, "tsv")
    dataset = load("agnews", folder, length=4)
    assert dataset.labels.tolist() == [2, 1, 3, 0]
    shard = dataset.shard([1])
    assert shard.x.dtype == torch.int64 and shard.x[0, :2].tolist() == [PADDING, PADDING]
    (folder / "train.tsv").unlink()
    (folder / "agnews_10k_from_train.tsv.gz").write_bytes(gzip.compress(TSV.encode()))
    assert np.array_equal(load("agnews", folder, length=4).x, dataset.x)


def test_words_are_small_letters_numbers_and_marks() -> None:
    assert tokenise("Don't panic: IBM's 2-year $50 deal!") == [
        "don", "'", "t", "panic", ":", "ibm", "'s", "2", "-", "year", "$", "50", "deal", "!",
    ]  # fmt: skip
    assert tokenise("'same'") == ["'", "same", "'"]
    assert tokenise(" \n") == []


def test_tokens_are_ranks_and_padding_comes_first(tmp_path: Path) -> None:
    texts = [["b", "a", "a"], ["c", "a", "b", "d"]]
    tokens = build_vocabulary(texts, None, 5)
    assert tokens == {"a": 2, "b": 3, "c": 4}, "the most frequent first, then by the alphabet"
    assert encode(texts, tokens, 3).tolist() == [[3, 2, 2], [4, 2, 3]]
    assert encode([*texts, []], tokens, 5).tolist()[1:] == [[PADDING, 4, 2, 3, UNKNOWN], [PADDING] * 5]
    file = tmp_path / "glove.txt"
    file.write_text("c 0.1 0.2\nx 0.3 0.4\na 0.5 0.6\nc 0.7 0.8\nb 1 1\n")
    assert build_vocabulary([], str(file), 6) == {"c": 2, "x": 3, "a": 4}


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"length": 0}, "length is 0; it must be a whole number of at least 1"),
        ({"length": 2.5}, "length is 2.5"),
        ({"vocabulary": 2}, "vocabulary is 2; it must be a whole number of at least 3"),
        ({"words": 3}, "words is 3; it must be the path of a file"),
        ({"words": "nowhere.txt"}, "words: there is no file 'nowhere.txt'"),
    ],
)
def test_wrong_options_are_refused(options: dict[str, Any], said: str, tmp_path: Path) -> None:
    with pytest.raises(InputError, match=said):
        load("agnews", write(tmp_path, TSV, TSV, "tsv"), **options)


def test_damaged_files_are_refused(tmp_path: Path) -> None:
    folder = write(tmp_path, CSV, CSV, "csv")
    for train, said in (
        ('"5","A","B"\n', "train.csv: article 1 has the class '5'; it must be one of World, "),
        ('"1","A","B"\n"x","A"\n', "article 2 has the class 'x'"),
        ("", "x is empty"),
        ("\xe9".encode("latin1"), "train.csv: it is not UTF-8 text"),
    ):
        (folder / "train.csv").write_bytes(train if isinstance(train, bytes) else train.encode())
        with pytest.raises(InputError, match=said):
            load("agnews", folder)
    (folder / "test.csv").unlink()
    (folder / "train.csv").write_text(CSV)
    with pytest.raises(InputError, match=r"contains no test\.csv or test\.tsv"):
        load("agnews", folder)


def test_a_federation_learns_the_topics(tmp_path: Path) -> None:
    """Synthetic articles in which one word decides the topic and the others are noise."""
    random = np.random.default_rng(0)
    keywords = {"World": "rome", "Sports": "match", "Business": "oil", "Sci/Tech": "rocket"}

    def articles(count: int) -> str:
        lines = []
        for name in random.choice(list(keywords), count):
            text = [*random.choice(list("abcdefghij"), 5), keywords[name]]
            lines.append(f"{' '.join(random.permutation(text))}\t{name}\n")
        return "".join(lines)

    folder = write(tmp_path / "agnews", articles(400), articles(100), "tsv")
    result = ug.run(
        data="agnews", path=str(folder), data_options={"length": 8, "vocabulary": 30},
        model="lstm-words", model_options={"vocabulary": 30, "embedding": 16, "hidden": 24},
        partition="iid", clients=4, rounds=6, epochs=2, lr=1.0, batch=16, out=str(tmp_path / "runs"),
    )  # fmt: skip
    assert result.accuracy > 0.9
