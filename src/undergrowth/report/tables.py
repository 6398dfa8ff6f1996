"""Tables for the terminal, and numbers in units that people read."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Literal

from rich import box
from rich.table import Table
from rich.text import Text

NOTHING = "–"

_LARGE = ("", "k", "M", "G", "T", "P", "E")
_SMALL = ("", "m", "µ", "n")


def amount(value: float | None, unit: str) -> str:
    """A number with the prefix that leaves one to three digits before the point."""
    if value is None or not math.isfinite(value):
        return NOTHING
    if value == 0:
        return f"0 {unit}"
    step = math.floor(math.log10(abs(value)) / 3)
    if abs(value) / 1000**step >= 999.5:  # would be written as 1000 of the smaller unit
        step += 1
    # Bytes and operations come whole: half a byte is nothing to speak of.
    step = max(min(step, len(_LARGE) - 1), 0 if unit in ("B", "FLOP") else 1 - len(_SMALL))
    prefix = _LARGE[step] if step >= 0 else _SMALL[-step]
    return f"{_short(value / 1000.0**step)} {prefix}{unit}"


def size(value: float | None) -> str:
    """Bytes."""
    return amount(value, "B")


def operations(value: float | None) -> str:
    """Floating-point operations."""
    return amount(value, "FLOP")


def energy(value: float | None) -> str:
    """Joules."""
    return amount(value, "J")


def duration(value: float | None) -> str:
    """Seconds."""
    if value is None or not math.isfinite(value):
        return NOTHING
    if value < 59.95:
        return amount(value, "s")
    minutes, seconds = divmod(round(value), 60)
    hours, minutes = divmod(minutes, 60)
    days, hours = divmod(hours, 24)
    if days:
        return f"{days} d {hours:02d} h"
    return f"{hours} h {minutes:02d} min" if hours else f"{minutes} min {seconds:02d} s"


def score(value: float | None) -> str:
    """An accuracy or a loss."""
    if value is None or not math.isfinite(value):
        return NOTHING
    return f"{value:.4f}" if abs(value) < 1e4 else f"{value:.3g}"


def count(value: float | None) -> str:
    """A number of things, with room between the thousands."""
    return NOTHING if value is None else f"{value:,.0f}".replace(",", " ")


def rate(value: float | None) -> str:
    return NOTHING if value is None or not math.isfinite(value) else f"{_short(value)} /s"


def efficiency(value: float | None) -> str:
    """Accuracy by second of computing."""
    return NOTHING if value is None or not math.isfinite(value) else f"{value:.3g} /s"


# What a run costs: key in the summary, words, how it is written.
COSTS: tuple[tuple[str, str, Callable[[float | None], str]], ...] = (
    ("bytes_down", "sent to devices", size),
    ("bytes_up", "sent by devices", size),
    ("flops", "computed on devices", operations),
    ("compute_seconds", "computing time of devices", duration),
    ("learning_efficiency", "learning efficiency", efficiency),
    ("simulated_seconds", "simulated time", duration),
    ("joules", "energy of devices", energy),
    ("peak_device_bytes", "most memory of a device", size),
    ("wall_seconds", "time it took here", duration),
    ("clients_per_second", "clients trained", rate),
)


def table(
    columns: Sequence[str], rows: Iterable[Sequence[Any]], title: str | None = None, right: Iterable[int] = ()
) -> Table:
    """A plain table; the columns numbered in `right` are aligned to the right."""
    built = Table(
        box=box.SIMPLE_HEAD, padding=(0, 0, 0, 1), pad_edge=False, title=title, title_justify="left",
        show_header=any(columns),
    )  # fmt: skip
    numbers = set(right)
    for place, column in enumerate(columns):
        # Names come first, and are there to be copied.
        justify: Literal["left", "right"] = "right" if place in numbers else "left"
        built.add_column(Text(column), justify=justify, overflow="fold", no_wrap=place == 0)
    for row in rows:
        built.add_row(*(Text(NOTHING if cell is None else str(cell)) for cell in row))
    return built


def facts(rows: Iterable[tuple[str, Any]]) -> Table:
    """Names on the left, what there is to say about them on the right."""
    built = Table.grid(padding=(0, 3))
    built.add_column(style="bold", no_wrap=True)
    built.add_column(overflow="fold")
    for name, value in rows:
        built.add_row(Text(name), Text(NOTHING if value is None else str(value)))
    return built


def costs(totals: dict[str, Any]) -> Table:
    """The bill of a run."""
    rows = [(words, written(totals.get(key))) for key, words, written in COSTS]
    return table(("cost", ""), rows, right=(1,))


def _short(value: float) -> str:
    """Three digits, and no more than are there."""
    if abs(value) >= 99.95:
        return f"{value:.0f}"
    text = f"{value:.1f}" if abs(value) >= 9.995 else f"{value:.2f}"
    return text.rstrip("0").rstrip(".")
