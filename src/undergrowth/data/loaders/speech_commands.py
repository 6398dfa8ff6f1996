"""Speech Commands: one spoken word out of 35, as Mel spectrograms of 32×32."""

from __future__ import annotations

import hashlib
import wave
from collections.abc import Iterable, Sequence
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from undergrowth.core.errors import InputError
from undergrowth.data.dataset import Dataset
from undergrowth.data.entry import Entry
from undergrowth.data.loaders.files import NotThere, broken, find_file, find_folder, read_lines
from undergrowth.data.loaders.mel import BANDS, RATE, pixels

_LISTS = {"testing": "testing_list.txt", "validation": "validation_list.txt"}
_TOGETHER = 32  # recordings that are transformed at once: what they need fits into the caches of a core


def load(path: Path, *, train: str = "training", test: str = "testing", cache: str | None = None) -> Dataset:
    """Grey pictures of 32×32, see `mel.py`; the field is `speaker`.

    The recordings of the public testing list are the central test set, all that is in neither list is for training.
    Recordings are filled up with silence, or cut, to a second.
    """
    if test not in _LISTS:
        raise InputError(f"test is {test!r}; it must be one of: {', '.join(_LISTS)}")
    if train not in ("training", "validation") or train == test:
        raise InputError(f"train is {train!r}; it must be training, or validation where test is another")
    if cache is not None and not isinstance(cache, str | Path):
        raise InputError(f"cache is {cache!r}; it must be the name of a folder")
    inside = ("speech_commands_v0.02", "SpeechCommands/speech_commands_v0.02", "speech_commands_v0.01")
    folder = find_folder(path, inside, (_LISTS["testing"],))
    listed = {part: set(read_lines(find_file(folder, name))) for part, name in _LISTS.items()}
    words = _words(folder)
    files = [f"{word}/{name}" for word in words for name in _recordings(folder / word)]
    x = _cached(folder, files, Path(cache).expanduser()) if cache is not None else _pictures(folder, files)
    y = np.array([words.index(file.split("/")[0]) for file in files], dtype=np.int64)
    speakers = np.array([Path(file).stem.split("_nohash_")[0] for file in files])
    part_of = [next((part for part, names in listed.items() if file in names), "training") for file in files]
    for_training, for_test = (np.array([part == wanted for part in part_of], dtype=bool) for wanted in (train, test))
    if not for_training.any() or not for_test.any():
        empty = _LISTS[test] if for_training.any() else _LISTS.get(train, "training (those in no list)")
        raise NotThere(f"{folder} holds no recordings for {empty}")
    return Dataset(
        "speech-commands",
        x[for_training],
        y[for_training],
        x[for_test],
        y[for_test],
        len(words),
        words,
        {"speaker": speakers[for_training]},
        (0.5,),
        (0.5,),
    )


def _words(folder: Path) -> tuple[str, ...]:
    """All folders that hold recordings of a word; those of noise are marked with underscores."""
    inside = sorted(each for each in folder.iterdir() if each.is_dir() and each.name[0] not in "._")
    return tuple(each.name for each in inside if any(_recordings(each)))


def _recordings(folder: Path) -> list[str]:
    return sorted(each.name for each in folder.iterdir() if each.suffix == ".wav" and not each.name.startswith("."))


def _pictures(folder: Path, files: Sequence[str]) -> np.ndarray:
    """All recordings as pictures of bytes, a few at a time, so that little memory is needed beside the result."""
    pictures = np.empty((len(files), 1, BANDS, BANDS), dtype=np.uint8)
    for start in range(0, len(files), _TOGETHER):
        some = files[start : start + _TOGETHER]
        pictures[start : start + len(some)] = pixels(_waves(folder / file for file in some))
    return pictures


def _waves(files: Iterable[Path]) -> Tensor:
    return torch.from_numpy(np.stack([_wave(file) for file in files]))


def _wave(file: Path) -> np.ndarray:
    """The first second, in −1…1."""
    try:
        with wave.open(str(file), "rb") as sound:
            form = (sound.getnchannels(), sound.getsampwidth(), sound.getframerate())
            content = sound.readframes(RATE)
    except (OSError, EOFError, wave.Error) as error:
        raise broken(file, f"it cannot be read as a .wav file: {error}") from error
    if form != (1, 2, RATE):
        raise broken(file, f"it has {form[0]} channels of {8 * form[1]} bits at {form[2]} Hz; needed are 1, 16, {RATE}")
    samples = np.frombuffer(content[: len(content) // 2 * 2], dtype="<i2")
    second = np.zeros(RATE, dtype=np.float32)
    second[: len(samples)] = samples
    return second / 32768


def _cached(folder: Path, files: Sequence[str], cache: Path) -> np.ndarray:
    """The pictures from the file that holds them, which is written the first time.

    Its name tells which recordings it is of, by their names and sizes: other recordings have another file.
    """
    digest = hashlib.sha256()
    for file in files:
        digest.update(f"{file} {(folder / file).stat().st_size}\n".encode())
    kept = cache / f"speech-commands-{digest.hexdigest()[:16]}.npy"
    try:
        if kept.is_file():
            found: np.ndarray = np.load(kept, allow_pickle=False)
            if found.shape == (len(files), 1, BANDS, BANDS) and found.dtype == np.uint8:
                return found
            raise broken(kept, "it does not hold the pictures of these recordings; delete it")
        pictures = _pictures(folder, files)
        cache.mkdir(parents=True, exist_ok=True)
        half = kept.with_suffix(".part.npy")
        np.save(half, pictures)
        half.replace(kept)  # so that a run that is stopped leaves no half of a file
        return pictures
    except InputError:
        raise
    except (OSError, ValueError, EOFError) as error:
        raise broken(kept, f"the cache cannot be used: {error}") from error


ENTRY = Entry(
    name="speech-commands",
    title="Google Speech Commands, one of 35 spoken words, Mel spectrograms of 32×32",
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
    explained={
        "train": "what is trained on: training (what is in no list), or the public list of validation",
        "test": "public list whose recordings are the test set: testing or validation; the other is left out",
        "cache": "folder for the computed spectrograms, so that the next run need not read the recordings",
    },
)
