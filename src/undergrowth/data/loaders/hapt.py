"""HAPT: accelerometer and gyroscope of a phone at the waist of 30 people, as spectrograms of 32×32.

A window of 128 readings (2.56 s at 50 Hz) of one activity is a moment; the next window starts 64 readings later. The
three axes of a sensor are the channels of its image: power in decibels, windows of 64 readings with a hop of 4,
the lowest 32 frequencies. Readings of the six transitions between postures are left out.

The subjects of the published test set are the central test set. Each person did the experiment twice: first with the
phone fixed at the left of the belt, then where the person preferred. That is the field `environment`, 1 or 2.
"""

from __future__ import annotations

import math
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch

from undergrowth.data.dataset import Dataset
from undergrowth.data.dataset_entry import DatasetEntry
from undergrowth.data.loaders.files import MissingFilesError, file_error, find_file, find_folder, read_text
from undergrowth.data.loaders.modalities import FUSED, MODALITIES_HELP, check_modalities, join_modalities
from undergrowth.data.loaders.npz import read_arrays

SENSORS = {"accelerometer": "acc", "gyroscope": "gyro"}  # modality → first part of the names of its files
ACTIVITIES = ("walking", "walking upstairs", "walking downstairs", "sitting", "standing", "laying")
TEST_SUBJECTS = (2, 4, 9, 10, 12, 13, 18, 20, 24)
WINDOW, STRIDE, AXES = 128, 64, 3
FREQUENCIES, HOP = 32, 4
BLACK, WHITE = -60.0, 32.0  # decibels; 99.9 % of the values are between them
_BATCH = 256  # windows transformed together, so that the transform needs little memory


class Windows(NamedTuple):
    """The readings of all windows, N × 128 × 6 (both sensors, x y z each), and where each window comes from."""

    readings: np.ndarray
    activity: np.ndarray  # from 0
    subject: np.ndarray
    environment: np.ndarray
    notes: tuple[str, ...] = ()


def load(path: Path, *, modalities: str = FUSED) -> Dataset:
    """Images of both sensors; the fields are `subject`, `environment` and, if modalities are separate, `modality`.

    Reads the published raw recordings, or an .npz file of windows with the arrays x, y and subject. If that has no
    array environment, the first half of a person's windows is environment 1.
    """
    check_modalities(modalities)
    windows = _windows_of_arrays(path) if _array_files(path) else _windows_of_recordings(path)
    pixels = spectrograms(windows.readings)
    images = {name: pixels[:, AXES * place : AXES * (place + 1)] for place, name in enumerate(SENSORS)}
    fields = {"subject": windows.subject, "environment": windows.environment}
    is_test = np.isin(windows.subject, TEST_SUBJECTS)
    if is_test.all() or not is_test.any():
        needed = "training" if is_test.all() else "test"
        raise MissingFilesError(f"it contains no recording of a {needed} subject")
    return join_modalities("hapt", images, windows.activity, fields, is_test, modalities, ACTIVITIES, windows.notes)


