"""Many runs in one command: the variants of a sweep, the runs that exist already, and several runs at a time."""

from undergrowth.sweeps.api import sweep
from undergrowth.sweeps.result import SweepResult

__all__ = ["SweepResult", "sweep"]
