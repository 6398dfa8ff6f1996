"""The two errors that end a run, each with one sentence for the user."""

from __future__ import annotations

import difflib
from collections.abc import Iterable


class InputError(ValueError):
    """The user's input is wrong. The message names the field, the value and what would be right."""


class RunError(RuntimeError):
    """A run failed for a reason that is not the user's input: a full disk, a model that diverged."""


def describe_error(error: Exception) -> str:
    """What an exception in a method's code says, for the end of a sentence."""
    if isinstance(error, KeyError):  # its text is only the key
        return f"KeyError: it looked up {error}, which is not there"
    return str(error) or type(error).__name__


def suggest(value: str, choices: Iterable[str]) -> str:
    """The end of a sentence about an unknown name: the nearest known name, or all known names."""
    names = sorted(choices)
    close = difflib.get_close_matches(value, names, n=1, cutoff=0.5)
    if close:
        return f"did you mean '{close[0]}'?"
    return f"choose one of: {', '.join(names)}"
