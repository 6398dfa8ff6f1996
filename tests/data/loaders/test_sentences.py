"""SST-2, SST-5 and MNLI from small files in their public formats."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from undergrowth.core.errors import InputError
from undergrowth.data import load
from undergrowth.data.loaders.words import PADDING, SEPARATOR, token_rows, tokenise


def write(folder: Path, **files: str) -> Path:
    for name, text in files.items():
        suffix = ".txt" if text.startswith("(") else ".tsv"
        (folder / f"{name}{suffix}").write_text(text, encoding="utf-8")
    return folder


SST2 = 'sentence\tlabel\nit \'s "good"\u0085 \t1\nbad , bad film \t0\n'


def test_sst2(tmp_path: Path) -> None:
    data = load("sst2", write(tmp_path, train=SST2, dev="sentence\tlabel\nbad\t0\n"), length=5)
    assert data.classes == 2 and np.asarray(data.y).tolist() == [1, 0] and np.asarray(data.test_y).tolist() == [0]
    bad = np.asarray(data.test_x)[0, -1]
    assert (np.asarray(data.x) == bad).sum(1).tolist() == [0, 2] and np.asarray(data.test_x)[0, 0] == PADDING


def test_sst2_as_it_is_unpacked_here(tmp_path: Path) -> None:
    (tmp_path / "text").mkdir()
    write(tmp_path / "text", sst2_train=SST2, sst2_glue_dev=SST2)
    assert len(load("sst2", tmp_path)) == 2


def test_sst5_reads_the_root_of_each_tree(tmp_path: Path) -> None:
    trees = "(3 (2 It) (4 (3 shines) (2 -LRB-)))\n(0 (1 Dull) (2 .))\n"
    data = load("sst5", write(tmp_path, train=trees, test=trees), length=4, vocabulary=9)
    assert data.classes == 5 and np.asarray(data.y).tolist() == [3, 0]
    assert (np.asarray(data.x) != PADDING).sum(1).tolist() == [3, 2]
    with pytest.raises(InputError, match="line 1 is not a tree"):
        load("sst5", write(tmp_path, train="(7 x)", test=trees))


HEADER = "index\tgenre\tsentence1\tsentence2\tgold_label\n"


def test_mnli_keeps_the_second_sentence_whole(tmp_path: Path) -> None:
    table = f"{HEADER}0\tfiction\ta b c d\te f\tneutral\n1\tletters\ta\tb\tentailment\n"
    data = load("mnli", write(tmp_path, train=table, dev_matched=table), length=5)
    assert np.asarray(data.y).tolist() == [1, 0] and list(data.fields["genre"]) == ["fiction", "letters"]
    pairs = [("a b c d", "e f"), ("a", "b")]
    words = ["a", "b", SEPARATOR, "e", "f"]
    (rows,) = token_rows([pairs], 5, 99, None, None)
    assert np.array_equal(np.asarray(data.x), rows) and len(set(rows[0])) == len(words) and (rows[0] != PADDING).all()
    assert tokenise("A b") == ["a", "b"]


def test_wrong_files_are_refused(tmp_path: Path) -> None:
    for text, sentence in (
        ("text\tlabel\nx\t1\n", "its first line has no column 'sentence'"),
        ("sentence\tlabel\nx\t3\n", "line 2 must have 2 columns and one of 0, 1 as label"),
        ("sentence\tlabel\nx\n", "line 2 must have 2 columns"),
    ):
        with pytest.raises(InputError, match=sentence):
            load("sst2", write(tmp_path, train=text, dev=SST2))
    with pytest.raises(InputError, match=r"data set 'mnli' is not in .* unpack MNLI.zip of GLUE"):
        load("mnli", tmp_path / "nowhere")
    with pytest.raises(InputError, match="words and tokenizer are both given"):
        load("sst2", write(tmp_path, train=SST2, dev=SST2), words="a.txt", tokenizer="b")
