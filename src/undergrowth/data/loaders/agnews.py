"""AG News: news articles on four topics."""

from __future__ import annotations

import csv
import html
import io
import re
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from undergrowth.data.dataset import Dataset
from undergrowth.data.dataset_entry import DatasetEntry
from undergrowth.data.loaders.files import MissingFilesError, file_error, find_folder, read_text
from undergrowth.data.loaders.words import OPTIONS, token_rows

_CLASSES = ("World", "Sports", "Business", "Sci/Tech")
_LABELS = {name: label for label, name in enumerate(_CLASSES)} | {str(label + 1): label for label in range(4)}
# Remains of HTML in the articles: entities (some without &), tags, and \ at the end of a line.
_ENTITY = re.compile(r"&?(#\d+|quot|amp|lt|gt|nbsp);")
_TAG_OR_BACKSLASH = re.compile(r"<[^<>]*>|\\")


def load(
    path: Path, *, length: int = 64, vocabulary: int = 20_000, words: str | None = None, tokenizer: str | None = None
) -> Dataset:
    """Title and description as tokens.

    Without `words` the vocabulary is counted over all training texts, which a real federation could not do as simply.
    """
    folder = find_folder(path, ("ag_news_csv", "agnews", "text"), (f"{each}*" for each in _file_patterns("train")))
    texts, y = _read(_find(folder, "train"))
    test_texts, test_y = _read(_find(folder, "test"))
    x, test_x = token_rows([texts, test_texts], length, vocabulary, words, tokenizer)
    return Dataset("agnews", x, y, test_x, test_y, len(_CLASSES), _CLASSES)


def _file_patterns(part: str) -> tuple[str, ...]:
    return f"{part}.csv", f"{part}.tsv", f"agnews_*{part}*.tsv"


def _find(folder: Path, part: str) -> Path:
    for name in _file_patterns(part):
        found = sorted([*folder.glob(name), *folder.glob(f"{name}.gz")])
        if found:
            return found[0]
    raise MissingFilesError(f"{folder} contains no {' or '.join(_file_patterns(part))}")


def _read(file: Path) -> tuple[list[str], np.ndarray]:
    content = read_text(file)
    texts: list[str] = []
    labels: list[int] = []
    for number, (label, text) in enumerate(_csv(content) if ".csv" in file.name else _tsv(content), start=1):
        if label not in _LABELS:
            if number == 1 and label == "Class Index":
                continue  # some copies have a header
            raise file_error(file, f"article {number} has the class {label!r}; it must be one of {', '.join(_LABELS)}")
        texts.append(_TAG_OR_BACKSLASH.sub(" ", _ENTITY.sub(lambda found: html.unescape(f"&{found[1]};"), text)))
        labels.append(_LABELS[label])
    return texts, np.array(labels, dtype=np.int64)


def _csv(content: str) -> Iterator[tuple[str, str]]:
    """Class and text of each row; the columns are class, title and description."""
    for row in csv.reader(io.StringIO(content, newline="")):
        if row:
            yield row[0], " ".join(row[1:])


def _tsv(content: str) -> Iterator[tuple[str, str]]:
    """Class and text of each line; a line is text TAB class."""
    for line in content.split("\n"):
        if line.strip():
            text, _, label = line.rstrip("\r").rpartition("\t")
            yield label, text


ENTRY = DatasetEntry(
    name="agnews",
    title="AG News, the topic of an article (World, Sports, Business, Sci/Tech)",
    shape=(64,),
    classes=4,
    train=120_000,
    test=7_600,
    megabytes=33,
    licence="for research, not for commerce (Gulli 2005; Zhang, Zhao and LeCun 2015)",
    how_to_get=(
        "unpack ag_news_csv.tar.gz of Zhang, Zhao and LeCun's Character-level Convolutional Networks for Text "
        "Classification (Crepe, https://github.com/zhangxiangxiao/Crepe) there"
    ),
    layout='train.csv and test.csv with "class","title","description"; or train.tsv and test.tsv with text TAB class',
    example='load("agnews", "~/data/agnews", words="~/data/glove.6B.100d.txt")',
    loader=load,
    loader_options=OPTIONS,
)
