"""One process at a time works on a run."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from undergrowth.core import InputError, RunError

try:
    import fcntl
except ImportError:  # Windows has no such lock; there, it is up to the user
    fcntl = None  # type: ignore[assignment]


@contextmanager
def held(folder: Path) -> Iterator[None]:
    """Refuses if another process holds the run; the system lets go of the lock however a process ends."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        file = open(folder / "lock", "w")  # noqa: SIM115  closed below, where the lock ends
    except OSError as error:
        raise RunError(f"'{folder}' could not be written: {error.strerror or error}") from error
    with file:
        if fcntl is not None:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError:
                raise InputError(
                    f"run '{folder.name}' is being worked on by another process; stop that one, or wait for it"
                ) from None
        yield
