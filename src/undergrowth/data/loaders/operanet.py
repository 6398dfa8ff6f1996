"""OPERAnet: six activities of six people in two rooms, seen by radio sensors that nobody wears, as spectrograms.

A moment is four seconds of one activity. Its three modalities, as in Iacob et al. (2023):

    pwr         passive WiFi radar: Doppler spectra of three channels, which the data set already holds
    csi         amplitude of the WiFi channel at two receivers: spectrogram of its first principal component
    csi-phase   the same of the phase between pairs of receiving antennas

Each channel or receiver is a square grey image; those of one modality are side by side. Decibels below the maximum of
an image are its grey values. The field `environment` is the room. Departures from the source's pipeline (Koupai et al.
2022): amplitudes are denoised by a median filter alone, without wavelets, and the length of a moment is our choice.
"""

from __future__ import annotations

import hashlib
import math
import re
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch.nn import functional

from undergrowth.core import InputError
from undergrowth.data.dataset import Dataset
from undergrowth.data.dataset_entry import DatasetEntry
from undergrowth.data.loaders.files import MissingFilesError, file_error
from undergrowth.data.loaders.modalities import FUSED, MODALITIES_HELP, check_modalities, join_modalities
from undergrowth.data.loaders.npz import read_arrays
from undergrowth.data.loaders.operanet_files import read_columns

FOLDERS = ("pwr", "wificsi1", "wificsi2")
ACTIVITIES = ("walk", "sit", "stand", "liedown", "standff", "bodyrotate")
ALIASES = {"standfromlie": "standff"}
PEOPLE = ("one", "two", "three", "four", "five", "six", "seven")
SECONDS = 4.0
RATE = 400  # readings of the channel in a second; 1600 are published, but people do not cause changes above 200 Hz
WINDOW, HOP, MEDIAN = 128, 16, 3  # of the spectrograms, and of the filter
DYNAMIC_RANGE = 40.0  # decibels
MIN_FILLED = 0.5  # of a moment: the fraction of its readings that must be there
_FACTS = ("timestamp", "activity", "person_id", "room_no")
_CHANNEL = re.compile(r"PWR_ch\d+")
_LINK = re.compile(r"tx(\d+)rx(\d+)_sub(\d+)")


class Moments(NamedTuple):
    """The images of all moments, by modality, and where each moment comes from."""

    images: dict[str, np.ndarray]
    activity: np.ndarray
    subject: np.ndarray
    room: np.ndarray


class Recording(NamedTuple):
    """One experiment as one sensor saw it, in the order of time."""

    seconds: np.ndarray  # of the day
    activity: np.ndarray
    subject: np.ndarray
    room: np.ndarray
    values: np.ndarray  # N × channels × Doppler bins; or N × transmitters × receivers × carriers, complex


def load(
    path: Path, *, modalities: str = FUSED, test_subject: int = 6, size: int = 224, cache: str | None = None
) -> Dataset:
    """Images of the sensors; the fields are `subject`, `environment` and, if modalities are separate, `modality`.

    The moments of `test_subject` are the central test set. `size`: pixels per side of the image of one channel.
    """
    check_modalities(modalities)
    if not isinstance(size, int) or size < 8:
        raise InputError(f"size is {size!r}; it must be a whole number of at least 8")
    experiments = _experiments(path)
    moments = _cached_moments(experiments, size, None if cache is None else Path(cache).expanduser())
    subjects = np.unique(moments.subject).tolist()
    if test_subject not in subjects or len(subjects) == 1:
        raise InputError(f"test_subject is {test_subject!r}; the recordings are of the subjects {subjects}")
    fields = {"subject": moments.subject, "environment": moments.room}
    is_test = moments.subject == test_subject
    return join_modalities("operanet", moments.images, moments.activity, fields, is_test, modalities, ACTIVITIES)


