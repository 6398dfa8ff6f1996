"""`undergrowth bench`: speed against a reference that is measured in the same run."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from undergrowth.cli.exit_codes import FAILED, CommandError
from undergrowth.cli.output import AsJson, print_json, print_rows

if TYPE_CHECKING:
    from collections.abc import Iterable

    from undergrowth.bench import Line, Measurement, Row

# Lines are printed one by one, minutes apart, so the widths are fixed.
_LINE = "{:<32} {:>10} {:>10}  {:>7}  {:<14} {:<7} {}"
_ROW = "{:<40} {:>9} {:>8} {:>7} {:>7} {:>7} {:>6} {:>8}  {}"
_COLUMNS = (
    "contender", "clients/s", "CPU ms", "start s", "its CPU", "peak MB", "loss", "differs", "speed / CPU time, against",
)  # fmt: skip

_ENGINES, _BOTH = "bench engines: ", "bench engines and personal: "
_OPTIONS = {"personal": ("workload", "device", "devices")}  # of benchmarks other than engines, which has all


def bench(
    name: Annotated[str | None, typer.Argument(metavar="NAME", help="The benchmark to run.")] = None,
    workload: Annotated[
        str | None, typer.Option(metavar="NAME", help=_BOTH + "cnn or logistic; engines also mlp, lstm, wrn.")
    ] = None,
    device: Annotated[str | None, typer.Option(metavar="NAME", help=_BOTH + "cuda, to measure on a GPU.")] = None,
    others: Annotated[
        list[str] | None,
        typer.Option("--with", metavar="NAME=PYTHON", help=_ENGINES + "a Python with flower or pfl. Repeatable."),
    ] = None,
    repeats: Annotated[int | None, typer.Option(min=1, help=_ENGINES + "runs of every contender (3).")] = None,
    devices: Annotated[
        int | None, typer.Option(min=1, help=_BOTH + "number of devices; engines has no bars then.")
    ] = None,
    cohort: Annotated[int | None, typer.Option(min=1, help=_ENGINES + "devices a round; no bars then.")] = None,
    json: AsJson = False,
) -> None:
    """List the benchmarks; with a NAME: run it and print its lines. The exit code is 3 if a bar is missed.

    Example: undergrowth bench clock

    Example: undergrowth bench engines --with flower=flower/bin/python --with pfl=pfl/bin/python
    """
    from undergrowth.bench import BENCHMARKS
    from undergrowth.core import InputError, suggest

    if name is None:
        rows = [(each, shows) for each, (shows, _) in BENCHMARKS.items()]
        listed = [{"benchmark": each, "shows": shows} for each, shows in rows]
        print_rows(listed, json, ("benchmark", "what it shows"), rows)
        return
    if name not in BENCHMARKS:
        raise InputError(f"benchmark '{name}' is not known; {suggest(name, BENCHMARKS)}")
    given = {
        "workload": workload, "device": device, "repeats": repeats, "devices": devices, "cohort": cohort,
        "others": _pythons(others) if others else None,
    }  # fmt: skip
    options: dict[str, Any] = {option: value for option, value in given.items() if value is not None}
    refused = [option for option in options if name != "engines" and option not in _OPTIONS.get(name, ())]
    if refused:
        option = "with" if "others" in refused else refused[0]
        has = ", ".join(f"--{each}" for each in _OPTIONS.get(name, ())) or "no options"
        raise InputError(f"--{option} goes with bench engines; bench {name} has {has}")
    shows, measure = BENCHMARKS[name]
    if not json:
        typer.echo(f"{shows}\n")
    bars = _print_lines(measure(**options), json)
    missed = [measured.what for measured in bars if not measured.met]
    if missed:
        raise CommandError(FAILED, f"missed {len(missed)} of {len(bars)} bars of bench {name}: {'; '.join(missed)}")


def _print_lines(lines: Iterable[Line], json: bool) -> list[Measurement]:
    """Prints every line as it comes, or all as JSON at the end; returns the bars among them."""
    from undergrowth.bench import Measurement, Row

    done: list[Measurement | Row] = []
    try:
        for line in lines:
            if isinstance(line, str):
                typer.echo(line, err=True)
                continue
            if not json:
                if not done or getattr(done[-1], "workload", None) != getattr(line, "workload", None):
                    typer.echo(_head(line))
                typer.echo(_row(line) if isinstance(line, Row) else _line(line))
            done.append(line)
    finally:
        if json and done:  # also after an error: the measurements before it took a long time
            print_json([_facts(line) for line in done])
    return [line for line in done if isinstance(line, Measurement)]


def _pythons(others: list[str]) -> dict[str, str]:
    """The Python of each opponent, from texts such as flower=/there/bin/python."""
    from undergrowth.core import InputError

    for text in others:
        if not all(text.partition("=")):
            raise InputError(f"--with '{text}' must be NAME=PYTHON, such as flower=/there/bin/python")
    return dict(text.split("=", 1) for text in others)


def _head(line: Measurement | Row) -> str:
    from undergrowth.bench import Row

    if isinstance(line, Row):
        return f"\n{_ROW.format(*_COLUMNS)}"
    return f"\n{_LINE.format('what', 'ours', 'reference', 'ratio', 'bar', '', 'unit')}".rstrip()


def _row(row: Row) -> str:
    differs = "" if row.difference is None else f"{row.difference:.1e}"
    against = ", ".join(f"{other} {speed:.2f} / {cpu:.2f}" for other, (speed, cpu) in row.against.items())
    numbers = (
        f"{row.speed:.4g}",
        f"{row.cpu:.4g}",
        f"{row.startup:.1f}",
        f"{row.startup_cpu:.1f}",
        f"{row.memory:.0f}",
    )
    return _ROW.format(row.contender, *numbers, f"{row.loss:.3f}", differs, against)


def _line(measured: Measurement) -> str:
    bar = f"at {'most' if measured.lower_is_better else 'least'} {measured.bar:g}"
    verdict = "met" if measured.met else "missed"
    numbers = (f"{measured.ours:.4g}", f"{measured.reference:.4g}", f"{measured.ratio:.3f}")
    return _LINE.format(measured.what, *numbers, bar, verdict, measured.unit)


def _facts(line: Measurement | Row) -> dict[str, Any]:
    from undergrowth.bench import Row

    if isinstance(line, Row):
        times = line.against.items()
        against = {other: {"clients_per_second": speed, "cpu_ms_per_client": cpu} for other, (speed, cpu) in times}
        return {
            "workload": line.workload, "contender": line.contender, "clients_per_second": line.speed,
            "cpu_ms_per_client": line.cpu, "startup_seconds": line.startup,
            "startup_cpu_seconds": line.startup_cpu, "peak_megabytes": line.memory,
            "loss": line.loss, "difference": line.difference, "times": against,
        }  # fmt: skip
    return {
        "what": line.what, "ours": line.ours, "reference": line.reference, "unit": line.unit, "ratio": line.ratio,
        "bar": line.bar, "lower_is_better": line.lower_is_better, "met": line.met,
    }  # fmt: skip
