"""Self-contained HTML pages: sections with text, tables and figures, and the script that draws the figures."""

from __future__ import annotations

import base64
import gzip
import html
import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from functools import cache
from importlib import resources
from typing import Any

from undergrowth.report.figures import Figure
from undergrowth.report.tables import NO_VALUE


@dataclass
class Page:
    """Collects the content of a page from top to bottom, and renders it."""

    title: str
    _parts: list[str] = field(default_factory=list)
    _figures: dict[str, Figure] = field(default_factory=dict)

    def add(self, markup: str) -> None:
        self._parts.append(markup)

    def section(self, title: str, text: str = "", level: int = 2) -> None:
        quiet = f'\n<p class="quiet">{escape(text)}</p>' if text else ""
        self.add(f"<h{level}>{escape(title)}</h{level}>{quiet}")

    def text(self, sentence: str) -> None:
        self.add(f"<p>{escape(sentence)}</p>")

    def figures(self, figures: Iterable[Figure | None]) -> bool:
        """Add figures side by side, as far as the window is wide enough. Returns False if all of them are None."""
        boxes = []
        for figure in figures:
            if figure is None:
                continue
            name = f"figure-{len(self._figures) + 1}"
            self._figures[name] = figure
            title = escape(figure["layout"].get("title", {}).get("text", ""))
            caption = f"<figcaption>{title}</figcaption>" if title else ""
            boxes.append(f'<figure class="figure">{caption}<div id="{name}"></div></figure>')
        if boxes:
            self.add(f'<div class="figures">{"".join(boxes)}</div>')
        return bool(boxes)

    def table(self, columns: Sequence[str], rows: Iterable[Sequence[Any]], **options: Any) -> None:
        self.add(html_table(columns, rows, **options))

    def fold(self, title: str, markup: str) -> None:
        """Add markup that is shown after a click on `title`."""
        self.add(f"<details><summary>{escape(title)}</summary>{markup}</details>")

    @property
    def body(self) -> str:
        return "\n".join(self._parts)

    @property
    def drawings(self) -> dict[str, Figure]:
        """The figures by the ids of the elements that they are drawn in."""
        return dict(self._figures)

    @property
    def packed_figures(self) -> str:
        """The figures as the page's script reads them."""
        return _pack(json.dumps(self._figures, allow_nan=False))

    def render(self) -> str:
        """The page as one file that opens without a network."""
        return _resource("page.html").format(
            title=escape(self.title),
            style=_resource("page.css"),
            body=self.body,
            figures=self.packed_figures,
            plotly=_packed_plotly(),
            script=_resource("page.js"),
        )


def html_table(
    columns: Sequence[str], rows: Iterable[Sequence[Any]], numbers: bool = True, marked: Iterable[int] = ()
) -> str:
    """A table as HTML. `numbers` aligns all columns but the first to the right; rows in `marked` are highlighted."""
    attributes = ["" if place == 0 or not numbers else ' class="number"' for place in range(len(columns))]
    highlighted = set(marked)
    head = "".join(
        f"<th{attribute}>{escape(column)}</th>" for attribute, column in zip(attributes, columns, strict=True)
    )
    body = []
    for place, row in enumerate(rows):
        cells = "".join(f"<td{attribute}>{escape(cell)}</td>" for attribute, cell in zip(attributes, row, strict=True))
        mark = ' class="marked"' if place in highlighted else ""
        body.append(f"<tr{mark}>{cells}</tr>")
    return f'<div class="scroll"><table><thead><tr>{head}</tr></thead><tbody>{"".join(body)}</tbody></table></div>'


def escape(value: Any) -> str:
    """The text of `value` for markup; a dash for None."""
    return html.escape(NO_VALUE if value is None else str(value))


@cache
def _packed_plotly() -> str:
    """Plotly's script, packed: 1.8 of its 4.8 megabytes."""
    from plotly.offline import get_plotlyjs  # imported here because it reads five megabytes

    return _pack(get_plotlyjs())


def _pack(text: str) -> str:
    """`text` as gzip in base 85, which the page's script unpacks.

    "." stands for "<", so that no part of the packed text can end the script element that holds it.
    """
    return base64.b85encode(gzip.compress(text.encode("utf-8"), mtime=0)).decode("ascii").replace("<", ".")


def _resource(name: str) -> str:
    return resources.files("undergrowth.report").joinpath(name).read_text(encoding="utf-8")
