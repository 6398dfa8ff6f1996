"""Follows a run while it goes on, so that whatever stops it is told with its name and the way to go on."""

from __future__ import annotations

import sys
import traceback
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

from undergrowth.cli.endings import FAILED, INTERRUPTED, Ended, described
from undergrowth.core import InputError, RunError
from undergrowth.runs.execution import Execution
from undergrowth.runs.progress import Progress

ERROR_FILE = "error.log"


@contextmanager
def watched() -> Iterator[dict[str, Any]]:
    """Gives the hooks for a run; the display is on standard error, and only where someone sees it."""
    started: list[Execution] = []
    with Progress(sys.stderr.isatty()) as display:
        shown = display.hooks()

        def on_start(execution: Execution) -> None:
            started.append(execution)
            if shown:
                shown["on_start"](execution)

        try:
            yield {**shown, "on_start": on_start}
        except (InputError, RunError):
            raise  # they say all there is to say
        except KeyboardInterrupt as error:
            if not started:
                raise Ended(
                    INTERRUPTED, "interrupted before the run started; there is nothing to go on with"
                ) from error
            raise Ended(INTERRUPTED, f"interrupted: run {started[0].run} {_way_on(started[0])}") from error
        except Exception as error:
            if not started:
                raise
            kept = _keep_traceback(started[0])
            sentence = f"failed: run {started[0].run}: {described(error)}; {kept}; it {_way_on(started[0])}"
            raise Ended(FAILED, sentence) from error


def _way_on(execution: Execution) -> str:
    return f"can go on after its last finished round: `{execution.store.resume_command(execution.run)}`"


def _keep_traceback(execution: Execution) -> str:
    path = execution.store.folder / execution.run / ERROR_FILE
    with suppress(OSError):  # a full disk, perhaps, which may be what went wrong
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(traceback.format_exc(), encoding="utf-8")
        return f"the traceback is in '{path}'"
    return "with --debug you see where"
