"""Shows the progress of a run, and tells the user how to resume it if it stops early."""

from __future__ import annotations

import traceback
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

from undergrowth.cli.exit_codes import FAILED, INTERRUPTED, CommandError, describe_failure
from undergrowth.core import InputError, RunError
from undergrowth.runs.commands import resume_command
from undergrowth.runs.execution import Execution
from undergrowth.runs.progress import show_progress

ERROR_FILE = "error.log"


@contextmanager
def track_run(quiet: bool = False, resume: str = "") -> Iterator[dict[str, Any]]:
    """Yield the hooks of a run that show its progress on standard error, unless `quiet`.

    `resume`: the command that resumes the run, if there is one before the block.

    An interrupt or an unexpected exception in the block becomes a `CommandError` with the command that resumes the
    run. Input and run errors pass unchanged: their messages are complete.
    """
    started: list[Execution] = []
    with show_progress(not quiet) as progress_hooks:

        def on_start(execution: Execution) -> None:
            started.append(execution)
            if progress_hooks:
                progress_hooks["on_start"](execution)

        try:
            yield {**progress_hooks, "on_start": on_start}
        except (InputError, RunError):
            raise
        except KeyboardInterrupt as error:
            if not started:
                rest = f"`{resume}` continues it" if resume else "there is nothing to resume"
                raise CommandError(INTERRUPTED, f"interrupted before the run started; {rest}") from error
            message = f"interrupted: run {started[0].run} {_how_to_resume(started[0])}"
            raise CommandError(INTERRUPTED, message) from error
        except (Exception, SystemExit) as error:
            if not started:
                raise
            execution, traceback_hint = started[0], _write_traceback(started[0])
            message = f"failed: run {execution.run}: {describe_failure(error)}; {traceback_hint}"
            raise CommandError(FAILED, f"{message}; the run {_how_to_resume(execution)}") from error


def _how_to_resume(execution: Execution) -> str:
    command = resume_command(execution.store.folder, execution.run)
    return f"can be resumed after its last finished round: `{command}`"


def _write_traceback(execution: Execution) -> str:
    path = execution.store.folder / execution.run / ERROR_FILE
    with suppress(OSError):  # the disk may be full, which may be the error itself
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(traceback.format_exc(), encoding="utf-8")
        return f"the traceback is in '{path}'"
    return "--debug shows the traceback"