def spectrograms(readings: np.ndarray) -> np.ndarray:
    """The power of every channel as bytes, N × channels × 32 frequencies × 32 times, of N × 128 × channels readings."""
    signals = torch.from_numpy(np.ascontiguousarray(readings, dtype=np.float32)).transpose(1, 2)
    found = np.empty((*signals.shape[:2], FREQUENCIES, WINDOW // HOP), dtype=np.uint8)
    for start in range(0, len(signals), _BATCH):
        batch = signals[start : start + _BATCH].flatten(0, 1)
        spectrum = torch.stft(
            batch, 2 * FREQUENCIES, HOP, window=torch.hann_window(2 * FREQUENCIES), center=True, return_complex=True
        )
        # The highest frequency and the last, mirrored time are left out.
        kept = torch.view_as_real(spectrum[:, :FREQUENCIES, : WINDOW // HOP])
        decibels = 10 / math.log(10) * kept.square().sum(-1).clamp_(min=1e-10).log_()
        pixels = ((decibels - BLACK) * (255 / (WHITE - BLACK))).round_().clamp_(0, 255).to(torch.uint8)
        found[start : start + _BATCH] = pixels.unflatten(0, (-1, signals.shape[1])).numpy()
    return found


def _windows_of_recordings(path: Path) -> Windows:
    """The windows of the published text files."""
    folder = find_folder(path, ("RawData", "HAPT Data Set/RawData"), ("labels.txt",))
    rows = _table(folder / "labels.txt", 5)  # experiment, subject, activity, first and last reading
    if (rows % 1).any():
        raise file_error(folder / "labels.txt", "its numbers must be whole")
    rows = rows.astype(np.int64)
    first = {subject: min(experiment for experiment, other, *_ in rows if other == subject) for subject in rows[:, 1]}
    found: list[tuple[np.ndarray, int, int, int]] = []
    for experiment, subject in np.unique(rows[:, :2], axis=0):
        recording = _recording(folder, experiment, subject)
        environment = 1 if experiment == first[subject] else 2
        for activity, start, end in rows[(rows[:, 0] == experiment) & (rows[:, 1] == subject), 2:]:
            if not 1 <= start <= end <= len(recording):
                raise file_error(
                    folder / "labels.txt",
                    f"experiment {experiment} has {len(recording)} readings, but a label for {start} to {end}",
                )
            if activity <= len(ACTIVITIES):
                starts = range(start - 1, end - WINDOW + 1, STRIDE)
                found.extend((recording[at : at + WINDOW], activity - 1, subject, environment) for at in starts)
    if not found:
        raise MissingFilesError(f"{folder / 'labels.txt'} has no activity that lasts {WINDOW} readings")
    readings, *others = zip(*found, strict=True)
    return Windows(np.stack(readings), *(np.array(each, dtype=np.int64) for each in others))  # type: ignore[arg-type]


def _recording(folder: Path, experiment: int, subject: int) -> np.ndarray:
    """The readings of both sensors in one experiment, T × 6."""
    end = f"exp{experiment:02d}_user{subject:02d}.txt"
    sensors = [_table(find_file(folder, f"{kind}_{end}"), AXES) for kind in SENSORS.values()]
    if len(sensors[0]) != len(sensors[1]):
        raise file_error(
            folder / f"gyro_{end}", f"it has {len(sensors[1])} readings, and those of acc are {len(sensors[0])}"
        )
    return np.concatenate(sensors, axis=1).astype(np.float32)


def _table(file: Path, columns: int) -> np.ndarray:
    lines = [line.split() for line in read_text(file).splitlines() if line.strip()]
    try:
        values = np.array(lines, dtype=np.float64)
    except ValueError:  # a word, or lines of different lengths
        values = np.empty(0)
    if values.ndim != 2 or values.shape[1] != columns or not np.isfinite(values).all():
        raise file_error(file, f"it must have {columns} finite numbers in every line")
    return values


def _array_files(path: Path) -> list[Path]:
    return [path] if path.suffix == ".npz" else sorted(path.glob("*.npz"))


def _windows_of_arrays(path: Path) -> Windows:
    """The windows of an .npz file."""
    file = _array_files(path)[0]
    arrays = read_arrays(file)
    missing = [key for key in ("x", "y", "subject") if key not in arrays]
    if missing:
        raise file_error(file, f"it contains no '{missing[0]}'; x, y and subject are needed")
    x, y, subject = arrays["x"], arrays["y"], arrays["subject"]
    if x.shape[1:] != (WINDOW, AXES * len(SENSORS)) or not len(x) == len(y) == len(subject):
        raise file_error(
            file,
            f"x has shape {x.shape}, y {y.shape} and subject {subject.shape}; they must be (N, 128, 6), (N,), (N,)",
        )
    for key in ("x", "y", "subject"):
        if arrays[key].dtype.kind not in "fiu" or not np.isfinite(arrays[key]).all():
            raise file_error(file, f"{key} holds texts, NaN or infinite numbers; every value must be a finite number")
    if not np.isin(y, range(len(ACTIVITIES))).all():
        raise file_error(file, f"y has values from {y.min()} to {y.max()}; activities are from 0 to 5")
    if "environment" in arrays:
        return Windows(x, y.astype(np.int64), subject, arrays["environment"])
    note = (
        f"{file.name} does not say in which of the two experiments a window was recorded: the field environment is 1 "
        "for the first half of the windows of a person and 2 for the others"
    )
    return Windows(x, y.astype(np.int64), subject, _halves(subject), (note,))


def _halves(subject: np.ndarray) -> np.ndarray:
    """1 for the first half of the windows of each subject, in their order, and 2 for the second half."""
    environment = np.ones(len(subject), dtype=np.int64)
    for each in np.unique(subject):
        places = np.flatnonzero(subject == each)
        environment[places[(len(places) + 1) // 2 :]] = 2
    return environment


ENTRY = DatasetEntry(
    name="hapt",
    title="Activities of 30 people from the accelerometer and gyroscope of a phone, spectrograms of 32×32",
    shape=(AXES, FREQUENCIES, 2 * WINDOW // HOP),
    classes=len(ACTIVITIES),
    train=7_415,
    test=2_996,
    megabytes=64,
    licence="CC BY 4.0 (Reyes-Ortiz et al. 2015, UCI)",
    how_to_get=(
        "unpack https://archive.ics.uci.edu/static/public/341/"
        "smartphone+based+recognition+of+human+activities+and+postural+transitions.zip there"
    ),
    layout="RawData/labels.txt, RawData/{acc,gyro}_expNN_userNN.txt; or windows as hapt.npz (x, y, subject)",
    example='load("hapt", "~/data/hapt", modalities="separate")',
    loader=load,
    fields=("subject", "environment", "modality"),
    loader_options={"modalities": MODALITIES_HELP},
)
