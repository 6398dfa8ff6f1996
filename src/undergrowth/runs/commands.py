"""Commands that messages tell the user to type."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from pathlib import Path
from typing import Any


def resume_command(folder: Path, run: str, objects: Mapping[str, Any] | None = None) -> str:
    """What resumes a run: a command or, for a run that was given objects of the user, a call with them."""
    given = "".join(f", {part}=..." for part, used in (objects or {}).items() if used)
    return (
        f"ug.resume({run!r}, out={str(folder)!r}{given})" if given else f"undergrowth resume {run}{out_option(folder)}"
    )


def out_option(folder: Path) -> str:
    """The option of a command that names the folder of the runs; empty for the default folder."""
    return "" if folder == Path("runs") else f" --out {shlex.quote(str(folder))}"
