"""Configuration → run; the run store, checkpoints, resume."""

from undergrowth.runs.api import resume, run
from undergrowth.runs.listing import list_runs as list
from undergrowth.runs.new_device import AdaptedModel, adapt
from undergrowth.runs.result import Result, load
from undergrowth.runs.store import Store

__all__ = ["AdaptedModel", "Result", "Store", "adapt", "list", "load", "resume", "run"]
