"""Tables, figures and HTML pages about runs."""

from undergrowth.report.analyses import ANALYSES, analyse
from undergrowth.report.run_page import write_report

__all__ = ["ANALYSES", "analyse", "write_report"]