def _experiments(path: Path) -> list[tuple[Path, ...]]:
    """The files of each experiment that all three sensors recorded. Of two formats, Parquet is read."""
    if not path.is_dir():
        raise MissingFilesError("there is no such folder")
    found: list[dict[str, Path]] = []
    for folder in FOLDERS:
        files = sorted(each for suffix in ("mat", "parquet") for each in (path / folder).glob(f"*.{suffix}"))
        numbered = {match[1]: each for each in files if (match := re.search(r"exp_?(\d+\w*)$", each.stem))}
        found.append(numbered)
    common = sorted(set.intersection(*map(set, found)))
    if not common:
        raise MissingFilesError(f"no experiment has a file in each of {', '.join(FOLDERS)}")
    return [tuple(files[number] for files in found) for number in common]


def _cached_moments(experiments: list[tuple[Path, ...]], size: int, cache: Path | None) -> Moments:
    """The moments from a file in `cache`, which the first call writes; its name has a digest of names and sizes."""
    if cache is None:
        return _moments(experiments, size)
    digest = hashlib.sha256(str(size).encode())
    for file in (file for files in experiments for file in files):
        digest.update(f"{file.parent.name}/{file.name} {file.stat().st_size}\n".encode())
    cached = cache / f"operanet-{digest.hexdigest()[:16]}.npz"
    try:
        if cached.is_file():
            arrays = read_arrays(cached)
            images = {name[6:]: array for name, array in arrays.items() if name.startswith("image/")}
            return Moments(images, arrays["activity"], arrays["subject"], arrays["room"])
        moments = _moments(experiments, size)
        cache.mkdir(parents=True, exist_ok=True)
        partial = cached.with_suffix(".part.npz")
        stored: dict[str, Any] = {f"image/{name}": each for name, each in moments.images.items()}
        np.savez(partial, activity=moments.activity, subject=moments.subject, room=moments.room, **stored)
        partial.replace(cached)  # atomic, so that an interrupted run leaves no incomplete file
        return moments
    except InputError:
        raise
    except (OSError, ValueError, KeyError) as error:
        raise file_error(cached, f"the cache cannot be used: {error}") from error


def _moments(experiments: list[tuple[Path, ...]], size: int) -> Moments:
    images: dict[str, list[np.ndarray]] = {"pwr": [], "csi": [], "csi-phase": []}
    facts: list[tuple[int, int, int]] = []
    for radar_file, *receiver_files in experiments:
        radar = _recording(radar_file, _CHANNEL)
        receivers = [_recording(file, _LINK) for file in receiver_files]
        for start, end in _stretches(radar):
            times = radar.seconds[start:end]
            rows = [_rows(receiver, float(times[0])) for receiver in receivers]
            if any(each is None for each in rows):
                continue
            channels = [receiver.values[each] for receiver, each in zip(receivers, rows, strict=True)]
            spectra = radar.values[start:end].transpose(1, 2, 0)
            images["pwr"].append(_side_by_side(spectra, size))
            images["csi"].append(_side_by_side([_spectrogram(np.abs(each)) for each in channels], size))
            images["csi-phase"].append(_side_by_side([_spectrogram(phases(each)) for each in channels], size))
            activity = ACTIVITIES.index(radar.activity[start])
            facts.append((activity, int(radar.subject[start]), int(radar.room[start])))
    if not facts:
        raise MissingFilesError(f"no experiment has {SECONDS:g} s of one of {', '.join(ACTIVITIES)} at all sensors")
    activity, subject, room = np.array(facts, dtype=np.int64).T
    return Moments({name: np.stack(each)[:, None] for name, each in images.items()}, activity, subject, room)


