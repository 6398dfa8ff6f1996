"""One self-contained page: sections of text, tables and figures, with the script that draws them inside."""

from __future__ import annotations

import html
import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from importlib import resources
from typing import Any

from undergrowth.report.figures import Figure
from undergrowth.report.tables import NOTHING

_PAGE = """<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta http-equiv="Content-Security-Policy" content="default-src 'none'; script-src 'unsafe-inline'; \
style-src 'unsafe-inline'; img-src data: blob:">
<title>{title}</title>
<style>{style}</style>
</head>
<body>
<main>
{body}
<noscript><p>The figures need JavaScript; it is in this page and asks no network.</p></noscript>
<footer>Made by Undergrowth. This page is complete in itself: it opens without a network.</footer>
</main>
<script type="application/json" id="figures">{figures}</script>
<script>{plotly}</script>
<script>{script}</script>
</body>
</html>
"""


@dataclass
class Page:
    """Collects what is to be shown, from top to bottom."""

    title: str
    _parts: list[str] = field(default_factory=list)
    _figures: dict[str, Figure] = field(default_factory=dict)

    def add(self, markup: str) -> None:
        self._parts.append(markup)

    def section(self, title: str, text: str = "") -> None:
        quiet = f'\n<p class="quiet">{escape(text)}</p>' if text else ""
        self.add(f"<h2>{escape(title)}</h2>{quiet}")

    def text(self, sentence: str) -> None:
        self.add(f"<p>{escape(sentence)}</p>")

    def figures(self, drawn: Iterable[Figure | None]) -> bool:
        """Side by side where there is room. Says whether there was anything to draw."""
        boxes = []
        for figure in drawn:
            if figure is None:
                continue
            name = f"figure-{len(self._figures) + 1}"
            self._figures[name] = figure
            boxes.append(f'<div class="figure"><div id="{name}"></div></div>')
        if boxes:
            self.add(f'<div class="figures">{"".join(boxes)}</div>')
        return bool(boxes)

    def table(
        self, columns: Sequence[str], rows: Iterable[Sequence[Any]], numbers: bool = True, marked: Iterable[int] = ()
    ) -> None:
        """With `numbers`, all columns but the first are aligned to the right; rows in `marked` stand out."""
        self.add(table(columns, rows, numbers, marked))

    def render(self) -> str:
        from plotly.offline import get_plotlyjs  # five megabytes, and only needed here

        # A closing tag inside a text must not end the script that holds it.
        figures = json.dumps(self._figures, allow_nan=False).replace("<", "\\u003c")
        return _PAGE.format(
            title=escape(self.title),
            style=_resource("page.css"),
            body="\n".join(self._parts),
            figures=figures,
            plotly=get_plotlyjs(),
            script=_resource("page.js"),
        )


def table(
    columns: Sequence[str], rows: Iterable[Sequence[Any]], numbers: bool = True, marked: Iterable[int] = ()
) -> str:
    kinds = ["" if place == 0 or not numbers else ' class="number"' for place in range(len(columns))]
    stand_out, mark = set(marked), ' class="marked"'
    head = "".join(f"<th{kind}>{escape(column)}</th>" for kind, column in zip(kinds, columns))
    body = []
    for place, row in enumerate(rows):
        cells = "".join(f"<td{kind}>{escape(cell)}</td>" for kind, cell in zip(kinds, row))
        body.append(f"<tr{mark}>{cells}</tr>" if place in stand_out else f"<tr>{cells}</tr>")
    return f'<div class="scroll"><table><thead><tr>{head}</tr></thead><tbody>{"".join(body)}</tbody></table></div>'


def escape(value: Any) -> str:
    return html.escape(NOTHING if value is None else str(value))


def _resource(name: str) -> str:
    return resources.files("undergrowth.report").joinpath(name).read_text(encoding="utf-8")
