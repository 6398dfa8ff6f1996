"""The progress of a sweep on standard error: a bar on a terminal, else a line for every run that has ended."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from threading import Lock

from rich import progress
from rich.console import Console

from undergrowth.sweeps.jobs import Job
from undergrowth.sweeps.planned_sweep import PlannedSweep


@contextmanager
def show_progress(planned: PlannedSweep, shown: bool) -> Iterator[Callable[[Job, float], None]]:
    """Yields what `run_sweep` calls with a job and the finished fraction of it. Prints nothing unless `shown`."""
    screen = Console(stderr=True, markup=False, highlight=False, emoji=False, quiet=not shown)
    columns = (
        progress.TextColumn("{task.description}"), progress.BarColumn(), progress.TextColumn("{task.fields[runs]}"),
        progress.TimeElapsedColumn(), progress.TextColumn("left"), progress.TimeRemainingColumn(),
    )  # fmt: skip
    labels, fractions, lock = planned.labels, dict[str, float](), Lock()
    printed: set[str] = set()
    as_bar = shown and screen.is_terminal
    bar = progress.Progress(*columns, console=screen, transient=True)
    with bar if as_bar else nullcontext():
        task = bar.add_task("starting", total=len(labels), runs="")

        def on_progress(job: Job, fraction: float) -> None:
            with lock:  # with several runs at a time, their threads come here
                fractions[job.key] = fraction
                done = sum(each == 1.0 for each in fractions.values())
                runs, label = f"{done} of {len(labels)} runs", labels[job.key]
                bar.update(task, completed=sum(fractions.values()), runs=runs, description=label)
                if fraction == 1.0 and not as_bar and job.key not in printed:
                    printed.add(job.key)
                    screen.print(f"{runs}: {label}")

        yield on_progress
