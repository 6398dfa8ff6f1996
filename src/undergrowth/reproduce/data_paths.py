"""The files of data sets and pretrained weights: given with `--data-path`, or in the default folder of a data set."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from undergrowth.core import InputError, suggest
from undergrowth.data import describe, names
from undergrowth.data.catalogue import default_path
from undergrowth.reproduce.table import Raw
from undergrowth.reproduce.table_cells import data_sections, data_source
from undergrowth.reproduce.weights import HOW_TO_GET, weights_source, with_weights


class DataPaths:
    """Finds files. `paths` maps the name of a data set or of pretrained weights to its folder or file."""

    def __init__(self, paths: Mapping[str, str]) -> None:
        for source, path in paths.items():
            if not Path(path).expanduser().exists():
                raise InputError(f"--data-path {source}={path}: there is no such folder or file")
        self.paths = paths

    def fill_in(self, raw: Raw) -> Raw:
        """`raw` with the paths of this machine for its data sets and weights."""
        filled = dict(raw)
        for name, section in data_sections(raw).items():
            filled[name] = {key: value for key, value in section.items() if key != "path"}
            if data_source(section) in self.paths:
                filled[name]["path"] = self.paths[data_source(section)]
        source = weights_source(raw)
        return with_weights(filled, self.paths[source]) if source is not None and source in self.paths else filled

    def missing(self, raw: Raw) -> set[str]:
        """The data sets and weights that `raw` needs and that are not on this machine."""
        needed = {data_source(section): section["name"] for section in data_sections(raw).values()}
        missing = {source for source, name in needed.items() if not self._is_available(source, name)}
        weights = weights_source(raw)
        return missing if weights is None or weights in self.paths else missing | {weights}

    def _is_available(self, source: str, name: str) -> bool:
        if source in self.paths or describe(name).embedded:
            return True
        return source == name and default_path(name).expanduser().exists()


def how_to_get(source: str) -> str:
    """What to put where if the files of a data set or of pretrained weights are missing."""
    if source in HOW_TO_GET:
        return f"give --data-path {source}={HOW_TO_GET[source]}"
    try:
        how = describe(source).how_to_get
    except InputError:
        how = "write it as an .npz file"
    return f"give --data-path {source}=FOLDER; {how}"


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
