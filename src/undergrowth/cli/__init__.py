"""The command line. Commands are thin: everything they do can also be done from Python."""

from __future__ import annotations

import sys

from undergrowth.cli.exit_codes import INTERRUPTED

__all__ = ["main"]


def main() -> None:
    """Runs the command that `sys.argv` names."""
    try:
        from undergrowth.cli.app import main as start  # here, because this import takes long enough for a Ctrl-C

        start()
    except KeyboardInterrupt:
        sys.exit(INTERRUPTED)
