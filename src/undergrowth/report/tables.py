"""Tables for the terminal, and numbers formatted with units."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from itertools import chain
from textwrap import wrap
from typing import Any, Literal

from rich import box
from rich.console import Console, ConsoleOptions, RenderResult
from rich.table import Table
from rich.text import Text

from undergrowth.core import Metric
from undergrowth.exchange import COSTS, Cost

NO_VALUE = "–"

_MAX_WIDTH = 10_000  # of a table that is measured
_MIN_TEXT_WIDTH = 12  # of a column of text, unless its words are shorter
_LARGE_PREFIXES = ("", "k", "M", "G", "T", "P", "E")
_SMALL_PREFIXES = ("", "m", "µ", "n")


def amount(value: float | None, unit: str) -> str:
    """`value` with three digits and the SI prefix that leaves one to three of them before the point."""
    if value is None or not math.isfinite(value):
        return NO_VALUE
    if value == 0:
        return f"0 {unit}"
    step = math.floor(math.log10(abs(value)) / 3)
    if abs(value) / 1000**step >= 999.5:  # would be rounded to 1000 of the smaller unit
        step += 1
    # Bytes and operations are whole numbers, so they have no prefixes below 1.
    step = max(min(step, len(_LARGE_PREFIXES) - 1), 0 if unit in ("B", "FLOP") else 1 - len(_SMALL_PREFIXES))
    prefix = _LARGE_PREFIXES[step] if step >= 0 else _SMALL_PREFIXES[-step]
    return f"{_three_digits(value / 1000.0**step)} {prefix}{unit}"


size = partial(amount, unit="B")
operations = partial(amount, unit="FLOP")
energy = partial(amount, unit="J")


def duration(value: float | None) -> str:
    """A time in seconds."""
    if value is None or not math.isfinite(value):
        return NO_VALUE
    if value < 59.95:
        return amount(value, "s")
    minutes, seconds = divmod(round(value), 60)
    hours, minutes = divmod(minutes, 60)
    days, hours = divmod(hours, 24)
    if days:
        return f"{days} d {hours:02d} h"
    return f"{hours} h {minutes:02d} min" if hours else f"{minutes} min {seconds:02d} s"


def score(value: float | None) -> str:
    """An accuracy, a loss or another metric."""
    if value is None or not math.isfinite(value):
        return NO_VALUE
    return f"{value:.4f}" if abs(value) < 1e4 else f"{value:.3g}"


def other_scores(history: Sequence[Mapping[str, Any]]) -> list[tuple[str, str]]:
    """Scores of other models than the run's in the last round that has some, such as accuracy/ensemble."""
    found = ({name: value for name, value in row.items() if "/" in name} for row in reversed(history))
    last = next((scores for scores in found if scores), {})
    return [(name, score(value)) for name, value in last.items()]


def named_score(row: Mapping[str, Any], title: str) -> str:
    """The main metric of a listed run, with its name unless that is the title of the column."""
    name = row["metric"]
    value = score(None if name is None else row[name])
    return value if name in (None, title) else f"{name} {value}"


def describe_value(metric: Metric, value: float) -> str:
    """A value to reach, as part of a sentence: an accuracy of 0.9000, r2 of 0.5000."""
    article = {"accuracy": "an ", "loss": "a "}.get(metric.name, "")
    return f"{article}{metric.name} of {score(value)}"


def count(value: float | None) -> str:
    """A whole number with spaces between the thousands."""
    return NO_VALUE if value is None else f"{value:,.0f}".replace(",", " ")


def rate(value: float | None) -> str:
    return NO_VALUE if value is None or not math.isfinite(value) else f"{_three_digits(value)} /s"


def efficiency(value: float | None) -> str:
    """Accuracy per second of computing."""
    return NO_VALUE if value is None or not math.isfinite(value) else f"{value:.3g} /s"


# Costs of a run: key in the summary, title, formatting function.
SHOWN_COSTS: tuple[tuple[str, str, Callable[[float | None], str]], ...] = (
    ("bytes_down", "sent down, all links", size),
    ("bytes_up", "sent up, all links", size),
    ("flops", "computed on devices", operations),
    ("compute_seconds", "computing time of devices", duration),
    ("learning_efficiency", "learning efficiency", efficiency),
    ("simulated_seconds", "simulated time", duration),
    ("joules", "energy of devices", energy),
    ("peak_device_bytes", "peak memory of a device", size),
    ("wall_seconds", "time on this machine", duration),
    ("clients_per_second", "devices trained", rate),
)
# Titles of the costs of one device.
_SHORT_TITLES = {
    "bytes_down": "down", "bytes_up": "up", "flops": "computed", "joules": "energy", "compute_seconds": "computing",
    "peak_device_bytes": "memory",
}  # fmt: skip


