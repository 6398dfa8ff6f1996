"""OPERAnet: tables of radio sensors in the published columns, cut into moments, as images."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy.io import savemat

from undergrowth.core.errors import InputError
from undergrowth.data import load, partition_dataset
from undergrowth.data.loaders.operanet import phases

START = 15 * 3600 + 7 * 60 + 30.0
LINKS = [f"tx{tx}rx{rx}_sub{sub}" for tx in (1, 2) for rx in (1, 2) for sub in (1, 2)]
# person → activities, of 4.5 s each: a moment, and a rest
PEOPLE = {"Five": ("walk", "noactivity", "sit"), "Six": ("sit", "walk")}


def stamp(seconds: float) -> str:
    minutes, rest = divmod(seconds, 60)
    return f"{int(minutes // 60):02d}:{int(minutes % 60):02d}:{rest:06.3f}"


def facts(person: str, times: np.ndarray) -> dict[str, list[str]]:
    doing = [PEOPLE[person][min(int(time // 4.5), len(PEOPLE[person]) - 1)] for time in times]
    return {
        "exp_no": ["exp_001"] * len(times),
        "timestamp": [stamp(START + time) for time in times],
        "activity": doing,
        "person_id": [person] * len(times),
        "room_no": ["1" if person == "Five" and time < 4.5 else "2" for time in times],
    }


def radar(person: str) -> dict[str, Any]:
    """Ten Doppler spectra a second; the brightest bin says which channel it is."""
    times = np.arange(0, 4.5 * len(PEOPLE[person]), 0.1)
    spectra = np.full((3, len(times), 20), 1e-6)
    for channel in range(3):
        spectra[channel, :, 5 * (channel + 1)] = 1.0
    return {**facts(person, times), **{f"PWR_ch{1 + c}": list(spectra[c]) for c in range(3)}}


def receiver(person: str, hertz: float) -> dict[str, Any]:
    """400 readings a second; all amplitudes change with `hertz`, and the phase between antennas with twice that."""
    times = np.arange(0, 4.5 * len(PEOPLE[person]), 1 / 400)
    waves = {}
    for place, name in enumerate(LINKS):
        amplitude = (2 + place) * (3 + np.cos(2 * np.pi * hertz * times))
        turn = np.cos(4 * np.pi * hertz * times) if "rx2" in name else 0.3
        waves[name] = amplitude * np.exp(1j * turn)
    return {**facts(person, times), **waves}


def write_mat(file: Path, columns: dict[str, Any], as_cell: bool) -> None:
    if not as_cell:
        savemat(file, {name: np.array(values) for name, values in columns.items()})
        return
    cells = np.empty((1 + len(columns["activity"]), len(columns)), dtype=object)
    for place, (name, values) in enumerate(columns.items()):
        cells[0, place] = name
        for row, value in enumerate(values):
            cells[1 + row, place] = value
    savemat(file, {"table": cells})


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("operanet")
    for number, person in enumerate(PEOPLE, start=1):
        for name in ("pwr", "wificsi1", "wificsi2"):
            (root / name).mkdir(exist_ok=True)
        write_mat(root / f"pwr/PWR_exp_{number:03d}.mat", radar(person), as_cell=True)
        for which, hertz in ((1, 15.0), (2, 40.0)):
            file = root / f"wificsi{which}/wificsi{which}_exp{number:03d}.mat"
            write_mat(file, receiver(person, hertz), as_cell=False)
    return root


def test_moments_are_images_of_three_modalities(folder: Path, tmp_path: Path) -> None:
    data = load("operanet", folder, modalities="separate", size=16, cache=str(tmp_path / "cache"))
    assert data.shape == (1, 16, 48) and data.classes == 6
    # Five: a moment of walking, one of sitting; Six is the test set.
    assert data.y.reshape(3, -1).tolist() == [[0, 1]] * 3 and len(data.test_y) == 6
    assert data.fields["environment"].reshape(3, -1).tolist() == [[1, 2]] * 3
    assert data.fields["modality"].tolist() == ["pwr"] * 2 + ["csi"] * 2 + ["csi-phase"] * 2
    assert set(data.test_fields["subject"]) == {6}
    pwr, csi, phase = data.x[[0, 2, 4], 0]
    # The brightest row of each channel of the radar: bins 5, 10 and 15 of 20.
    assert [int(pwr[:, 16 * c : 16 * (c + 1)].sum(1).argmax()) for c in range(3)] == [4, 8, 12]
    # Frequencies from 200 Hz at the top to 0: amplitudes with 15 and 40 Hz, phases with 30 and 80 Hz.
    assert [int(csi[:, 16 * r : 16 * (r + 1)].sum(1).argmax()) for r in range(2)] == [14, 12]
    assert [int(phase[:, 16 * r : 16 * (r + 1)].sum(1).argmax()) for r in range(2)] == [13, 9]
    assert not csi[:, 32:].any()
    assert partition_dataset(data, "natural:subject+environment+modality", None, 0).groups[:2] == (
        "5+1+csi",
        "5+1+csi-phase",
    )
    again = load("operanet", folder, modalities="separate", size=16, cache=str(tmp_path / "cache"))
    assert np.array_equal(again.x, data.x) and len(list((tmp_path / "cache").iterdir())) == 1
    fused = load("operanet", folder, size=16, cache=str(tmp_path / "cache"))
    assert fused.shape == (1, 16, 112) and np.array_equal(fused.x[0, 0], np.hstack([pwr, csi[:, :32], phase[:, :32]]))


def test_phases_are_between_neighbouring_antennas() -> None:
    channel = np.exp(1j * np.array([0.5, 0.9, 3.0]))[None, None, :, None]
    assert np.allclose(phases(channel)[0, 0, :, 0], [0.4, 2.1])


def test_wrong_files_are_refused(folder: Path, tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"test_subject is 1; the recordings are of the subjects \[5, 6\]"):
        load("operanet", folder, size=16, test_subject=1)
    with pytest.raises(InputError, match="size is 4; it must be a whole number of at least 8"):
        load("operanet", folder, size=4)
    for name in ("pwr", "wificsi1", "wificsi2"):
        (tmp_path / name).mkdir()
        (tmp_path / name / f"{name}_exp001.mat").write_bytes(b"nothing")
    with pytest.raises(InputError, match=r"pwr_exp001\.mat: it cannot be read as a \.mat file"):
        load("operanet", tmp_path)
    savemat(tmp_path / "pwr/pwr_exp001.mat", {"table": {"a": 1}})
    with pytest.raises(InputError, match=r"it holds a MATLAB table; write it as a Parquet file"):
        load("operanet", tmp_path)
    savemat(tmp_path / "pwr/pwr_exp001.mat", {"activity": np.zeros(3), "timestamp": np.zeros(3)})
    with pytest.raises(InputError, match="it has no column 'person_id'"):
        load("operanet", tmp_path)


def without_rows(columns: dict[str, Any]) -> dict[str, Any]:
    return {name: np.array(values)[:0] for name, values in columns.items()}


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (without_rows, "it has no rows"),
        (lambda columns: {**columns, "room_no": ["x"] * len(columns["room_no"])}, "room_no holds texts, NaN"),
        (lambda columns: {**columns, "timestamp": np.full(len(columns["room_no"]), np.nan)}, "timestamp is 'nan'"),
        (lambda columns: {**columns, "PWR_ch1": np.full((len(columns["room_no"]), 20), np.nan)}, "PWR_ch1 holds texts"),
        (lambda columns: {**columns, "PWR_ch2": np.zeros(len(columns["room_no"]))}, "must be equally long lists"),
    ],
)
def test_wrong_values_of_the_radar_are_refused(change: Any, message: str, folder: Path, tmp_path: Path) -> None:
    shutil.copytree(folder, tmp_path / "changed")
    file = tmp_path / "changed" / "pwr/PWR_exp_001.mat"
    write_mat(file, change(radar(next(iter(PEOPLE)))), as_cell=False)
    with pytest.raises(InputError, match=message):
        load("operanet", tmp_path / "changed", size=8)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda values: values.real, "must hold complex numbers, or their real and imaginary parts"),
        (lambda values: values * np.nan, "holds texts, NaN or infinite numbers"),
        (lambda values: np.full(len(values), "x"), "holds texts, NaN or infinite numbers"),
    ],
)
def test_wrong_values_of_a_receiver_are_refused(change: Any, message: str, folder: Path, tmp_path: Path) -> None:
    shutil.copytree(folder, tmp_path / "changed")
    columns = receiver(next(iter(PEOPLE)), 15.0)
    file = tmp_path / "changed" / "wificsi1/wificsi1_exp001.mat"
    write_mat(file, {name: change(values) if name in LINKS else values for name, values in columns.items()}, False)
    with pytest.raises(InputError, match=message):
        load("operanet", tmp_path / "changed", size=8)


def test_one_receiving_antenna_is_refused(folder: Path, tmp_path: Path) -> None:
    shutil.copytree(folder, tmp_path / "changed")
    columns = receiver(next(iter(PEOPLE)), 15.0)
    kept = {name: values for name, values in columns.items() if name not in LINKS or "rx1" in name}
    write_mat(tmp_path / "changed" / "wificsi1/wificsi1_exp001.mat", kept, as_cell=False)
    with pytest.raises(InputError, match="it has one receiving antenna; phases are between two"):
        load("operanet", tmp_path / "changed", size=8)


def test_a_truncated_cache_is_named(folder: Path, tmp_path: Path) -> None:
    load("operanet", folder, size=8, cache=str(tmp_path))
    (file,) = tmp_path.glob("*.npz")
    file.write_bytes(file.read_bytes()[:-100])
    with pytest.raises(InputError, match=rf"{file.name}: it cannot be read as \.npz"):
        load("operanet", folder, size=8, cache=str(tmp_path))


def test_parquet_files_give_the_same_moments(folder: Path, tmp_path: Path) -> None:
    pyarrow = pytest.importorskip("pyarrow")
    from pyarrow import parquet

    for name in ("pwr", "wificsi1", "wificsi2"):
        (tmp_path / name).mkdir()
    for number, person in enumerate(PEOPLE, start=1):
        tables = (radar(person), receiver(person, 15.0), receiver(person, 40.0))
        files = (f"pwr/PWR_exp_{number:03d}", *(f"wificsi{w}/wificsi{w}_exp{number:03d}" for w in (1, 2)))
        for file, columns in zip(files, tables, strict=True):
            plain = {
                name: [[v.real, v.imag] for v in values] if name in LINKS else [np.asarray(v).tolist() for v in values]
                for name, values in columns.items()
            }
            parquet.write_table(pyarrow.table(plain), tmp_path / f"{file}.parquet")
    one, other = load("operanet", folder, size=16), load("operanet", tmp_path, size=16)
    assert np.array_equal(one.y, other.y) and np.abs(one.x.astype(int) - other.x).max() <= 1
