"""Tests of undergrowth.runs.atomic_files."""

from __future__ import annotations

import os
from pathlib import Path

from undergrowth.runs.atomic_files import check_target, replace_file


def test_a_link_to_a_file_stays_a_link(tmp_path: Path) -> None:
    folder = tmp_path / "elsewhere"
    folder.mkdir()
    (tmp_path / "page.html").symlink_to(folder / "page.html")
    for content in (b"first", b"second"):  # the file that is linked to is not there, then it is
        replace_file(check_target(tmp_path / "page.html"), content)
        assert (tmp_path / "page.html").is_symlink()
        assert (folder / "page.html").read_bytes() == content
    assert os.listdir(folder) == ["page.html"]
