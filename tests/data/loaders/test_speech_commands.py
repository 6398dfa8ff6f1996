"""Speech Commands: sound as Mel spectrograms, and the public folder of recordings."""

from __future__ import annotations

import wave
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

import undergrowth as ug
from undergrowth.core.errors import InputError
from undergrowth.data import load, partition_dataset
from undergrowth.data.loaders import speech_commands
from undergrowth.data.loaders.mel import decibels, filters, to_pixels

RATE = 16_000


def tone(frequency: float, loudness: float = 0.5, seconds: float = 1.0) -> np.ndarray:
    return loudness * np.sin(2 * np.pi * frequency * np.arange(int(seconds * RATE)) / RATE)


def record(file: Path, sound: np.ndarray, rate: int = RATE, channels: int = 1, width: int = 2) -> Path:
    file.parent.mkdir(parents=True, exist_ok=True)
    with wave.open(str(file), "wb") as opened:
        opened.setnchannels(channels)
        opened.setsampwidth(width)
        opened.setframerate(rate)
        opened.writeframes((sound * 32767).astype("<i2").tobytes())
    return file


def write(folder: Path, words: dict[str, float] | None = None, speakers: int = 6) -> Path:
    """A word is a tone here. Of six speakers the last is for testing, the one before for validation."""
    random = np.random.default_rng(0)
    lists: dict[str, list[str]] = {"testing": [], "validation": [], "training": []}
    for word, frequency in (words or {"low": 300.0, "high": 3000.0}).items():
        for speaker in range(speakers):
            for take in range(2):
                name = f"{word}/s{speaker:03d}_nohash_{take}.wav"
                noisy = tone(frequency, seconds=0.8) + 0.01 * random.normal(size=int(0.8 * RATE))
                record(folder / name, noisy)
                part = {speakers - 1: "testing", speakers - 2: "validation"}.get(speaker, "training")
                lists[part].append(name)
    for part in ("testing", "validation"):
        (folder / f"{part}_list.txt").write_text("\n".join(lists[part]) + "\n")
    record(folder / "_background_noise_" / "hum.wav", tone(50))
    (folder / word / "._s000_nohash_0.wav").write_bytes(b"left by a Macintosh")
    return folder


def slowly(sound: np.ndarray) -> np.ndarray:
    """The definition, one window, frequency and band at a time."""
    padded = np.concatenate([sound[512:0:-1], sound, sound[-2:-514:-1]])
    window = 0.5 - 0.5 * np.cos(2 * np.pi * np.arange(1024) / 1024)
    corners = [700 * (10 ** (step * 2595 * np.log10(1 + 8000 / 700) / 33 / 2595) - 1) for step in range(34)]
    waves = np.exp(-2j * np.pi * np.outer(np.arange(513), np.arange(1024)) / 1024)
    result = np.zeros((32, 32))
    for place in range(32):
        power = np.abs(waves @ (padded[512 * place : 512 * place + 1024] * window)) ** 2
        for band in range(32):
            left, middle, right = corners[band : band + 3]
            for bin_, strength in enumerate(power):
                frequency = bin_ * RATE / 1024
                if left < frequency <= middle:
                    result[band, place] += strength * (frequency - left) / (middle - left)
                elif middle < frequency < right:
                    result[band, place] += strength * (right - frequency) / (right - middle)
    loud = 10 * np.log10(np.maximum(result, 1e-10))
    return np.maximum(loud, loud.max() - 80)


def one(sound: np.ndarray) -> Tensor:
    return torch.from_numpy(sound.astype(np.float32))[None]


def differences(one: np.ndarray, other: np.ndarray) -> np.ndarray:
    """Of pixels; the last digit before rounding may depend on the batch size."""
    return np.abs(one.astype(int) - other.astype(int))


def test_spectrograms_follow_the_definition() -> None:
    sound = np.random.default_rng(1).normal(size=RATE) * 0.1 + tone(440)
    torch.testing.assert_close(decibels(one(sound))[0], torch.from_numpy(slowly(sound)).float(), rtol=0, atol=2e-3)


@pytest.mark.parametrize("frequency", [100, 440, 1000, 2500, 7000])
def test_a_tone_is_in_its_band(frequency: float) -> None:
    mel = 2595 * np.log10(1 + frequency / 700)
    band = round(mel / (2595 * np.log10(1 + 8000 / 700) / 33)) - 1
    loud = decibels(one(tone(frequency)))[0]
    middle = loud[:, 4:28]
    assert (middle.argmax(dim=0) == band).all()
    assert (middle[band] > loud.median() + 30).all()


def test_twice_as_loud_is_six_decibels_more() -> None:
    sound = np.random.default_rng(2).normal(size=RATE) * 0.05
    difference = decibels(one(2 * sound)) - decibels(one(sound))
    torch.testing.assert_close(difference, torch.full_like(difference, 20 * np.log10(2)), rtol=0, atol=1e-3)


def test_filters_are_triangles_that_cover_all_frequencies_between_the_outer_bands() -> None:
    table = filters()
    assert table.shape == (513, 32) and (table >= 0).all() and (table.sum(0) > 0.5).all()
    first, last = int(table[:, 0].argmax()), int(table[:, -1].argmax())
    torch.testing.assert_close(table[first + 1 : last].sum(1), torch.ones(last - first - 1))


