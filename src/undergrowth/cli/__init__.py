"""The command line: thin commands over what Python users call too."""

from undergrowth.cli.app import main

__all__ = ["main"]
