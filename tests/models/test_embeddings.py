"""Word vectors: trained ones are sent, frozen ones are not, and both accept any token."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.numpy import save_file
from torch import nn

import undergrowth as ug
from undergrowth.core import Model
from undergrowth.core.errors import InputError
from undergrowth.models import builder

DIMENSION = 3


def vectors(words: int = 9, dimension: int = DIMENSION) -> np.ndarray:
    return np.random.default_rng(0).normal(size=(words, dimension)).astype(np.float32).round(4)


def text(folder: Path, table: np.ndarray, name: str = "glove.txt") -> str:
    lines = [" ".join([f"word{rank}", *(f"{number:.4f}" for number in row)]) for rank, row in enumerate(table)]
    (folder / name).write_text("\n".join(lines) + "\n")
    return str(folder / name)


def make(path: str, vocabulary: int = 20) -> nn.Module:
    torch.manual_seed(0)
    return builder("lstm-words", (6,), 4, embeddings=path, vocabulary=vocabulary, hidden=8)()


def embedded(module: nn.Module, *tokens: int) -> np.ndarray:
    return module[0](torch.tensor([tokens])).detach().numpy()[0]


def test_a_token_is_the_rank_of_a_word_in_the_file(tmp_path: Path) -> None:
    table = vectors()
    module = make(text(tmp_path, table))
    found = embedded(module, 2, 10, 0, 1, 11, 10**6)
    np.testing.assert_array_equal(found[0], table[0])
    np.testing.assert_array_equal(found[1], table[8])
    np.testing.assert_array_equal(found[2], 0)
    np.testing.assert_allclose(found[3], table.mean(axis=0), rtol=1e-6)
    np.testing.assert_array_equal(found[4:], found[[3, 3]], "beyond the list: not known")
    np.testing.assert_array_equal(embedded(make(text(tmp_path, table), vocabulary=5), 4)[0], table[2])
    np.testing.assert_allclose(embedded(make(text(tmp_path, table), vocabulary=5), 5)[0], table[:3].mean(0), rtol=1e-6)


def test_all_formats_give_the_same(tmp_path: Path) -> None:
    table = vectors()
    save_file({"anything": table}, tmp_path / "w.safetensors")
    np.savez(tmp_path / "w.npz", vectors=table, words=np.arange(9).astype(str))
    expected = make(text(tmp_path, table))[0].table
    for name in ("w.safetensors", "w.npz"):
        assert torch.equal(make(str(tmp_path / name))[0].table, expected)
    table[0] = 7
    assert make(text(tmp_path, table))[0].table[2, 0] == 7, "a changed file is read again"


def test_frozen_vectors_are_not_part_of_the_state(tmp_path: Path) -> None:
    frozen = Model(lambda: make(text(tmp_path, vectors())))
    trained = Model(builder("lstm-words", (6,), 4, vocabulary=20, embedding=DIMENSION, hidden=8))
    assert not [name for name in frozen.shapes if name.startswith("embedding")]
    assert set(trained.shapes) - set(frozen.shapes) == {"embedding.vectors.weight"}
    assert [table.shape for table in frozen.constants.values()] == [(11, DIMENSION)] and not trained.constants
    weights, tokens = frozen.initial(3), torch.randint(0, 30, (5, 6))
    assert frozen(weights, tokens).shape == trained(trained.initial(3), tokens).shape == (5, 4)
    # The two LSTM layers of Shi's thesis on GloVe vectors of 100 numbers: 0.9 M parameters without the vectors.
    module = builder("lstm-words", (64,), 4, embeddings=text(tmp_path, vectors(dimension=100)))()
    assert sum(parameter.numel() for parameter in module.parameters()) == 893_956


def run(tmp_path: Path, embeddings: str | None, **changes: Any) -> ug.Result:
    random = np.random.default_rng(1)
    y = random.integers(0, 2, 120)
    x = np.where(random.random((120, 6)) < 0.5, 2 + y[:, None], random.integers(4, 11, (120, 6)))
    data = ug.data.Dataset("words", x[:80], y[:80], x[80:], y[80:], classes=2)
    given = {"embeddings": embeddings, "hidden": 8, "vocabulary": 11, **changes.pop("model_options", {})}
    settings = {"rounds": 2, "batch": 8, "partition": "iid", "clients": 4, "lr": 1.0, **changes}
    return ug.run(data=data, model="lstm-words", model_options=given, out=str(tmp_path / "runs"), **settings)


def test_only_a_trained_table_is_sent_and_a_frozen_one_takes_memory(tmp_path: Path) -> None:
    small, large = text(tmp_path, vectors(9)), text(tmp_path, vectors(1009), "large.txt")
    trained = run(tmp_path, None, model_options={"embedding": DIMENSION})
    frozen = run(tmp_path, small)
    size, jobs = 11 * DIMENSION * 4, 8
    assert trained.ledger.bytes_down - frozen.ledger.bytes_down >= size * jobs
    wide = run(tmp_path, large, model_options={"vocabulary": 1011})
    assert wide.ledger.bytes_down == frozen.ledger.bytes_down and wide.ledger.bytes_up == frozen.ledger.bytes_up
    assert wide.ledger.peak_device_bytes - frozen.ledger.peak_device_bytes == 1000 * DIMENSION * 4


def test_frozen_vectors_work_on_every_engine_and_are_in_the_result(tmp_path: Path) -> None:
    path = text(tmp_path, vectors())
    assert run(tmp_path, path, rounds=10, lr=0.05, optimiser="adam").accuracy > 0.7
    results = [run(tmp_path, path, engine=engine, lr=0.1) for engine in ("serial", "vector", "processes")]
    for name, value in results[0].model.state_dict().items():
        for other in results[1:]:
            torch.testing.assert_close(other.model.state_dict()[name], value, rtol=1e-3, atol=1e-4)
    model = ug.load(results[0].run, out=str(tmp_path / "runs")).model
    assert torch.equal(model[0].table, make(path)[0].table)


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ("", "it is empty"),
        ("word\n", "line 1 must be a word and its numbers"),
        ("a 1 2\nb 3\n", "line 2 must be a word and its numbers, as many as on the first line"),
        ("a 1 2\nb 3 four\n", "line 2: could not convert string to float"),
        ("a 1 2\nb 3 nan\n", "contains NaN or an infinite number"),
        (b"\xff\xfe", "cannot be read"),
    ],
)
def test_a_damaged_text_is_refused(content: str | bytes, said: str, tmp_path: Path) -> None:
    (tmp_path / "w.txt").write_bytes(content if isinstance(content, bytes) else content.encode())
    with pytest.raises(InputError, match=f"embeddings: .*{said}"):
        make(str(tmp_path / "w.txt"))


def test_a_damaged_table_is_refused(tmp_path: Path) -> None:
    for name in ("w.npz", "w.safetensors"):
        for content in (b"", b"nothing of the kind"):
            (tmp_path / name).write_bytes(content)
            with pytest.raises(InputError, match=r"embeddings: .* cannot be read"):
                make(str(tmp_path / name))
    save_file({"a": vectors(), "b": vectors()}, tmp_path / "w.safetensors")
    with pytest.raises(InputError, match="it contains 2 tables of numbers; it must contain one"):
        make(str(tmp_path / "w.safetensors"))
    with pytest.raises(InputError, match="option vocabulary must be above 2, not 2"):
        make(str(tmp_path / "w.safetensors"), vocabulary=2)
