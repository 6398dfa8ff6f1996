"""Records in the store how a run ended."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress

from undergrowth.core import InputError, RunError
from undergrowth.runs.store import Store


@contextmanager
def record_status(store: Store, run: str, notes: Sequence[str]) -> Iterator[None]:
    """Marks the run as interrupted or failed if the block raises."""
    try:
        yield
    except KeyboardInterrupt:
        store.set_status(run, "interrupted", notes)
        raise
    except Exception as error:
        with suppress(RunError):  # the store cannot be written either if the disk is full; resuming works all the same
            store.set_status(run, "failed", notes)
        # What was wrong in the input, such as a result of the user's own server, was found after the run had begun.
        if isinstance(error, RunError | InputError) and store.in_place:
            command = store.resume_command(run)
            raise RunError(f"{error}; `{command}` continues after the last finished round") from error
        raise
