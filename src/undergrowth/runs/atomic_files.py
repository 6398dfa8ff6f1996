"""Files that are written completely or not at all."""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import suppress
from os import PathLike
from pathlib import Path

from safetensors import SafetensorError

from undergrowth.core import InputError, RunError


def check_target(target: str | PathLike[str], example: str = "") -> Path:
    """The path of a file that a user wants to have written. Raises `InputError` if there can be no such file.

    `example`: the name of such a file, for the message about a folder.
    """
    try:
        path = Path(target).expanduser()
        is_folder = path.is_dir()
        if not is_folder:
            _check_place(Path(os.path.realpath(path)))
    except (OSError, RuntimeError, TypeError, ValueError) as error:
        reason = getattr(error, "strerror", None) or error
        raise InputError(f"'{target}' cannot be written ({reason}); name another file") from None
    if is_folder:
        raise InputError(f"'{target}' is a folder; name a file" + (f", such as '{path / example}'" if example else ""))
    return path


def _check_place(path: Path) -> None:
    if path.exists() and not path.is_file():
        raise OSError("it is not a regular file")
    folder = next(each for each in path.parents if each.exists())
    if not folder.is_dir():
        raise NotADirectoryError(f"'{folder}' is not a folder")
    if not os.access(folder, os.W_OK | os.X_OK):
        raise PermissionError(f"the folder '{folder}' is read-only")


def file_identity(path: Path) -> tuple[int, int] | None:
    """What tells a file from any other that may take its place; None if there is none."""
    try:
        found = path.stat()
    except OSError:
        return None
    return found.st_dev, found.st_ino


def replace_file(path: Path, content: bytes) -> None:
    """Writes `content` to `path` atomically: a reader sees the old file or the new one."""
    write_atomically(path, lambda draft: draft.write_bytes(content))


def write_atomically(path: Path, fill: Callable[[Path], object]) -> None:
    """Moves the file that `fill` writes to `path`, after its content has reached the disk. A link stays one."""
    place = Path(os.path.realpath(path))
    draft = place.with_name(place.name + ".part")
    try:
        place.parent.mkdir(parents=True, exist_ok=True)
        fill(draft)
        with open(draft, "rb+") as file:
            os.fsync(file.fileno())
        os.replace(draft, place)
    except (OSError, SafetensorError) as error:
        with suppress(OSError):  # there is no draft if its folder could not be created
            draft.unlink()
        raise RunError(f"'{path}' could not be written: {getattr(error, 'strerror', None) or error}") from error
