"""Files that are written completely or not at all."""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from safetensors import SafetensorError

from undergrowth.core import RunError


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
    """Moves the file that `fill` writes to `path`, after its content has reached the disk."""
    draft = path.with_name(path.name + ".part")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        fill(draft)
        with open(draft, "rb+") as file:
            os.fsync(file.fileno())
        os.replace(draft, path)
    except (OSError, SafetensorError) as error:
        with suppress(OSError):  # there is no draft if its folder could not be created
            draft.unlink()
        raise RunError(f"'{path}' could not be written: {getattr(error, 'strerror', None) or error}") from error
