"""Commands that messages tell the user to type."""

from __future__ import annotations

import shlex
from pathlib import Path


def out_option(folder: Path) -> str:
    """The option of a command that names the folder of the runs; empty for the default folder."""
    return "" if folder == Path("runs") else f" --out {shlex.quote(str(folder))}"
