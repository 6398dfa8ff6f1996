"""Fixtures of the tests of `undergrowth.reproduce`."""

from tests.reproduce.example_table import table

__all__ = ["table"]
