"""The summaries of the reproduced tables agree with the pages of the tables."""

from __future__ import annotations

import re
from collections import Counter
from pathlib import Path

from tests.test_docs import LINK, ROOT

VERDICT = re.compile(r"^- .*?: (held|open|no|equal), (?:\d+ of \d+ seeds?|nothing to compare)", re.M)
SUMMARY = ROOT / "docs/results/README.md"
PAGES = sorted(path for path in SUMMARY.parent.glob("*.md") if path != SUMMARY)
SMALL = [path for path in PAGES if "-full" not in path.stem]


def count(pages: list[Path]) -> list[int]:
    """Pages, and orderings that are held, open, no and equal."""
    found = Counter(verdict for path in pages for verdict in VERDICT.findall(path.read_text(encoding="utf-8")))
    return [len(pages), *(found[verdict] for verdict in ("held", "open", "no", "equal"))]


def numbers(row: str) -> list[int]:
    return [int(cell.strip(" *") or 0) for cell in row.split("|")[2:7]]


def test_the_summary_counts_the_verdicts_of_the_pages() -> None:
    rows = {
        line.split("|")[1].strip(): line for line in SUMMARY.read_text(encoding="utf-8").splitlines() if "|" in line
    }
    trees = [path for path in SMALL if path.stem.startswith("tree-")]
    claims = count([path for path in SMALL if path not in trees])
    assert numbers(rows["together"]) == claims
    (expected,) = (row for name, row in rows.items() if name.startswith("Iacob, Cambridge report"))
    assert numbers(expected) == count(trees)
    sources = [
        numbers(row) for name, row in rows.items() if re.match(r"(Shi|Bernier|Desai|Iacob[, ](?!.*report))", name)
    ]
    assert [sum(column) for column in zip(*sources, strict=True)] == claims
    assert f"| {' | '.join(map(str, claims[1:]))} |" in (ROOT / "README.md").read_text(encoding="utf-8")


def test_the_summary_links_to_every_page() -> None:
    links = {one for one, _ in LINK.findall(SUMMARY.read_text(encoding="utf-8"))}
    assert [path.name for path in PAGES if path.name not in links] == []
