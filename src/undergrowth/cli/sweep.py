"""`undergrowth sweep`: all combinations of the choices in an experiment file, and a table and a page about them."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from undergrowth.cli.exit_codes import FAILED, INTERRUPTED, CommandError
from undergrowth.cli.output import AsJson, TargetAccuracy, TargetMetric, console, print_json
from undergrowth.cli.run import SettingOptions

if TYPE_CHECKING:
    from undergrowth.sweeps import SweepResult

_MAX_NOTES = 10
_NOTES_OF_ONE_RUN = ("engine auto", "stopped after")  # how notes begin that say nothing about the sweep


def sweep(
    file: Annotated[str, typer.Argument(metavar="FILE.yaml", help="Experiment file with choices.")],
    jobs: Annotated[int, typer.Option(metavar="N", min=1, help="Number of runs at a time, each in a process.")] = 1,
    settings: SettingOptions = None,
    accuracy: TargetAccuracy = None,
    metric: TargetMetric = None,
    out: Annotated[str | None, typer.Option(metavar="DIR", help="Folder for runs. (Default: runs.)")] = None,
    target: Annotated[
        str | None,
        typer.Option("-o", "--output", metavar="FILE.html", help="The page. (Default: FILE.html in the runs' folder.)"),
    ] = None,
    latex: Annotated[
        str | None, typer.Option(metavar="FILE.tex", help="Also write a LaTeX table, one row per variant.")
    ] = None,
    json: AsJson = False,
    report: Annotated[
        bool | None, typer.Option("--report/--no-report", help="Write an HTML page. (Default: unless --json.)")
    ] = None,
) -> None:
    """Run every combination of the choices in FILE.yaml, and compare them in one table and one page.

    A list in the file is a choice:

      run: {seed: [0, 1, 2]}

      method: [fedavg, {name: fedprox, mu: [0.01, 0.1]}]

    Lists by nature, such as model.ladder, stay lists; a list of lists is a choice.
    Named variants change the sections that they have:

      sweep: [{name: slow, train: {lr: 0.01}}, {name: fast, train: {lr: 0.1}}]

    Runs that differ only in their seed are one row of the table: the mean ± the
    standard deviation, and the difference from the first row, seed by seed.

    A repeated command takes finished runs from the folder and resumes others.
    A run that fails does not stop the others; the exit code is then 3.

    Examples:

      undergrowth sweep methods.yaml --jobs 2

      undergrowth sweep methods.yaml --latex table.tex

      undergrowth sweep methods.yaml -s "run.seed=[0, 1, 2]" -s train.rounds=50 --accuracy 0.9

      undergrowth sweep methods.yaml --json | tail -n 1
    """
    from undergrowth.runs import experiment_file
    from undergrowth.runs.atomic_files import check_target
    from undergrowth.sweeps.api import run_sweep
    from undergrowth.sweeps.planned_sweep import plan_sweep
    from undergrowth.sweeps.progress import show_progress

    raw = experiment_file.read(file)
    for text in settings or []:
        experiment_file.assign_text(raw, text)
    planned = plan_sweep(raw, out, Path(file).stem)
    for path in (target, latex):
        if path is not None:
            check_target(path)
    try:
        with show_progress(planned, shown=True) as on_progress:
            result = run_sweep(planned, jobs, accuracy, on_progress, metric)
    except KeyboardInterrupt:
        raise CommandError(INTERRUPTED, "interrupted: the same command continues where it stopped") from None
    page = None
    if (not json if report is None else report) and result.runs:
        page = result.page(target or Path(planned.folder).expanduser() / f"{Path(file).stem}.html")
    if latex and result.runs:
        result.latex(latex)
    if json:
        from undergrowth.cli.run_summary import json_summary

        print_json([json_summary(each) for each in result.results])
    else:
        _print_result(result, page, latex)
    if result.failed:
        name, reason = next(iter(result.failed.items()))
        failed, total = len(result.failed), len(result.failed) + len(result.runs)
        again = "the same command tries again"
        raise CommandError(FAILED, f"failed: {failed} of {total} runs, the first {name}: {reason}; {again}")


def _print_result(result: SweepResult, page: Path | None, latex: str | None) -> None:
    from collections import Counter

    from undergrowth.report.tables import describe_value, facts
    from undergrowth.sweeps.tables import score_table, target_table

    screen = console()
    screen.print(score_table(result.comparison, result.metric.name))
    if result.goal is not None:
        screen.print(f"To reach {describe_value(result.metric, result.goal)}, over the seeds that reach it")
        screen.print(target_table(result.comparison))
    ended = Counter(each.summary["stopped"] for each in result.results if "stopped" in each.summary)
    for limit, runs in ended.items():
        screen.print(f"ended by {limit}: {runs} of {len(result.runs)} runs")
    notes = [note for each in result.results for note in each.notes if not note.startswith(_NOTES_OF_ONE_RUN)]
    for note in list(dict.fromkeys(notes))[:_MAX_NOTES]:
        screen.print(f"note: {note}")
    for name, reason in result.failed.items():
        screen.print(f"failed: {name}: {reason}")
    written = [("report", page)] if page else []
    written += [("LaTeX", Path(latex))] if latex and result.runs else []
    if written:
        screen.print(facts(written))
