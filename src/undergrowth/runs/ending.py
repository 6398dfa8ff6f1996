"""How a run ended, written down however it did."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress

from undergrowth.core import RunError
from undergrowth.runs.store import Store


@contextmanager
def told(store: Store, run: str, notes: Sequence[str]) -> Iterator[None]:
    """Around all work on a run: one that stops half-way would be taken for one that is still going on."""
    try:
        yield
    except KeyboardInterrupt:
        store.set_status(run, "interrupted", notes)
        raise
    except RunError as error:
        with suppress(RunError):  # a full disk refuses this too; resume works all the same
            store.set_status(run, "failed", notes)
        raise RunError(f"{error}; `{store.resume_command(run)}` goes on after the last finished round") from error
    except Exception:
        with suppress(RunError):
            store.set_status(run, "failed", notes)
        raise
