"""The files of the pages of reproduced tables."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from undergrowth.core import InputError
from undergrowth.reproduce.html_page import draw, render_html
from undergrowth.reproduce.markdown import render_page
from undergrowth.reproduce.results import TableResult
from undergrowth.reproduce.svg_plot import render_svg
from undergrowth.runs.atomic_files import check_target


def page_files(target: str | None, tables: Sequence[str]) -> dict[str, Path]:
    """The file of the page of each table; empty without `target`. Creates a folder for several pages."""
    if target is None:
        return {}
    path = Path(target).expanduser()
    if not path.resolve().parent.is_dir():
        raise InputError(f"--output '{target}': there is no folder '{Path(target).parent}'")
    if path.suffix in (".md", ".html"):
        if len(tables) > 1:
            raise InputError(f"--output '{target}' must be a folder for the pages of {len(tables)} tables")
        return {tables[0]: check_target(target)}
    if path.is_file() or (path.suffix and not path.is_dir()):
        raise InputError(f"--output '{target}' must end in .md or .html, or be a folder")
    pages = {table: check_target(path / f"{table}.md") for table in tables}
    path.mkdir(exist_ok=True)
    return pages


def write_page(result: TableResult, command: str, device: str, page: Path) -> None:
    """Write the page; the plots of a figure are images beside its Markdown page."""
    if page.suffix == ".html":
        page.write_text(render_html(result, command, device), encoding="utf-8")
        return
    images = [render_svg(each) for each in draw(result)] if result.table.is_figure else []
    names = [f"{page.stem}{f'-{place}' if place > 1 else ''}.svg" for place in range(1, len(images) + 1)]
    for name, image in zip(names, images, strict=True):
        page.with_name(name).write_text(image, encoding="utf-8")
    page.write_text(render_page(result, command, device, names), encoding="utf-8")