class PlainTable(Table):
    """A table whose numbers are never broken or cut off.

    Where its lines are too long for the terminal, titles and means with deviations take several lines. Where that is
    not enough, every row is a paragraph: its first cell, and below it the other cells with their titles.
    """

    def __init__(
        self, columns: Sequence[str], rows: Sequence[Sequence[str]], title: str | None, right: frozenset[int]
    ) -> None:
        super().__init__(
            box=box.SIMPLE_HEAD, padding=(0, 0, 0, 1), pad_edge=False, title=title, title_justify="left",
            show_header=any(columns),
        )  # fmt: skip
        self.names, self.cells, self.right = columns, rows, right
        for place, column in enumerate(columns):
            # The first column holds names, which can only be copied if they are not wrapped.
            justify: Literal["left", "right"] = "right" if place in right else "left"
            self.add_column(Text(column), justify=justify, overflow="fold", no_wrap=place == 0 or place in right)
        for row in rows:
            self.add_row(*map(Text, row))

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        if needed_width(console, self) <= options.max_width:
            yield from super().__rich_console__(console, options)
            return
        narrow = self._with_short_lines()
        if needed_width(console, narrow) - narrow._foldable() <= options.max_width:
            yield from Table.__rich_console__(narrow, console, options)
        else:
            yield from self._paragraphs(options.max_width)

    def _with_short_lines(self) -> PlainTable:
        """The same table, with line breaks in the titles of numbers and after the sign ±."""
        rows = [
            [
                cell.replace(" ± ", " ±\n") if place in self.right and "\n" not in cell else cell
                for place, cell in enumerate(row)
            ]
            for row in self.cells
        ]
        columns = list(self.names)
        for place in self.right:
            words = columns[place].split()
            width = max((len(text) for text in (*words, *_lines(rows, place))), default=1)
            lines = [wrap(line, width) or [""] for line in columns[place].split("\n")]
            columns[place] = "\n".join(chain.from_iterable(lines))
        return PlainTable(columns, rows, str(self.title) if self.title else None, self.right)

    def _foldable(self) -> int:
        """How much narrower the columns of text can be."""
        total = 0
        for place in set(range(1, len(self.names))) - self.right:
            lines = [*self.names[place].split("\n"), *_lines(self.cells, place)]
            words = [word for line in lines for word in line.split()]
            least = min(max(map(len, words), default=0), _MIN_TEXT_WIDTH)
            total += max(map(len, lines)) - least
        return total

    def _paragraphs(self, width: int) -> RenderResult:
        if self.title:
            yield Text(str(self.title))
        for first, *others in self.cells:
            if first:
                yield Text("  ".join(first.split("\n")))
            line = ""
            for figure in _figures(self.names[1:], others):
                if line and len(line) + len(figure) + 3 > width:
                    yield Text(f"{line};")
                    line = ""
                line = f"{line}; {figure}" if line else f"  {figure}"
            if line:
                yield Text(line)


def _lines(rows: Iterable[Sequence[str]], place: int) -> list[str]:
    return [line for row in rows for line in row[place].split("\n")]


def _figures(columns: Sequence[str], cells: Sequence[str]) -> Iterator[str]:
    """The cells of a row that are not empty, with their titles. A title may be one for each line of its cell."""
    for column, cell in zip(columns, cells, strict=True):
        titles, values = column.split("\n"), cell.split("\n")
        if len(titles) != len(values):
            titles, values = [" ".join(titles)], [" ".join(values)]
        yield from (f"{title} {value.strip()}".strip() for title, value in zip(titles, values, strict=True) if value)


def table(
    columns: Sequence[str], rows: Iterable[Sequence[Any]], title: str | None = None, right: Iterable[int] = ()
) -> PlainTable:
    """A plain table. The columns with the indices in `right` are right-aligned."""
    cells = [[NO_VALUE if cell is None else str(cell) for cell in row] for row in rows]
    return PlainTable(columns, cells, title, frozenset(right) & frozenset(range(len(columns))))