def _recording(file: Path, pattern: re.Pattern[str]) -> Recording:
    columns = read_columns(file, lambda name: name in _FACTS or pattern.fullmatch(name) is not None)
    for name in _FACTS:
        if name not in columns:
            raise file_error(file, f"it has no column '{name}'")
    names = sorted((name for name in columns if name not in _FACTS), key=lambda name: _digits(name))
    if not names:
        raise file_error(file, f"it has no column such as {'PWR_ch1' if pattern is _CHANNEL else 'tx1rx1_sub1'}")
    if not len(columns["timestamp"]):
        raise file_error(file, "it has no rows")
    seconds = _seconds(file, columns["timestamp"])
    # Of many readings in a second, some are enough, and a file of all would not fit into memory.
    step = max(1, int(len(seconds) / max(seconds[-1] - seconds[0], 1.0) / RATE))
    cells = {columns[name].shape[1:] for name in names}
    if len(cells) > 1 or (pattern is _CHANNEL and cells == {()}):
        raise file_error(file, f"the cells of its {len(names)} columns such as {names[0]} must be equally long lists")
    values = np.stack([_finite(file, name, columns[name])[::step] for name in names], axis=1)
    if pattern is _LINK:
        values = _by_antenna(file, names, values)
    labels = (str(each).strip().lower() for each in columns["activity"][::step])
    activity = np.array([ALIASES.get(label, label) for label in labels])
    subject = np.array([_person(file, str(each)) for each in columns["person_id"][::step]])
    room = _finite(file, "room_no", columns["room_no"])[::step].astype(np.int64)
    return Recording(seconds[::step], activity, subject, room, values)


def _by_antenna(file: Path, names: list[str], values: np.ndarray) -> np.ndarray:
    """The complex channel, N × transmitters × receivers × carriers."""
    if not np.iscomplexobj(values):
        if values.shape[2:] != (2,):
            raise file_error(file, f"{names[0]} must hold complex numbers, or their real and imaginary parts")
        values = values[..., 0] + 1j * values[..., 1]
    sizes = [len({_digits(name)[place] for name in names}) for place in range(3)]
    if len(names) != math.prod(sizes):
        raise file_error(file, f"it has {len(names)} columns of CSI instead of {'×'.join(map(str, sizes))}")
    if sizes[1] == 1:
        raise file_error(file, "it has one receiving antenna; phases are between two")
    return values.reshape(len(values), *sizes)


def _finite(file: Path, name: str, column: np.ndarray) -> np.ndarray:
    """A column of numbers; of texts that are numbers, these numbers."""
    try:
        values = column if column.dtype.kind in "fciu" else column.astype(np.float64)
    except (TypeError, ValueError):
        values = np.array(np.nan)
    if not np.isfinite(values).all():
        raise file_error(file, f"{name} holds texts, NaN or infinite numbers; every value must be a finite number")
    return values


def _digits(name: str) -> tuple[int, ...]:
    return tuple(int(number) for number in re.findall(r"\d+", name))


def _person(file: Path, name: str) -> int:
    text = name.strip().lower()
    if text in PEOPLE:
        return PEOPLE.index(text) + 1
    if not text.isdecimal():
        raise file_error(file, f"person_id is '{name}'; it must be a number, or a word from One to Seven")
    return int(text)


def _seconds(file: Path, stamps: np.ndarray) -> np.ndarray:
    """Times of day such as 15:07:30.646, or milliseconds, in seconds."""
    try:
        if stamps.dtype.kind in "fiu":
            return _finite(file, "timestamp", stamps).astype(np.float64) / 1000
        parts = np.array([str(each).split(" ")[-1].split(":") for each in stamps], dtype=np.float64)
        return np.asarray(parts @ np.array([3600.0, 60.0, 1.0]))
    except ValueError:
        raise file_error(file, f"timestamp is '{stamps[0]}'; it must be a time such as 15:07:30.646") from None


