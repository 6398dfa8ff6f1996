"""Timings that a machine remembers: `auto` decides alike each time, or the same run would end with other last bits.

Each is a small file in the user's cache folder (`$XDG_CACHE_HOME/undergrowth` or `~/.cache/undergrowth`). They may be
deleted at any time; where none can be written, the timing is done again.
"""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from contextlib import suppress
from hashlib import sha256
from pathlib import Path

from undergrowth.core import RunError
from undergrowth.runs.atomic_files import replace_file


def recall(what: str) -> list[float] | None:
    """What was measured when this was timed, or None."""
    with suppress(OSError, ValueError, RuntimeError):  # no home, no file, or not one of ours
        found = json.loads(_file(what).read_text())
        if isinstance(found, list) and all(type(seconds) is float and seconds > 0 for seconds in found):
            return found
    return None


def remember(what: str, measured: Sequence[float]) -> None:
    with suppress(RunError, RuntimeError):
        replace_file(_file(what), json.dumps(list(measured)).encode())


def _file(what: str) -> Path:
    cache = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(cache) / "undergrowth" / f"{sha256(what.encode()).hexdigest()[:32]}.json"
