"""Fixtures for all tests of reproduced tables."""

from tests.reproduce.made_up import table

__all__ = ["table"]
