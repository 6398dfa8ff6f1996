"""CIFAR-10 and CIFAR-100 in their binary and Python versions."""

from __future__ import annotations

import io
import os
import pickle
import struct
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest

from undergrowth.core.errors import InputError
from undergrowth.data import load

PIXELS = np.random.default_rng(0).integers(0, 256, (20, 3072), np.uint8)
FINE = np.arange(20) % 10
COARSE = np.arange(20) % 4


class OldPickler(pickle._Pickler):  # type: ignore[name-defined, misc]
    """Writes bytes and texts as Python 2 wrote its strings, and arrays with numpy's old module names."""

    dispatch: ClassVar[dict[type, Any]] = dict(pickle._Pickler.dispatch)  # type: ignore[attr-defined]

    def save_old_string(self, value: Any) -> None:
        raw = value if isinstance(value, bytes) else value.encode("latin1")
        self.write(pickle.BINSTRING + struct.pack("<i", len(raw)) + raw)
        self.memoize(value)

    dispatch[bytes] = dispatch[str] = save_old_string


def old_pickle(value: Any) -> bytes:
    out = io.BytesIO()
    OldPickler(out, protocol=2).dump(value)
    return out.getvalue().replace(b"cnumpy._core.multiarray\n", b"cnumpy.core.multiarray\n")


def records(*labels: np.ndarray) -> bytes:
    return np.concatenate([np.stack(labels, 1), PIXELS], axis=1).astype(np.uint8).tobytes()


def write_binary(folder: Path) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    for name in ("data_batch_1", "data_batch_2", "test_batch"):
        (folder / f"{name}.bin").write_bytes(records(FINE))
    return folder


def write_python(folder: Path, dump: Any = old_pickle) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    for name in ("data_batch_1", "data_batch_2", "test_batch"):
        (folder / name).write_bytes(dump({"data": PIXELS, "labels": FINE.tolist(), "batch_label": name}))
    return folder


def test_cifar10_binary(tmp_path: Path) -> None:
    folder = write_binary(tmp_path / "cifar-10-batches-bin")
    for path in (folder, tmp_path):
        dataset = load("cifar10", path)
        assert dataset.x.shape == (40, 3, 32, 32) and np.array_equal(dataset.test_x.reshape(20, -1), PIXELS)
        assert np.array_equal(dataset.y, np.tile(FINE, 2)) and dataset.class_names[3] == "cat"
    (folder / "batches.meta.txt").write_text("\n".join("abcdefghij") + "\n\n")
    assert load("cifar10", folder).class_names == tuple("abcdefghij")


@pytest.mark.parametrize("dump", [old_pickle, *(lambda value, p=p: pickle.dumps(value, p) for p in range(6))])
def test_cifar10_python(dump: Any, tmp_path: Path) -> None:
    folder = write_python(tmp_path / "cifar-10-batches-py", dump)
    (folder / "batches.meta").write_bytes(dump({"label_names": list("abcdefghij")}))
    for path in (folder, tmp_path):
        dataset = load("cifar10", path)
        assert np.array_equal(np.asarray(dataset.x).reshape(40, -1), np.tile(PIXELS, (2, 1)))
        assert np.array_equal(dataset.test_y, FINE) and dataset.class_names == tuple("abcdefghij")


def test_cifar100_binary(tmp_path: Path) -> None:
    folder = tmp_path / "cifar-100-binary"
    folder.mkdir()
    for name in ("train.bin", "test.bin"):
        (folder / name).write_bytes(records(COARSE, FINE + 90))
    dataset = load("cifar100", tmp_path)
    assert np.array_equal(dataset.y, FINE + 90) and np.array_equal(dataset.fields["superclass"], COARSE)
    assert dataset.classes == 100 and dataset.class_names == ()


def test_cifar100_python(tmp_path: Path) -> None:
    for name in ("train", "test"):
        content = {b"data": PIXELS, b"fine_labels": FINE.tolist(), b"coarse_labels": COARSE.tolist()}
        (tmp_path / name).write_bytes(old_pickle(content))
    (tmp_path / "meta").write_bytes(old_pickle({"fine_label_names": [f"c{i}" for i in range(100)]}))
    dataset = load("cifar100", tmp_path)
    assert np.array_equal(dataset.y, FINE) and dataset.class_names[99] == "c99"


def test_missing_batches_are_named(tmp_path: Path) -> None:
    folder = write_binary(tmp_path)
    (folder / "data_batch_1.bin").unlink()
    with pytest.raises(InputError, match=r"contains data_batch_2.bin but no data_batch_1.bin"):
        load("cifar10", folder)
    write_binary(tmp_path)
    (folder / "test_batch.bin").unlink()
    with pytest.raises(InputError, match=r"contains no test_batch.bin"):
        load("cifar10", folder)


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (records(FINE)[:-1], "61459 bytes is not a multiple of 3073"),
        (b"", "0 bytes"),
        (records(FINE + 1), "the label of image 9 is 10; labels must be from 0 to 9"),
    ],
)
def test_damaged_records_are_refused(content: bytes, said: str, tmp_path: Path) -> None:
    (write_binary(tmp_path) / "data_batch_2.bin").write_bytes(content)
    with pytest.raises(InputError, match=f"data_batch_2.bin: .*{said}"):
        load("cifar10", tmp_path)


class Harmful:
    def __reduce__(self) -> tuple[Any, ...]:
        return os.mkdir, ("harm",)


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (old_pickle({"data": PIXELS, "labels": FINE.tolist()})[:-500], "truncated or not a pickle"),
        (b"", "truncated or not a pickle"),
        (b"\x80\x02hello", "truncated or not a pickle"),
        (pickle.dumps([1]), "contains a list instead of a dictionary"),
        (pickle.dumps({"data": PIXELS}), "contains no 'labels', only data"),
        (pickle.dumps({"data": PIXELS[:, 1:], "labels": FINE.tolist()}), "N×3072 bytes"),
        (pickle.dumps({"data": "x", "labels": FINE.tolist()}), "N×3072 bytes"),
        (pickle.dumps({"data": PIXELS, "labels": [1]}), "must be 20 integers"),
        (pickle.dumps({"data": PIXELS, "labels": [[1], []]}), "not a list of integers"),
        (pickle.dumps({"data": PIXELS, "labels": [-1] * 20}), "image 0 is -1"),
        (pickle.dumps({"data": Harmful()}), "refers to (posix|nt).mkdir; only numpy arrays and plain types"),
        (pickle.dumps({"data": np.float64}), "refers to numpy.float64"),
        (b"\x80\x02c_codecs\nencode\nX\x01\0\0\0aX\x05\0\0\0rot13\x86R.", "codec 'rot13'"),
    ],
)
def test_damaged_and_harmful_pickles_are_refused(
    content: bytes, said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (write_python(tmp_path) / "data_batch_2").write_bytes(content)
    with pytest.raises(InputError, match=f"data_batch_2: .*{said}"):
        load("cifar10", tmp_path)
    assert not (tmp_path / "harm").exists()
