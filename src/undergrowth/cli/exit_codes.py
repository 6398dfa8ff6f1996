"""Exit codes of commands, and the one-line message printed with each."""

from __future__ import annotations

import errno

WRONG_INPUT = 2
FAILED = 3
INTERRUPTED = 130
MAX_LENGTH = 2000  # of a message


class CommandError(Exception):
    """Ends a command with an exit code and a message on standard error."""

    def __init__(self, code: int, message: str) -> None:
        super().__init__(message)
        self.code = code


def exit_code_and_message(error: BaseException) -> tuple[int, str]:
    """Exit code and one-line message for the exception that stopped a command."""
    if isinstance(error, KeyboardInterrupt):
        return INTERRUPTED, "interrupted"
    if isinstance(error, CommandError):
        return error.code, one_line(error)

    from undergrowth.core.errors import InputError, RunError

    if isinstance(error, InputError):
        return WRONG_INPUT, f"error: {one_line(error)}"
    if isinstance(error, OSError) and error.errno == errno.ENAMETOOLONG:
        return WRONG_INPUT, f"error: '{str(error.filename)[:40]}…' is too long for the name of a file"
    if isinstance(error, RunError):
        return FAILED, f"failed: {one_line(error)}"
    return FAILED, f"failed: {describe_failure(error)}; --debug shows the traceback"


def describe_failure(error: BaseException) -> str:
    """One line about an unexpected exception: its type and text, or the system's message and the file."""
    if isinstance(error, OSError):
        where = f" '{error.filename}'" if error.filename else ""
        return f"{error.strerror or one_line(error)}{where}"
    return f"{type(error).__name__}: {one_line(error)}" if str(error) else type(error).__name__


def one_line(error: BaseException) -> str:
    """The text of an exception in one line. A very long one, such as about a cell of a table, loses its middle."""
    text = " ".join(str(error).split())
    return text if len(text) <= MAX_LENGTH else f"{text[: MAX_LENGTH // 2]} … {text[-MAX_LENGTH // 2 :]}"


def is_broken_pipe(error: BaseException) -> bool:
    """Whether the reader of standard output has closed it, as in `undergrowth list | head`. This is not an error."""
    if isinstance(error, SystemExit):  # Rich's answer to a closed pipe
        return isinstance(error.__context__, BrokenPipeError)
    return isinstance(error, OSError) and error.errno == errno.EPIPE
