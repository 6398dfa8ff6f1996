"""The catalogue: names, descriptions, and default paths."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from undergrowth.core.errors import InputError
from undergrowth.data import describe, load, names

FILES = [name for name in names() if not describe(name).embedded]


def test_the_catalogue_has_all_data_sets() -> None:
    assert names()[0] == "digits"
    files = {"mnist", "fashion-mnist", "cifar10", "cifar100", "femnist", "shakespeare", "agnews", "speech-commands"}
    assert files | {"npz", "images"} <= set(names())


@pytest.mark.parametrize("name", names())
def test_every_entry_is_complete(name: str) -> None:
    entry = describe(name)
    assert entry.name == name
    assert entry.title and entry.licence and entry.how_to_get and entry.layout
    assert entry.example.startswith(f'load("{name}"')
    assert "seed" in entry.options or entry.shape
    assert entry.meanings.keys() == entry.options.keys() and all(entry.meanings.values())


@pytest.mark.parametrize("name", FILES)
def test_missing_files_are_listed_with_their_folder(name: str, tmp_path: Path) -> None:
    for path in (tmp_path, tmp_path / "nowhere"):
        with pytest.raises(InputError) as caught:
            load(name, path)
        assert str(path) in str(caught.value) and describe(name).how_to_get in str(caught.value)


def test_default_paths(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.delenv("UNDERGROWTH_DATA", raising=False)
    with pytest.raises(InputError, match=r"home/\.cache/undergrowth/mnist .* set UNDERGROWTH_DATA"):
        load("mnist")
    monkeypatch.setenv("UNDERGROWTH_DATA", str(tmp_path))
    with pytest.raises(InputError, match=f"{tmp_path}/mnist"):
        load("mnist")
    (tmp_path / "npz").mkdir()
    np.savez(tmp_path / "npz" / "mine.npz", x=np.zeros((10, 2)), y=np.arange(10) % 2)
    assert load("npz").name == "mine"


def test_a_tilde_is_expanded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    np.savez(tmp_path / "mine.npz", x=np.zeros((10, 2)), y=np.arange(10) % 2)
    assert len(load("npz", "~/mine.npz")) == 8


def test_wrong_names_and_options_are_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="'mnst' is not known; did you mean 'mnist'"):
        load("mnst")
    with pytest.raises(InputError, match="did you mean 'size'"):
        load("images", tmp_path, sise=3)
    with pytest.raises(
        InputError, match="'mnist' has no option 'size'; choose one of: normalise, test_samples, train_samples"
    ):
        load("mnist", tmp_path, size=3)
    with pytest.raises(InputError, match="takes no path"):
        load("digits", tmp_path)
    with pytest.raises(InputError, match=r"'table.csv': there is no such file; the path is relative to '/"):
        load("table.csv")
    for name in (str(tmp_path / "table.csv"), "~/no/table.csv"):
        with pytest.raises(InputError, match=r"table.csv': there is no such file$"):
            load(name)
    with pytest.raises(InputError, match="path is 3"):
        load("mnist", 3)  # type: ignore[arg-type]
    with pytest.raises(InputError, match="no-such-user"):
        load("mnist", "~no-such-user/data")


def test_a_sample_of_a_set_keeps_the_class_frequencies() -> None:
    whole, part = load("digits"), load("digits", train_samples=200, test_samples=50)
    assert (len(part), len(part.test_y)) == (200, 50)
    fractions = np.bincount(whole.labels) / len(whole)
    assert np.abs(np.bincount(part.labels) - 200 * fractions).max() <= 1
    assert np.array_equal(part.x, load("digits", train_samples=200).x)
    smaller = {row.tobytes() for row in load("digits", train_samples=100).x}
    assert smaller < {row.tobytes() for row in part.x}
    assert len(load("digits", train_samples=10**6)) == len(whole)
    for wrong in (0, -1, 0.5, True, "many"):
        with pytest.raises(InputError, match=r"train_samples is .* must be a whole number of at least 1"):
            load("digits", train_samples=wrong)


def test_a_sample_keeps_its_fields(tmp_path: Path) -> None:
    x = np.arange(40.0).reshape(20, 2)
    np.savez(tmp_path / "mine.npz", x=x, y=np.arange(20) % 2, x_test=x, y_test=np.arange(20) % 2, row=x[:, 0])
    part = load("npz", tmp_path / "mine.npz", train_samples=6)
    assert len(part) == 6 and np.array_equal(part.x[:, 0], part.fields["row"]) and len(part.test_y) == 20
