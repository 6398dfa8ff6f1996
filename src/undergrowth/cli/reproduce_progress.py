"""The progress of `undergrowth reproduce`: how many runs are missing and how long they will take."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext

from rich import progress

from undergrowth.cli.output import console, print_json
from undergrowth.report.tables import duration, operations, table
from undergrowth.reproduce import Workload
from undergrowth.sweeps.jobs import Job


@contextmanager
def show_progress() -> Iterator[dict[str, Callable[..., None]]]:
    """Yield the hooks of a reproduction that say on standard error how long it takes, with a bar on a terminal."""
    screen = console(stderr=True)
    columns = (
        progress.TextColumn("{task.description}"), progress.BarColumn(), progress.TextColumn("{task.fields[runs]}"),
        progress.TimeElapsedColumn(), progress.TextColumn("{task.fields[left]}"),
    )  # fmt: skip
    fractions: dict[str, float] = {}
    planned: list[Workload] = []
    bar = progress.Progress(*columns, console=screen, transient=True)
    with bar if screen.is_terminal else nullcontext():
        task = bar.add_task("starting", total=None, runs="", left="")

        def on_plan(workload: Workload) -> None:
            planned[:] = [workload]
            fractions.clear()
            if workload.estimate and workload.jobs:
                screen.print(_workload_line(workload))
            bar.update(task, total=max(1, len(workload.jobs)), completed=0)

        def on_progress(job: Job, fraction: float) -> None:
            known = {each.key for each in planned[0].jobs}
            if job.key not in known:  # it was finished before
                return
            fractions[job.key] = fraction
            estimate, done = planned[0].estimate, sum(value == 1.0 for value in fractions.values())
            left = f"{duration(estimate.seconds_left)} left" if estimate else ""
            runs = f"{done} of {len(known)} runs"
            bar.update(
                task, completed=sum(fractions.values()), runs=runs, left=left,
                description=f"last: {job.raw['method']['name']}",
            )  # fmt: skip
            if fraction == 1.0 and estimate and not screen.is_terminal:
                screen.print(f"{runs}, about {left}")

        yield {"on_plan": on_plan, "on_progress": on_progress}


def _workload_line(workload: Workload) -> str:
    estimate = workload.estimate
    assert estimate is not None
    basis = "a guess until runs on this kind of machine were timed" if estimate.assumed else "by the runs in the store"
    return (
        f"{len(workload.jobs)} runs to do, {workload.parallel} at a time: {operations(estimate.flops)} on devices, "
        f"about {duration(estimate.seconds_left)}, {basis}"
    )


def print_workload(workload: Workload, json: bool) -> None:
    """Prints how many runs are missing and how long they will take, by table if there are several."""
    estimate = workload.estimate
    assert estimate is not None
    by_table = {
        name: {"runs": len(keys), "flops": sum(estimate.work[key].flops for key in keys)}
        for name, keys in workload.tables.items()
    }
    if json:
        print_json({
            "runs": len(workload.jobs), "parallel": workload.parallel, "flops": estimate.flops,
            "seconds": estimate.seconds_left, "assumed": estimate.assumed, "tables": by_table,
        })  # fmt: skip
        return
    if len(by_table) > 1:
        rows = [(name, each["runs"], operations(each["flops"])) for name, each in by_table.items()]
        console().print(table(("table", "runs of no table before it", "on devices"), rows, right=(1, 2)))
    console().print(_workload_line(workload))
