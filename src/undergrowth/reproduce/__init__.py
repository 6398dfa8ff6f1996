"""Runs published tables and figures again and compares our numbers with the published ones."""

from undergrowth.reproduce.catalogue import find_table, load_tables
from undergrowth.reproduce.orderings import OrderingResult
from undergrowth.reproduce.reproduction import Reproduction, Results, Workload, reproduce_table
from undergrowth.reproduce.results import CellResult, TableResult
from undergrowth.reproduce.table import SCALES, Table

__all__ = [
    "SCALES", "CellResult", "OrderingResult", "Reproduction", "Results", "Table", "TableResult", "Workload",
    "find_table", "load_tables", "reproduce_table",
]  # fmt: skip
