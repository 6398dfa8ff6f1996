"""The catalogue: names, what is told about each, and where files are looked for."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from undergrowth.core.errors import InputError
from undergrowth.data import describe, load, names

FILES = [name for name in names() if not describe(name).embedded]


def test_all_that_was_promised_is_there() -> None:
    assert names()[0] == "digits"
    assert {"mnist", "fashion-mnist", "cifar10", "cifar100", "femnist", "shakespeare", "npz", "images"} <= set(names())


@pytest.mark.parametrize("name", names())
def test_every_entry_tells_what_a_user_needs(name: str) -> None:
    entry = describe(name)
    assert entry.name == name
    assert entry.title and entry.licence and entry.how_to_get and entry.layout
    assert entry.example.startswith(f'load("{name}"')
    assert "seed" in entry.options or entry.shape


@pytest.mark.parametrize("name", FILES)
def test_a_missing_data_set_says_what_to_put_where(name: str, tmp_path: Path) -> None:
    for path in (tmp_path, tmp_path / "nowhere"):
        with pytest.raises(InputError) as caught:
            load(name, path)
        assert str(path) in str(caught.value) and describe(name).how_to_get in str(caught.value)


def test_places_without_a_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
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


def test_the_home_folder_is_understood(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    np.savez(tmp_path / "mine.npz", x=np.zeros((10, 2)), y=np.arange(10) % 2)
    assert len(load("npz", "~/mine.npz")) == 8


def test_wrong_names_and_options_are_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="'mnst' is not known; did you mean 'mnist'"):
        load("mnst")
    with pytest.raises(InputError, match="did you mean 'size'"):
        load("images", tmp_path, sise=3)
    with pytest.raises(InputError, match="'mnist' has no option 'size'; it takes none"):
        load("mnist", tmp_path, size=3)
    with pytest.raises(InputError, match="takes no path"):
        load("digits", tmp_path)
    with pytest.raises(InputError, match="path is 3"):
        load("mnist", 3)  # type: ignore[arg-type]
    with pytest.raises(InputError, match="no-such-user"):
        load("mnist", "~no-such-user/data")


def test_importing_stays_light() -> None:
    heavy = "{'sklearn', 'plotly', 'PIL', 'pandas'}"
    code = f"import sys, undergrowth.data; assert not {heavy} & set(sys.modules), {heavy} & set(sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True)
