"""Fixtures of the tests of `undergrowth.reproduce`."""

from tests.executed_runs import executed
from tests.reproduce.example_table import table

__all__ = ["executed", "table"]
