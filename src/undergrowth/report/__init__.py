"""Tables, plots and pages of runs."""

from undergrowth.report.analyses import ANALYSES, analyse
from undergrowth.report.page import report

__all__ = ["ANALYSES", "analyse", "report"]
