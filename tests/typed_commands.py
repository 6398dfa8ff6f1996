"""Commands that tests type in this process."""

from __future__ import annotations

import inspect
from typing import Any

from typer.testing import CliRunner

from undergrowth.cli.app import app

# Older versions of click mix standard error into standard output by default; newer ones have no such option.
_SEPARATE = {"mix_stderr": False} if "mix_stderr" in inspect.signature(CliRunner).parameters else {}


def invoke(*words: object, **environment: str) -> Any:
    """What a command printed, `stdout` and `stderr` apart, and its `exit_code`."""
    return CliRunner(**_SEPARATE, env=environment).invoke(app, [str(word) for word in words])
