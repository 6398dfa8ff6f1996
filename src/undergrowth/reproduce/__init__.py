"""Published tables, run again: our figures beside those of the print."""

from undergrowth.reproduce.findings import Finding, Report, Verdict
from undergrowth.reproduce.reproduction import reproduce
from undergrowth.reproduce.table import SCALES, Table, find, tables

__all__ = ["SCALES", "Finding", "Report", "Table", "Verdict", "find", "reproduce", "tables"]