def _stretches(radar: Recording) -> list[tuple[int, int]]:
    """Rows of the radar, from and to, of consecutive moments of one known activity."""
    changes = np.flatnonzero((radar.activity[1:] != radar.activity[:-1]) | (np.diff(radar.seconds) > 1)) + 1
    found = []
    for first, last in zip([0, *changes], [*changes, len(radar.activity)], strict=True):
        if radar.activity[first] not in ACTIVITIES:
            continue
        times = radar.seconds[first:last]
        spacing = float(np.median(np.diff(times))) if len(times) > 1 else np.inf
        for number in range(int((times[-1] - times[0] + spacing + 1e-6) // SECONDS)):
            edges = np.searchsorted(times, times[0] + SECONDS * (number + np.array([0, 1])) - 1e-6)
            found.append((first + int(edges[0]), first + int(edges[1])))
    return found


def _rows(receiver: Recording, start: float) -> np.ndarray | None:
    """Equally spaced readings of a moment; None if too many are missing.

    By their number, because times are whole milliseconds, in which several readings may arrive.
    """
    first, last = np.searchsorted(receiver.seconds, (start, start + SECONDS))
    count = int(SECONDS * RATE)
    if last - first < MIN_FILLED * count:
        return None
    return np.asarray(first + np.arange(count) * (last - first) // count)


def phases(channel: np.ndarray) -> np.ndarray:
    """The phase between neighbouring receiving antennas, without jumps, of T × transmitters × receivers × carriers."""
    return np.unwrap(np.angle(channel[:, :, 1:] * channel[:, :, :-1].conj()), axis=0)


def _spectrogram(signals: np.ndarray) -> np.ndarray:
    """The power of the first principal component of some signals, frequencies × times."""
    from scipy.ndimage import median_filter

    flat = median_filter(signals.reshape(len(signals), -1), size=(MEDIAN, 1)).astype(np.float64)
    flat -= flat.mean(0)
    # The eigenvector of the covariance, which is smaller than the signals.
    _, vectors = np.linalg.eigh(flat.T @ flat)
    component = torch.from_numpy(flat @ vectors[:, -1]).float()
    window = torch.hann_window(WINDOW)
    spectrum = torch.stft(component, WINDOW, HOP, window=window, center=True, return_complex=True)
    return np.asarray(spectrum.abs().square().flip(0))  # high frequencies on top


def _side_by_side(powers: list[np.ndarray] | np.ndarray, size: int) -> np.ndarray:
    """Square grey images of bytes, side by side, of matrices of power."""
    pixels = []
    for power in powers:
        decibels = 10 * torch.from_numpy(np.asarray(power, dtype=np.float32)).clamp_min(1e-10).log10()
        grey = (decibels - decibels.max() + DYNAMIC_RANGE).clamp(0, DYNAMIC_RANGE) * (255 / DYNAMIC_RANGE)
        square = functional.interpolate(grey[None, None], (size, size), mode="bilinear", antialias=True)
        pixels.append(square[0, 0].round().to(torch.uint8).numpy())
    return np.concatenate(pixels, axis=1)


ENTRY = DatasetEntry(
    name="operanet",
    title="OPERAnet: activities of six people from passive WiFi radar and WiFi channels, spectrograms",
    shape=(1, 224, 7 * 224),
    classes=len(ACTIVITIES),
    licence="CC0 (Bocus et al. 2022)",
    how_to_get=(
        "unpack pwr.zip, wificsi1.zip and wificsi2.zip of OPERAnet (https://doi.org/10.1038/s41597-022-01573-2) there "
        "as folders of these names, and write their MATLAB tables as Parquet files with convert_and_save.m of "
        "https://github.com/pedropgusmao/operanet"
    ),
    layout="pwr/PWR_exp_NNN.parquet, wificsi1/wificsi1_expNNN.parquet, wificsi2/wificsi2_expNNN.parquet (or .mat)",
    example='load("operanet", "~/data/operanet", modalities="separate", cache="~/.cache/undergrowth/pictures")',
    loader=load,
    fields=("subject", "environment", "modality"),
    loader_options={
        "modalities": MODALITIES_HELP,
        "test_subject": "the person whose moments are the central test set",
        "size": "pixels per side of the image of one channel or receiver",
        "cache": "folder for the computed images, so that the next run does not read the recordings",
    },
)