def test_pixels_go_from_silence_to_full_scale() -> None:
    silence, full = to_pixels(one(np.zeros(RATE))), to_pixels(one(tone(1000, loudness=1.0)))
    assert silence.shape == (1, 1, 32, 32) and silence.dtype == np.uint8 and (silence == 0).all()
    assert 235 < full.max() <= 255
    sound = np.random.default_rng(3).normal(size=RATE) * 0.1
    shown = to_pixels(one(sound)).astype(np.float32)[:, 0] / 255
    torch.testing.assert_close(torch.from_numpy(2 * shown - 1), (decibels(one(sound)) + 9) / 61, rtol=0, atol=0.005)


def test_the_public_folder(tmp_path: Path) -> None:
    write(tmp_path / "speech_commands_v0.02")
    dataset = load("speech-commands", tmp_path)
    assert dataset.class_names == ("high", "low") and dataset.shape == (1, 32, 32)
    assert (len(dataset), len(dataset.test_y)) == (16, 4)
    assert partition_dataset(dataset, "natural:speaker", None, 0).groups == ("s000", "s001", "s002", "s003")
    shard = dataset.shard([0])
    assert shard.x.min() >= -1 and shard.x.max() <= 1
    assert shard.x[0, 0, :, 28:].mean() < shard.x[0, 0, :, 4:20].mean() - 0.3, "padded with silence"
    other = load("speech-commands", tmp_path, test="validation")
    assert np.array_equal(other.x, dataset.x) and not np.array_equal(other.test_x, dataset.test_x)
    smaller = load("speech-commands", tmp_path, train="validation")
    assert np.array_equal(smaller.x, other.test_x) and np.array_equal(smaller.test_x, dataset.test_x)


def test_a_recording_is_cut_to_a_second_and_batches_do_not_matter(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = write(tmp_path)
    whole = load("speech-commands", folder)
    monkeypatch.setattr(speech_commands, "_BATCH", 3)
    assert differences(load("speech-commands", folder).x, whole.x).max() <= 1
    long = np.concatenate([tone(300), tone(5000)])
    record(folder / "low" / "s000_nohash_0.wav", long)
    cut = load("speech-commands", folder)
    assert differences(cut.x[8], to_pixels(one(np.trunc(long[:RATE] * 32767) / 32768))[0]).max() <= 1


def test_spectrograms_are_cached(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder, cache = write(tmp_path / "speech"), tmp_path / "kept" / "here"
    first = load("speech-commands", folder, cache=str(cache))
    assert np.array_equal(first.x, load("speech-commands", folder).x)
    (file,) = cache.iterdir()
    read: list[Any] = []
    monkeypatch.setattr(speech_commands, "_read_wave", lambda file: read.append(file) or np.zeros(RATE, np.float32))
    again = load("speech-commands", folder, cache=str(cache))
    assert np.array_equal(first.x, again.x) and np.array_equal(first.test_x, again.test_x) and not read
    record(folder / "low" / "s000_nohash_7.wav", tone(300))
    assert len(load("speech-commands", folder, cache=str(cache))) == 17 and len(read) == 25
    (folder / "low" / "s000_nohash_7.wav").unlink()
    for content in (b"", file.read_bytes()[:100]):
        file.write_bytes(content)
        with pytest.raises(InputError, match="the cache cannot be used"):
            load("speech-commands", folder, cache=str(cache))


def test_missing_files_are_named(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"'speech-commands' is not in .*nowhere \(there is no such folder\): unpack"):
        load("speech-commands", tmp_path / "nowhere")
    folder = write(tmp_path)
    (folder / "validation_list.txt").unlink()
    with pytest.raises(InputError, match=r"contains no validation_list\.txt"):
        load("speech-commands", folder)
    (folder / "validation_list.txt").write_text("")
    (folder / "testing_list.txt").write_text("low/unheard.wav\n")
    with pytest.raises(InputError, match=r"contains no recordings for testing_list\.txt"):
        load("speech-commands", folder)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"test": "train"}, "test is 'train'; it must be one of: testing, validation"),
        ({"train": "testing"}, "train is 'testing'; it must be training, or validation"),
        ({"train": "validation", "test": "validation"}, "train is 'validation'"),
        ({"cache": 3}, "cache is 3"),
    ],
)
def test_wrong_options_are_refused(options: dict[str, Any], said: str, tmp_path: Path) -> None:
    with pytest.raises(InputError, match=said):
        load("speech-commands", write(tmp_path), **options)


def test_damaged_recordings_are_refused(tmp_path: Path) -> None:
    folder = write(tmp_path)
    file = folder / "low" / "s000_nohash_0.wav"
    for content in (b"", b"RIFF", b"hello, this is not a sound at all, however long it may be"):
        file.write_bytes(content)
        with pytest.raises(InputError, match=r"s000_nohash_0.wav: it cannot be read as a .wav file"):
            load("speech-commands", folder)
    for form, said in (({"rate": 8000}, "at 8000 Hz"), ({"channels": 2}, "2 channels"), ({"width": 1}, "8 bits")):
        record(file, tone(300), **form)
        with pytest.raises(InputError, match=f"{said}.*needed are 1, 16, 16000"):
            load("speech-commands", folder)


def test_a_federation_of_speakers_tells_words_apart(tmp_path: Path) -> None:
    words = {"bed": 200.0, "cat": 500.0, "dog": 1200.0, "tree": 3000.0}
    result = ug.run(
        data="speech-commands", path=str(write(tmp_path / "speech", words)), partition="natural:speaker",
        model="logistic", rounds=3, epochs=2, batch=4, out=str(tmp_path / "runs"),
    )  # fmt: skip
    assert result.accuracy == 1.0
