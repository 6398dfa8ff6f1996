"""A reproduced table as a Markdown page."""

from __future__ import annotations

from collections.abc import Sequence

from undergrowth.reproduce.page_content import page_parts
from undergrowth.reproduce.results import TableResult


def render_page(result: TableResult, command: str, torch_device: str, plots: Sequence[str] = ()) -> str:
    """The Markdown page of `result`. `command` is the one that made it, `torch_device` its torch device.

    plots: the names of image files in the folder of the page.
    """
    images = "\n\n".join(f"![{result.table.label}, plot]({name})" for name in plots)
    blocks = []
    for level, part in enumerate(page_parts(result, command, torch_device)):
        blocks += [f"{'##' if level else '#'} {part.title}" if part.title else "", part.text, "" if level else images]
        blocks += [_table(*part.table) if part.table else "", "\n".join(f"- {line}" for line in part.lines)]
    return "\n\n".join(filter(None, blocks)) + "\n"


def _table(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = [" | ".join(columns), *(" | ".join(row) for row in rows)]
    head, *body = [f"| {line} |" for line in lines]
    return "\n".join([head, f"|{'---|' * len(columns)}", *body])
