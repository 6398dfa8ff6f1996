"""Configuration → run; the run store, checkpoints, resume."""

from undergrowth.runs.api import resume, run
from undergrowth.runs.result import Result, load
from undergrowth.runs.store import Store

__all__ = ["Result", "Store", "load", "resume", "run"]
