"""Tables, figures and HTML pages about runs."""

from undergrowth.report.analyses import ANALYSES, analyse
from undergrowth.report.plan_report import PlanReport, plan
from undergrowth.report.run_page import write_report

__all__ = ["ANALYSES", "PlanReport", "analyse", "plan", "write_report"]
