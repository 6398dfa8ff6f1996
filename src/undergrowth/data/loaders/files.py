"""Finds and reads the files of a data set; a missing or damaged file raises an error of one sentence."""

from __future__ import annotations

import gzip
import zlib
from collections.abc import Iterable
from importlib.util import find_spec
from pathlib import Path

from undergrowth.core import InputError


class MissingFilesError(InputError):
    """Files are missing. The catalogue adds which files are needed and where to put them."""


def find_folder(path: Path, inside: Iterable[str], patterns: Iterable[str]) -> Path:
    """The first of the folders `inside` of `path`, or `path` itself, with a file that matches one of `patterns`."""
    if path.is_file():
        raise MissingFilesError("it is a file and must be a folder")
    patterns = tuple(patterns)
    for folder in (*(path / name for name in inside), path):
        if folder.is_dir() and any(any(folder.glob(pattern)) for pattern in patterns):
            return folder
    if not path.is_dir():
        raise MissingFilesError("there is no such folder")
    raise MissingFilesError(f"it contains no {' or '.join(patterns)}")


def scikit_learn_file(data: str, file: str) -> Path:
    """A file of a data set in the installed scikit-learn, which is not imported: that takes a second."""
    spec = find_spec("sklearn")
    for folder in spec.submodule_search_locations or () if spec else ():
        if (Path(folder) / file).exists():
            return Path(folder) / file
    raise InputError(f"data '{data}': the file {file} of scikit-learn is missing; install scikit-learn again")


def find_file(folder: Path, *choices: str) -> Path:
    """The first existing file of several alternative names."""
    for name in choices:
        if (folder / name).is_file():
            return folder / name
    raise MissingFilesError(f"{folder} contains no {' or '.join(choices)}")


def read_bytes(path: Path) -> bytes:
    """The content of a file, unpacked if its name ends in .gz."""
    try:
        if path.suffix == ".gz":
            with gzip.open(path) as file:
                return file.read()
        return path.read_bytes()
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise file_error(path, f"it is truncated or not a gzip file: {error}") from error
    except OSError as error:
        raise file_error(path, f"it cannot be read: {error.strerror or error}") from error


def read_lines(path: Path) -> tuple[str, ...]:
    """The non-blank lines of a text file; empty if there is no such file."""
    if not path.is_file():
        return ()
    return tuple(line.strip() for line in read_text(path).splitlines() if line.strip())


def read_text(path: Path) -> str:
    """The content of a UTF-8 file."""
    try:
        return read_bytes(path).decode("utf-8")
    except UnicodeDecodeError as error:
        raise file_error(path, "it is not UTF-8 text") from error


def file_error(path: Path, problem: str) -> InputError:
    """The error for a file with the wrong content."""
    return InputError(f"{path}: {problem}")
