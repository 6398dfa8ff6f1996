"""Runs published tables again and compares our figures with the published ones."""

from undergrowth.reproduce.reproduction import reproduce_table
from undergrowth.reproduce.results import CellResult, OrderingResult, TableResult
from undergrowth.reproduce.table import SCALES, Table, find_table, load_tables

__all__ = [
    "SCALES", "CellResult", "OrderingResult", "Table", "TableResult", "find_table", "load_tables", "reproduce_table",
]  # fmt: skip
