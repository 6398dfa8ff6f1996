"""One process at a time works on a run."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

from undergrowth.core import InputError, RunError

try:
    import fcntl
except ImportError:  # Windows has no such lock; there, it is up to the user
    fcntl = None  # type: ignore[assignment]

TRIES, PAUSE = 5, 0.02  # seconds


@contextmanager
def held(folder: Path) -> Iterator[None]:
    """Refuses if another process holds the run; the system lets go of the lock however a process ends."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        file = open(folder / "lock", "w")  # noqa: SIM115  closed below, where the lock ends
    except OSError as error:
        raise RunError(f"'{folder}' could not be written: {error.strerror or error}") from error
    with file:
        if fcntl is not None and not _locked(file):
            raise InputError(
                f"run '{folder.name}' is being worked on by another process; stop that one, or wait for it"
            )
        yield


def _locked(file: IO[str]) -> bool:
    """Takes the lock. Who only asks whether it is held holds it for a moment, so one refusal does not count."""
    for _ in range(TRIES):
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return True
        except OSError:
            time.sleep(PAUSE)
    return False


def is_held(folder: Path) -> bool:
    """Whether a process works on the run; without locks, it may."""
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
