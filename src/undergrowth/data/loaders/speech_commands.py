"""Speech Commands: recordings of 35 words, as mel spectrograms of 32×32."""

from __future__ import annotations

import hashlib
import wave
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch

from undergrowth.core import InputError
from undergrowth.data.dataset import Dataset
from undergrowth.data.dataset_entry import DatasetEntry
from undergrowth.data.loaders.files import MissingFilesError, file_error, find_file, find_folder, read_lines
from undergrowth.data.loaders.mel import BANDS, RATE, to_pixels

_LISTS = {"testing": "testing_list.txt", "validation": "validation_list.txt"}
_BATCH = 32  # recordings transformed together; small enough for the caches of a core


def load(path: Path, *, train: str = "training", test: str = "testing", cache: str | None = None) -> Dataset:
    """Spectrograms of 32×32 (see `mel.py`); the field is `speaker`.

    The recordings of the published testing list are the central test set; recordings in no list are for training.
    Recordings are padded with silence, or cut, to one second.
    """
    if test not in _LISTS:
        raise InputError(f"test is {test!r}; it must be one of: {', '.join(_LISTS)}")
    if train not in ("training", "validation") or train == test:
        raise InputError(f"train is {train!r}; it must be training, or validation unless test is validation")
    if cache is not None and not isinstance(cache, str | Path):
        raise InputError(f"cache is {cache!r}; it must be the path of a folder")
    inside = ("speech_commands_v0.02", "SpeechCommands/speech_commands_v0.02", "speech_commands_v0.01")
    folder = find_folder(path, inside, (_LISTS["testing"],))
    listed = {part: set(read_lines(find_file(folder, name))) for part, name in _LISTS.items()}
    words = _words(folder)
    files = [f"{word}/{name}" for word in words for name in _recordings(folder / word)]
    x = _spectrograms(folder, files) if cache is None else _cached_spectrograms(folder, files, Path(cache).expanduser())
    y = np.array([words.index(file.split("/")[0]) for file in files], dtype=np.int64)
    speakers = np.array([Path(file).stem.split("_nohash_")[0] for file in files])
    part_of = [next((part for part, names in listed.items() if file in names), "training") for file in files]
    for_training, for_test = (np.array([part == wanted for part in part_of], dtype=bool) for wanted in (train, test))
    if not for_training.any() or not for_test.any():
        empty = _LISTS[test] if for_training.any() else _LISTS.get(train, "training (those in no list)")
        raise MissingFilesError(f"{folder} contains no recordings for {empty}")
    arrays = (x[for_training], y[for_training], x[for_test], y[for_test])
    fields = {"speaker": speakers[for_training]}
    return Dataset("speech-commands", *arrays, len(words), words, fields, (0.5,), (0.5,))


def _words(folder: Path) -> tuple[str, ...]:
    """The folders with recordings of a word. The folder of background noise starts with an underscore."""
    inside = sorted(each for each in folder.iterdir() if each.is_dir() and each.name[0] not in "._")
    return tuple(each.name for each in inside if any(_recordings(each)))


def _recordings(folder: Path) -> list[str]:
    return sorted(each.name for each in folder.iterdir() if each.suffix == ".wav" and not each.name.startswith("."))


def _spectrograms(folder: Path, files: Sequence[str]) -> np.ndarray:
    """The spectrograms of all recordings, as bytes; computed in batches to save memory."""
    spectrograms = np.empty((len(files), 1, BANDS, BANDS), dtype=np.uint8)
    for start in range(0, len(files), _BATCH):
        batch = files[start : start + _BATCH]
        waves = np.stack([_read_wave(folder / file) for file in batch])
        spectrograms[start : start + len(batch)] = to_pixels(torch.from_numpy(waves))
    return spectrograms


def _read_wave(file: Path) -> np.ndarray:
    """The first second of a recording, as values from −1 to 1."""
    try:
        with wave.open(str(file), "rb") as sound:
            form = (sound.getnchannels(), sound.getsampwidth(), sound.getframerate())
            content = sound.readframes(RATE)
    except (OSError, EOFError, wave.Error) as error:
        raise file_error(file, f"it cannot be read as a .wav file: {error}") from error
    if form != (1, 2, RATE):
        raise file_error(
            file, f"it has {form[0]} channels of {8 * form[1]} bits at {form[2]} Hz; needed are 1, 16, {RATE}"
        )
    samples = np.frombuffer(content[: len(content) // 2 * 2], dtype="<i2")
    second = np.zeros(RATE, dtype=np.float32)
    second[: len(samples)] = samples
    return second / 32768


def _cached_spectrograms(folder: Path, files: Sequence[str], cache: Path) -> np.ndarray:
    """The spectrograms from a file in `cache`, which the first call writes.

    The name of the file contains a digest of the names and sizes of the recordings.
    """
    digest = hashlib.sha256()
    for file in files:
        digest.update(f"{file} {(folder / file).stat().st_size}\n".encode())
    cached = cache / f"speech-commands-{digest.hexdigest()[:16]}.npy"
    try:
        if cached.is_file():
            found: np.ndarray = np.load(cached, allow_pickle=False)
            if found.shape == (len(files), 1, BANDS, BANDS) and found.dtype == np.uint8:
                return found
            raise file_error(cached, "it does not contain the spectrograms of these recordings; delete it")
        spectrograms = _spectrograms(folder, files)
        cache.mkdir(parents=True, exist_ok=True)
        partial = cached.with_suffix(".part.npy")
        np.save(partial, spectrograms)
        partial.replace(cached)  # atomic, so that an interrupted run leaves no incomplete file
        return spectrograms
    except InputError:
        raise
    except (OSError, ValueError, EOFError) as error:
        raise file_error(cached, f"the cache cannot be used: {error}") from error


ENTRY = DatasetEntry(
    name="speech-commands",
    title="Google Speech Commands, one of 35 spoken words, mel spectrograms of 32×32",
    shape=(1, BANDS, BANDS),
    classes=35,
    train=84_843,
    test=11_005,
    megabytes=108,
    licence="CC BY 4.0 (Warden 2018)",
    how_to_get=(
        "unpack speech_commands_v0.02.tar.gz from "
        "https://storage.googleapis.com/download.tensorflow.org/data/speech_commands_v0.02.tar.gz there"
    ),
    layout="WORD/SPEAKER_nohash_N.wav (16 kHz, 16 bits, one channel), validation_list.txt, testing_list.txt",
    example='load("speech-commands", "~/data/speech-commands", cache="~/.cache/undergrowth/pictures")',
    loader=load,
    fields=("speaker",),
    loader_options={
        "train": "recordings for training: training (those in no list), or validation (the published list)",
        "test": "published list of the test set: testing or validation; the other list is not used",
        "cache": "folder for the computed spectrograms, so that the next run does not read the recordings",
    },
)
