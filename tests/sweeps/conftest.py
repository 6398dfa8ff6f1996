"""Fixtures of the tests of `undergrowth.sweeps`."""

from tests.executed_runs import executed

__all__ = ["executed"]
