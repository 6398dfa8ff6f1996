"""Finds and reads the files of a data set; what is missing or broken becomes one clear sentence."""

from __future__ import annotations

import gzip
import zlib
from collections.abc import Iterable
from pathlib import Path

from undergrowth.core.errors import InputError


class NotThere(InputError):
    """Files are missing. The catalogue adds what to put where."""


def find_folder(path: Path, inside: Iterable[str], marks: Iterable[str]) -> Path:
    """The first of `path` and the named folders in it that holds a file matching one of `marks`."""
    if path.is_file():
        raise NotThere("a folder is needed, and this is a file")
    marks = tuple(marks)
    for folder in (*(path / name for name in inside), path):
        if folder.is_dir() and any(any(folder.glob(mark)) for mark in marks):
            return folder
    if not path.is_dir():
        raise NotThere("there is no such folder")
    raise NotThere(f"it holds no {' or '.join(marks)}")


def find_file(folder: Path, *choices: str) -> Path:
    """The first of several names for the same file that is there."""
    for name in choices:
        if (folder / name).is_file():
            return folder / name
    raise NotThere(f"{folder} holds no {' or '.join(choices)}")


def read_bytes(path: Path) -> bytes:
    """All of a file, unpacked when its name ends in .gz."""
    try:
        if path.suffix == ".gz":
            with gzip.open(path) as file:
                return file.read()
        return path.read_bytes()
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise broken(path, f"it is truncated or not a gzip file: {error}") from error
    except OSError as error:
        raise broken(path, f"it cannot be read: {error.strerror or error}") from error


def read_lines(path: Path) -> tuple[str, ...]:
    """The lines of a small text file that are not blank; none when the file is not there."""
    if not path.is_file():
        return ()
    try:
        text = read_bytes(path).decode("utf-8")
    except UnicodeDecodeError as error:
        raise broken(path, "it is not UTF-8 text") from error
    return tuple(line.strip() for line in text.splitlines() if line.strip())


def broken(path: Path, what: str) -> InputError:
    """The error for a file that is there but does not hold what it should."""
    return InputError(f"{path}: {what}")
