"""The lock of a run: one process at a time works on it."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

from undergrowth.core import InputError, RunError

try:
    import fcntl
except ImportError:  # Windows: there is no lock, and users must see to it that two processes do not share a run
    fcntl = None  # type: ignore[assignment]

ATTEMPTS = 5
SECONDS_BETWEEN_ATTEMPTS = 0.02


@contextmanager
def lock_run(folder: Path) -> Iterator[None]:
    """Locks the run in `folder` for the block; the operating system releases the lock however the process ends.

    Raises `InputError` if another process has locked it.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
        file = open(folder / "lock", "w")  # noqa: SIM115  closed below, which releases the lock
    except OSError as error:
        raise RunError(f"'{folder}' could not be written: {error.strerror or error}") from error
    with file:
        if fcntl is not None and not _acquire(file):
            raise InputError(
                f"run '{folder.name}' is being worked on by another process; stop that one, or wait for it"
            )
        yield


def _acquire(file: IO[str]) -> bool:
    """Whether the lock was acquired. `is_locked` holds the lock for a moment, so one failed attempt proves nothing."""
    for _ in range(ATTEMPTS):
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return True
        except OSError:
            time.sleep(SECONDS_BETWEEN_ATTEMPTS)
    return False


def is_locked(folder: Path) -> bool:
    """Whether a process works on the run in `folder`. Without file locks, any run may be worked on."""
    try:
        with open(folder / "lock") as file:
            if fcntl is not None:
                fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
                return False
    except FileNotFoundError:
        return False
    except OSError:
        pass
    return True


def wait_until_free(folder: Path, seconds: float) -> None:
    """Waits, at most that long, until no process works on the run in `folder`."""
    deadline = time.monotonic() + seconds
    while fcntl is not None and is_locked(folder) and time.monotonic() < deadline:
        time.sleep(SECONDS_BETWEEN_ATTEMPTS)