class WideOrNarrow:
    """Prints the first table, or the second one if the terminal is too narrow for the first."""

    def __init__(self, wide: Table, narrow: Table) -> None:
        self.wide, self.narrow = wide, narrow

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        yield self.wide if needed_width(console, self.wide) <= options.max_width else self.narrow


def needed_width(console: Console, shown: Table) -> int:
    """The width of a table if nothing in it is wrapped."""
    return console.measure(shown, options=console.options.update(max_width=_MAX_WIDTH)).maximum


def stackable_table(
    columns: Sequence[str], rows: Sequence[Sequence[Any]], stacked: Sequence[Sequence[int]], right: Iterable[int]
) -> WideOrNarrow:
    """A plain table that, in a narrow terminal, has the cells of each group in `stacked` one below the other."""
    right = set(right)
    narrow = [["\n".join(str(cells[place]) for place in group) for group in stacked] for cells in (columns, *rows)]
    narrow_right = [place for place, group in enumerate(stacked) if group[0] in right]
    return WideOrNarrow(table(columns, rows, right=right), table(narrow[0], narrow[1:], right=narrow_right))


def facts(rows: Iterable[tuple[str, Any]]) -> Table:
    """A table without borders: names on the left, values on the right."""
    built = Table.grid(padding=(0, 3))
    built.add_column(style="bold", no_wrap=True)
    built.add_column(overflow="fold")
    for name, value in rows:
        built.add_row(Text(name), Text(NO_VALUE if value is None else str(value)))
    return built


def device_columns(metric: str) -> tuple[str, ...]:
    """The titles of a table of devices. `metric`: the main metric of the run's task."""
    return ("device", "class", "samples", metric, "rounds", *cost_titles(COSTS))


def device_table(devices: Iterable[Mapping[str, Any]], metric: str) -> WideOrNarrow:
    """What a finished run says about its devices. `metric`: the main metric of the run's task."""
    columns = device_columns(metric)
    rows = [device_cells(device, metric) for device in devices]
    costs = range(len(columns) - len(COSTS), len(columns))
    stacked = [(0, 1), (2, 3, 4), *(costs[at : at + 2] for at in range(0, len(costs), 2))]
    return stackable_table(columns, rows, stacked, right=range(2, len(columns)))


def device_cells(device: Mapping[str, Any], metric: str) -> tuple[Any, ...]:
    """What a finished run says about one of its devices, for a table with `device_columns`."""
    return (
        device["device"], device["tier"], count(device["samples"]), score(device.get(metric)), device["rounds"],
        *cost_cells(device, COSTS),
    )  # fmt: skip


def cost_titles(costs: Iterable[Cost]) -> list[str]:
    """The titles of a table with the costs of devices."""
    return [_SHORT_TITLES[cost.of_run] for cost in costs]


def cost_cells(facts: Mapping[str, Any], costs: Iterable[Cost]) -> list[str]:
    """The costs of one device, for a table with `cost_titles`."""
    formatted = {key: function for key, _, function in SHOWN_COSTS}
    return [formatted[cost.of_run](facts.get(cost.of_device)) for cost in costs]


def cost_table(totals: dict[str, Any]) -> Table:
    """The costs of a run."""
    rows = [(title, formatted(totals.get(key))) for key, title, formatted in SHOWN_COSTS]
    return table(("cost", ""), rows, right=(1,))


def start_line(costs: Mapping[str, Any]) -> str:
    """The costs of the phase before the first round, which the totals of a run do not contain."""
    parts = []
    if costs["server_flops"]:
        parts.append(f"{operations(costs['server_flops'])} at the server")
    if costs["bytes_down"]:
        traffic = f"{size(costs['bytes_down'])} down, {size(costs['bytes_up'])} up"
        energy_and_time = f"{energy(costs['joules'])}, {duration(costs['simulated_seconds'])} of simulated time"
        parts.append(f"{operations(costs['flops'])}, {traffic}, {energy_and_time} on devices")
    return "; ".join(parts) or "nothing yet"


def _three_digits(value: float) -> str:
    """`value` with three digits, without trailing zeros."""
    if abs(value) >= 99.95:
        return f"{value:.0f}"
    text = f"{value:.1f}" if abs(value) >= 9.995 else f"{value:.2f}"
    return text.rstrip("0").rstrip(".")
