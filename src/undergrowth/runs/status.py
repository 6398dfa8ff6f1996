"""Records in the store how a run ended."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress

from undergrowth.core import CODE_ERRORS, InputError, RunError
from undergrowth.runs.store import Store


@contextmanager
def record_status(store: Store, run: str, notes: Sequence[str]) -> Iterator[None]:
    """Marks the run as interrupted or failed if the block raises."""
    try:
        yield
    except KeyboardInterrupt:
        store.set_status(run, "interrupted", notes)
        raise
    except CODE_ERRORS as error:
        with suppress(RunError):  # the store cannot be written either if the disk is full; resuming works all the same
            store.set_status(run, "failed", notes)
        if isinstance(error, RunError):
            if not store.in_place:
                command = f"undergrowth resume {run} --out FOLDER"
                raise RunError(f"{error}; if it was moved, `{command}` continues there") from error
            command = store.resume_command(run)
            raise RunError(f"{error}; `{command}` continues after the last finished round") from error
        raise


@contextmanager
def fail_run() -> Iterator[None]:
    """Raises an `InputError` of the block as a `RunError`: the run has begun, so there is something to resume.

    An example is the result of a user's own server that is wrong in a later round.
    """
    try:
        yield
    except InputError as error:
        raise RunError(str(error)) from error
