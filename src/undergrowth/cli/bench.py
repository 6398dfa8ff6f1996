"""`undergrowth bench`: how fast this is, against a reference that is measured in the same run."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from undergrowth.cli.endings import FAILED, Ended
from undergrowth.cli.output import AsJson, console, print_json

if TYPE_CHECKING:
    from undergrowth.bench import Measurement

# Lines come one by one, minutes apart, so the widths cannot wait for the longest.
_LINE = "{:<32} {:>10} {:>10}  {:>7}  {:<14} {:<7} {}"


def bench(
    name: Annotated[str | None, typer.Argument(metavar="NAME", help="The one to run.")] = None,
    json: AsJson = False,
) -> None:
    """List the benchmarks; with a NAME: run it, line by line. Exit code 3 when a bar is missed.

    Example: undergrowth bench clock
    """
    from undergrowth.bench import BENCHMARKS
    from undergrowth.core import InputError, nearest
    from undergrowth.report.tables import table

    if name is None:
        if json:
            print_json([{"benchmark": each, "shows": shows} for each, (shows, _) in BENCHMARKS.items()])
        else:
            rows = [(each, shows) for each, (shows, _) in BENCHMARKS.items()]
            console().print(table(("benchmark", "what it shows"), rows))
        return
    if name not in BENCHMARKS:
        raise InputError(f"benchmark '{name}' is not known; {nearest(name, BENCHMARKS)}")
    shows, measure = BENCHMARKS[name]
    if not json:
        typer.echo(f"{shows}\n\n{_LINE.format('what', 'ours', 'reference', 'ratio', 'bar', '', 'unit').rstrip()}")
    done: list[Measurement] = []
    for measured in measure():
        done.append(measured)
        if not json:
            typer.echo(_line(measured))
    if json:
        print_json([_facts(measured) for measured in done])
    missed = [measured.what for measured in done if not measured.met]
    if missed:
        raise Ended(FAILED, f"missed {len(missed)} of {len(done)} bars of bench {name}: {'; '.join(missed)}")


def _line(measured: Measurement) -> str:
    bar = f"at {'most' if measured.lower_is_better else 'least'} {measured.bar:g}"
    verdict = "met" if measured.met else "missed"
    numbers = (f"{measured.ours:.4g}", f"{measured.reference:.4g}", f"{measured.ratio:.3f}")
    return _LINE.format(measured.what, *numbers, bar, verdict, measured.unit)


def _facts(measured: Measurement) -> dict[str, Any]:
    return {
        "what": measured.what, "ours": measured.ours, "reference": measured.reference, "unit": measured.unit,
        "ratio": measured.ratio, "bar": measured.bar, "lower_is_better": measured.lower_is_better, "met": measured.met,
    }  # fmt: skip
