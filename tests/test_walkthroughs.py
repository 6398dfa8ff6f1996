"""The lines that the walk-throughs count are those of their files and of the programs for Flower."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

from tests.test_docs import ROOT, blocks

PAGES = {"compare": "flower_methods", "fleet": "flower_fleet", "own-method": "flower_scaffold"}


def count_python(text: str) -> int:
    """Lines without blank lines, comments and docstrings."""
    skipped: set[int] = set()
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef) and ast.get_docstring(node) is not None:
            skipped |= set(range(node.body[0].lineno, (node.body[0].end_lineno or 0) + 1))
    lines = [line.strip() for number, line in enumerate(text.splitlines(), 1) if number not in skipped]
    return sum(bool(line) and not line.startswith("#") for line in lines)


def count(language: str, text: str) -> int:
    return count_python(text) if language == "python" else sum(bool(line.strip()) for line in text.splitlines())


@pytest.mark.parametrize("page", PAGES)
def test_lines_are_counted_right(page: str) -> None:
    path = ROOT / "docs/walkthroughs" / f"{page}.md"
    ours = sum(count(block.language, block.text) for block in blocks(path) if block.file)
    flower = count_python((ROOT / "benchmarks/walkthroughs" / f"{PAGES[page]}.py").read_text(encoding="utf-8"))
    text = path.read_text(encoding="utf-8")
    (row,) = re.findall(r"^\| lines \| (\d+)\D.*\| (\d+)\D", text, re.M)
    assert tuple(map(int, row)) == (ours, flower)
    assert f"{flower} lines and one command" in text
    (row,) = re.findall(rf"^\|.*\({page}\.md\) \| (\d+) lines.*\| (\d+) lines of Python", index(), re.M)
    assert tuple(map(int, row)) == (ours, flower)


def test_the_comparison_is_short() -> None:
    (file,) = [block for block in blocks(ROOT / "docs/walkthroughs/compare.md") if block.file]
    assert len(file.text.splitlines()) <= 12


def index() -> str:
    return Path(ROOT / "docs/walkthroughs/README.md").read_text(encoding="utf-8")
