"""Tables, figures and HTML pages about runs."""

from undergrowth.report.analyses import ANALYSES, analyse
from undergrowth.report.plan_report import PlanReport, plan
from undergrowth.report.run_export import export
from undergrowth.report.run_names import find_runs
from undergrowth.report.run_page import write_report

__all__ = ["ANALYSES", "PlanReport", "analyse", "export", "find_runs", "plan", "write_report"]
