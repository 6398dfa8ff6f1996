"""Tables, plots and pages of runs."""

from undergrowth.report.page import report

__all__ = ["report"]
