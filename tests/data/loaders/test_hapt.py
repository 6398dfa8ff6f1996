"""HAPT: the published recordings of a phone's sensors, windows in an .npz file, and images of both sensors."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from undergrowth.core.errors import InputError
from undergrowth.data import load, partition_dataset
from undergrowth.data.loaders.hapt import spectrograms

# experiment, subject, activity, first and last reading; subject 2 is one of the published test set
LABELS = [
    (1, 1, 5, 11, 202),  # 192 readings: two windows
    (1, 1, 7, 203, 400),  # a transition
    (2, 1, 1, 1, 128),
    (3, 2, 6, 1, 127),  # too short
    (3, 2, 1, 100, 300),
]


def recording(experiment: int, sensor: str) -> np.ndarray:
    """Every value says where it is: reading, axis, experiment and sensor."""
    readings = np.arange(400)[:, None] + np.arange(3) / 10 + 1000 * experiment
    return -readings if sensor == "gyro" else readings


def write(folder: Path) -> Path:
    raw = folder / "RawData"
    raw.mkdir(parents=True)
    (raw / "labels.txt").write_text("".join(" ".join(map(str, row)) + "\n" for row in LABELS))
    for experiment, subject in {row[:2] for row in LABELS}:
        for sensor in ("acc", "gyro"):
            lines = [" ".join(f"{value:.1f}" for value in row) for row in recording(experiment, sensor)]
            (raw / f"{sensor}_exp{experiment:02d}_user{subject:02d}.txt").write_text("\n".join(lines) + "\n")
    return folder


def window(experiment: int, start: int) -> np.ndarray:
    """The readings of a window as the loader must cut it, 1 × 128 × 6."""
    both = np.concatenate([recording(experiment, sensor) for sensor in ("acc", "gyro")], axis=1)
    return both[None, start : start + 128].astype(np.float32)


def test_recordings_are_cut_into_windows_of_one_activity(tmp_path: Path) -> None:
    data = load("hapt", write(tmp_path))
    assert data.y.tolist() == [4, 4, 0] and data.test_y.tolist() == [0, 0]
    assert data.class_names[4] == "standing" and data.shape == (3, 32, 64)
    assert data.fields["subject"].tolist() == [1, 1, 1] and data.fields["environment"].tolist() == [1, 1, 2]
    expected = spectrograms(np.concatenate([window(1, 10), window(1, 74), window(2, 0)]))
    assert np.array_equal(data.x, np.concatenate([expected[:, :3], expected[:, 3:]], axis=3))


def test_separate_modalities_are_samples_of_their_own(tmp_path: Path) -> None:
    fused, separate = (load("hapt", write(tmp_path / kind), modalities=kind) for kind in ("fused", "separate"))
    assert separate.shape == (3, 32, 32) and len(separate) == 2 * len(fused)
    assert separate.fields["modality"].tolist() == 3 * ["accelerometer"] + 3 * ["gyroscope"]
    assert separate.test_fields["modality"].tolist() == 2 * ["accelerometer"] + 2 * ["gyroscope"]
    assert np.array_equal(np.concatenate(np.split(separate.x, 2), axis=3), fused.x)
    by_all = partition_dataset(separate, "natural:subject+environment+modality", None, 0)
    assert by_all.groups == ("1+1+accelerometer", "1+1+gyroscope", "1+2+accelerometer", "1+2+gyroscope")
    assert by_all.groups_by("modality") == 2 * ("accelerometer", "gyroscope")
    assert load("hapt", tmp_path / "separate", modalities="separate", test_samples=1).test_fields["modality"].size == 1


def test_a_spectrogram_is_the_power_of_windows_in_decibels() -> None:
    signal = np.random.default_rng(0).normal(size=(1, 128, 2)).astype(np.float32)
    padded = np.pad(signal[0, :, 1].astype(np.float64), 32, mode="reflect")
    hann = 0.5 - 0.5 * np.cos(2 * np.pi * np.arange(64) / 64)
    for frequency, time in ((0, 0), (5, 17), (31, 31)):
        wave = np.exp(-2j * np.pi * frequency * np.arange(64) / 64)
        power = abs((padded[4 * time : 4 * time + 64] * hann * wave).sum()) ** 2
        pixel = np.clip((10 * np.log10(power) + 60) / 92 * 255, 0, 255)
        assert abs(spectrograms(signal)[0, 1, frequency, time] - pixel) < 0.51


def test_windows_in_an_npz_file(tmp_path: Path) -> None:
    x = np.random.default_rng(0).normal(size=(6, 128, 6)).astype(np.float32)
    arrays = {"x": x, "y": np.arange(6), "subject": np.array([1, 1, 1, 2, 2, 2])}
    np.savez(tmp_path / "hapt.npz", **arrays)
    halves = load("hapt", tmp_path)
    assert halves.fields["environment"].tolist() == [1, 1, 2] and "first half" in halves.notes[0]
    np.savez(tmp_path / "hapt.npz", **arrays, environment=np.array([2, 1, 1, 1, 1, 1]))
    assert load("hapt", tmp_path / "hapt.npz").fields["environment"].tolist() == [2, 1, 1]
    np.savez(tmp_path / "hapt.npz", **{**arrays, "x": x[:, :, :3]})
    with pytest.raises(InputError, match=r"hapt\.npz: x has shape \(6, 128, 3\)"):
        load("hapt", tmp_path)
    np.savez(tmp_path / "hapt.npz", **{**arrays, "y": np.arange(6) + 1})
    with pytest.raises(InputError, match="y has values from 1 to 6; activities are from 0 to 5"):
        load("hapt", tmp_path)


def test_wrong_files_and_options_are_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="modalities is 'both'; it must be fused or separate"):
        load("hapt", write(tmp_path), modalities="both")
    labels = tmp_path / "RawData" / "labels.txt"
    labels.write_text("1 1 5 11\n")
    with pytest.raises(InputError, match=r"labels\.txt: it must have 5 finite numbers in every line"):
        load("hapt", tmp_path)
    labels.write_text("1 1 5.5 11 300\n")
    with pytest.raises(InputError, match=r"labels\.txt: its numbers must be whole"):
        load("hapt", tmp_path)
    labels.write_bytes(b"\xff\xfe")
    with pytest.raises(InputError, match=r"^\S*labels\.txt: it is not UTF-8 text$"):
        load("hapt", tmp_path)
    labels.write_text("1 1 5 11 500\n")
    with pytest.raises(InputError, match="experiment 1 has 400 readings, but a label for 11 to 500"):
        load("hapt", tmp_path)
    labels.write_text("1 1 5 11 300\n")
    with pytest.raises(InputError, match="no recording of a test subject"):
        load("hapt", tmp_path)
    labels.write_text("9 1 5 11 300\n")
    with pytest.raises(InputError, match=r"contains no acc_exp09_user01\.txt"):
        load("hapt", tmp_path)


@pytest.mark.parametrize("wrong", ["nan", "inf", "word"])
def test_readings_must_be_finite_numbers(wrong: str, tmp_path: Path) -> None:
    recorded = write(tmp_path / "recorded") / "RawData" / "acc_exp01_user01.txt"
    recorded.write_text(recorded.read_text() + f"1 2 {wrong}\n")
    with pytest.raises(InputError, match=r"acc_exp01_user01\.txt: it must have 3 finite numbers in every line"):
        load("hapt", tmp_path / "recorded")


@pytest.mark.parametrize(("key", "wrong"), [("x", np.nan), ("subject", np.nan), ("y", np.inf), ("x", "a"), ("y", "a")])
def test_arrays_must_hold_finite_numbers(key: str, wrong: float | str, tmp_path: Path) -> None:
    arrays = {"x": np.zeros((4, 128, 6)), "y": np.zeros(4), "subject": np.array([1, 1, 2, 2])}
    arrays[key] = np.full(arrays[key].shape, wrong)
    np.savez(tmp_path / "hapt.npz", **arrays)
    with pytest.raises(InputError, match=rf"hapt\.npz: {key} holds texts, NaN or infinite numbers"):
        load("hapt", tmp_path)
