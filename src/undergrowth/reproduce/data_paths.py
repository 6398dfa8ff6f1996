"""The files of data sets: given with `--data-path`, or in the default folder."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from undergrowth.core import InputError, suggest
from undergrowth.data import describe, names
from undergrowth.data.catalogue import default_path
from undergrowth.reproduce.table import Raw
from undergrowth.reproduce.table_cells import data_sections, data_source


class DataPaths:
    """Finds the files of data sets. `paths` maps the name of a data set to its folder or file."""

    def __init__(self, paths: Mapping[str, str]) -> None:
        for source, path in paths.items():
            if not Path(path).expanduser().exists():
                raise InputError(f"--data-path {source}={path}: there is no such folder or file")
        self.paths = paths

    def fill_in(self, raw: Raw) -> Raw:
        """`raw` with the paths of this machine in its data sections."""
        filled = dict(raw)
        for name, section in data_sections(raw).items():
            filled[name] = {key: value for key, value in section.items() if key != "path"}
            if data_source(section) in self.paths:
                filled[name]["path"] = self.paths[data_source(section)]
        return filled

    def missing(self, raw: Raw) -> set[str]:
        """The data sets that `raw` needs and that are not on this machine."""
        needed = {data_source(section): section["name"] for section in data_sections(raw).values()}
        return {source for source, name in needed.items() if not self._is_available(source, name)}

    def _is_available(self, source: str, name: str) -> bool:
        if source in self.paths or describe(name).embedded:
            return True
        return source == name and default_path(name).expanduser().exists()


def parse_data_paths(texts: list[str], known: set[str]) -> dict[str, str]:
    """Parse the `NAME=FOLDER` texts of `--data-path`. `known` holds the names that a table uses."""
    paths = {}
    for text in texts:
        source, equals, path = text.partition("=")
        if not equals or not path:
            raise InputError(f"--data-path '{text}' must be NAME=FOLDER, such as cifar10=~/data/cifar10")
        if source not in known and source not in names():
            raise InputError(f"--data-path '{text}': '{source}' is not known; {suggest(source, known)}")
        paths[source] = path
    return paths
