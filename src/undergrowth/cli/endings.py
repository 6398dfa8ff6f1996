"""How a command ends: exit codes, and the one sentence that goes with each."""

from __future__ import annotations

import errno

WRONG_INPUT = 2
FAILED = 3
INTERRUPTED = 130


class Ended(Exception):
    """A command ends here, with this code and this sentence."""

    def __init__(self, code: int, sentence: str) -> None:
        super().__init__(sentence)
        self.code = code


def told(error: BaseException) -> tuple[int, str]:
    """The exit code and the sentence for whatever stopped a command."""
    if isinstance(error, KeyboardInterrupt):
        return INTERRUPTED, "interrupted"
    if isinstance(error, Ended):
        return error.code, one_line(error)

    from undergrowth.core.errors import InputError, RunError

    if isinstance(error, InputError):
        return WRONG_INPUT, f"error: {one_line(error)}"
    if isinstance(error, RunError):
        return FAILED, f"failed: {one_line(error)}"
    return FAILED, f"failed: {described(error)}; with --debug you see where"


def described(error: BaseException) -> str:
    """An error that nobody foresaw, as well as it can be put."""
    if isinstance(error, OSError):
        where = f" '{error.filename}'" if error.filename else ""
        return f"{error.strerror or one_line(error)}{where}"
    return f"{type(error).__name__}: {one_line(error)}" if str(error) else type(error).__name__


def one_line(error: BaseException) -> str:
    return " ".join(str(error).split())


def is_broken_pipe(error: BaseException) -> bool:
    """`undergrowth list | head`: the reader has seen enough, which is no error."""
    return isinstance(error, OSError) and error.errno == errno.EPIPE
