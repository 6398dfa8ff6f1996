"""The command line. Commands are thin: everything they do can also be done from Python."""

from undergrowth.cli.app import main

__all__ = ["main"]
