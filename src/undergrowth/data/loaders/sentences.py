"""SST-2, SST-5 and MNLI: the sentiment of a sentence, and whether one sentence follows from another."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from undergrowth.data.dataset import Dataset
from undergrowth.data.dataset_entry import DatasetEntry
from undergrowth.data.loaders.files import file_error, find_file, find_folder, read_lines, read_text
from undergrowth.data.loaders.words import OPTIONS, token_rows

_SST2 = ("negative", "positive")
_SST5 = ("very negative", "negative", "neutral", "positive", "very positive")
_MNLI = ("entailment", "neutral", "contradiction")
# A word of a tree such as (3 (2 It) (4 shines)).
_LEAF = re.compile(r"\(\d ([^()]+)\)")
_BRACKETS = {"-LRB-": "(", "-RRB-": ")"}
_GLUE = "unpack {name}.zip of GLUE (https://gluebenchmark.com/tasks) there"


def load_sst2(
    path: Path, *, length: int = 64, vocabulary: int = 20_000, words: str | None = None, tokenizer: str | None = None
) -> Dataset:
    """GLUE's training sentences and phrases; its dev sentences are the test set, because its test set has no labels."""
    train, test = ("train.tsv", "sst2_train.tsv"), ("dev.tsv", "sst2_glue_dev.tsv")
    folder = find_folder(path, ("SST-2", "sst2", "text"), train)
    labels = {str(number): number for number in range(2)}
    parts = []
    for names in (train, test):
        rows = _read_table(find_file(folder, *names), labels, "label", "sentence")
        parts.append(([row["sentence"].strip() for row in rows], [labels[row["label"]] for row in rows]))
    return _dataset("sst2", parts, _SST2, length, vocabulary, words, tokenizer)


def load_sst5(
    path: Path, *, length: int = 64, vocabulary: int = 20_000, words: str | None = None, tokenizer: str | None = None
) -> Dataset:
    """The sentences of the Stanford trees with the label of their root, from 0 (very negative) to 4."""
    folder = find_folder(path, ("trees", "trainDevTestTrees_PTB/trees", "sst5"), ("train.txt",))
    parts = []
    for name in ("train.txt", "test.txt"):
        file = find_file(folder, name)
        texts, labels = [], []
        for number, line in enumerate(read_lines(file), start=1):
            leaves = _LEAF.findall(line)
            if not leaves or not re.match(r"\([0-4] ", line):
                raise file_error(file, f"line {number} is not a tree such as (3 (2 It) (4 shines))")
            texts.append(" ".join(_BRACKETS.get(leaf, leaf) for leaf in leaves))
            labels.append(int(line[1]))
        parts.append((texts, labels))
    return _dataset("sst5", parts, _SST5, length, vocabulary, words, tokenizer)


def load_mnli(
    path: Path,
    *,
    mismatched: bool = False,
    length: int = 128,
    vocabulary: int = 20_000,
    words: str | None = None,
    tokenizer: str | None = None,
) -> Dataset:
    """Pairs of premise and hypothesis; the field is `genre`. The test set is GLUE's matched or mismatched dev set."""
    folder = find_folder(path, ("MNLI", "mnli"), ("train.tsv",))
    labels = {name: number for number, name in enumerate(_MNLI)}
    test = ("dev_mismatched.tsv",) if mismatched else ("dev_matched.tsv", "dev.tsv")
    tables = [
        _read_table(find_file(folder, *names), labels, "gold_label", "sentence1", "sentence2", "genre")
        for names in (("train.tsv",), test)
    ]
    parts = [
        ([(row["sentence1"], row["sentence2"]) for row in rows], [labels[row["gold_label"]] for row in rows])
        for rows in tables
    ]
    fields = {"genre": np.array([row["genre"] for row in tables[0]])}
    return _dataset("mnli", parts, _MNLI, length, vocabulary, words, tokenizer, fields)


def _dataset(
    name: str,
    parts: Sequence[tuple[Any, list[int]]],  # texts and labels for training and for the test
    classes: tuple[str, ...],
    length: int,
    vocabulary: int,
    words: str | None,
    tokenizer: str | None,
    fields: Mapping[str, np.ndarray] | None = None,
) -> Dataset:
    (texts, y), (test_texts, test_y) = parts
    x, test_x = token_rows([texts, test_texts], length, vocabulary, words, tokenizer)
    labels, test_labels = (np.array(each, dtype=np.int64) for each in (y, test_y))
    return Dataset(name, x, labels, test_x, test_labels, len(classes), classes, fields or {})


def _read_table(file: Path, labels: Mapping[str, int], label: str, *columns: str) -> list[dict[str, str]]:
    """The rows of a file of tab-separated columns with a header. Quotation marks have no meaning in it."""
    # Only \n ends a line, because some sentences contain other line breaks.
    header, *lines = [line.rstrip("\r") for line in read_text(file).split("\n") if line.strip()] or [""]
    names = header.split("\t")
    for column in (label, *columns):
        if column not in names:
            raise file_error(file, f"its first line has no column '{column}'")
    rows = []
    for number, line in enumerate(lines, start=2):
        values = line.split("\t")
        row = dict(zip(names, values, strict=False))
        if len(values) != len(names) or row[label] not in labels:
            wanted = f"{len(names)} columns and one of {', '.join(labels)} as {label}"
            raise file_error(file, f"line {number} must have {wanted}")
        rows.append(row)
    return rows


SST2 = DatasetEntry(
    name="sst2",
    title="SST-2, the sentiment of a sentence (GLUE)",
    shape=(64,),
    classes=2,
    train=67_349,
    test=872,
    megabytes=17,
    licence="none stated; cite Socher et al. 2013",
    how_to_get=_GLUE.format(name="SST-2"),
    layout="train.tsv and dev.tsv with the columns sentence and label",
    example='load("sst2", "~/data/SST-2")',
    loader=load_sst2,
    loader_options=OPTIONS,
)

SST5 = DatasetEntry(
    name="sst5",
    title="SST-5, the sentiment of a sentence in five steps",
    shape=(64,),
    classes=5,
    train=8_544,
    test=2_210,
    megabytes=3,
    licence="none stated; cite Socher et al. 2013",
    how_to_get="unpack trainDevTestTrees_PTB.zip (https://nlp.stanford.edu/sentiment) there",
    layout="trees/train.txt and trees/test.txt with a tree on every line",
    example='load("sst5", "~/data/sst5")',
    loader=load_sst5,
    loader_options=OPTIONS,
)

MNLI = DatasetEntry(
    name="mnli",
    title="MNLI, whether one sentence follows from another (GLUE)",
    shape=(128,),
    classes=3,
    train=392_702,
    test=9_815,
    megabytes=206,
    licence="several, see the data; cite Williams, Nangia and Bowman 2018",
    how_to_get=_GLUE.format(name="MNLI"),
    layout="train.tsv and dev_matched.tsv with the columns sentence1, sentence2, gold_label and genre",
    example='load("mnli", "~/data/MNLI")',
    loader=load_mnli,
    fields=("genre",),
    loader_options={"mismatched": "true: the test set has other genres than the training set", **OPTIONS},
)
