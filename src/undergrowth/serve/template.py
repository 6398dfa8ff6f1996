"""The frame of all served pages, and the files that they load."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from importlib import resources

from undergrowth.report.html import escape

_FILES = {
    "page.css": "undergrowth.report", "page.js": "undergrowth.report", "serve.css": "undergrowth.serve",
    "list.js": "undergrowth.serve", "live.js": "undergrowth.serve",
}  # fmt: skip
PLOTLY = "plotly.js"
ASSETS = (PLOTLY, *_FILES)


@cache
def asset(name: str) -> str:
    """The text of one of `ASSETS`."""
    if name == PLOTLY:
        from plotly.offline import get_plotlyjs  # imported here because it reads five megabytes

        return str(get_plotlyjs())
    return resources.files(_FILES[name]).joinpath(name).read_text(encoding="utf-8")


def render(title: str, main: str, scripts: Sequence[str] = (), *, attributes: str = "", data: str = "") -> str:
    """A page with the markup `main`. `scripts` are names of `ASSETS`; `data` is markup that they read."""
    loaded = "".join(f'<script src="/assets/{name}"></script>\n' for name in scripts)
    frame = resources.files("undergrowth.serve").joinpath("frame.html").read_text(encoding="utf-8")
    return frame.format(title=escape(title), main=main, scripts=loaded, attributes=attributes, data=data)
