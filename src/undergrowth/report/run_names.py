"""The runs that a user names: by ids, starts of ids, `last`, paths and patterns."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from fnmatch import fnmatchcase
from pathlib import Path

from undergrowth.core import InputError
from undergrowth.runs import Store
from undergrowth.runs.store import FILE


def find_runs(names: str | Sequence[str], out: str | Path = "runs") -> tuple[Path, list[str]]:
    """The folder of the runs that `names` identify, and their ids without duplicates.

    A name is the id of a run in the folder `out`, the beginning of one, `last`, or a pattern of ids such as `*fedavg*`.
    A path such as `runs/20260102-101500-fedavg-1f3a` or `runs/*` names its folder itself, and the path of a folder of
    runs stands for all of them. All runs must be in one folder.
    """
    names = as_names("runs", names)
    found: dict[Path, list[str]] = {}
    for name in names:
        folder, pattern = _folder_and_pattern(name, Path(out))
        if (folder / pattern).is_file():
            continue  # the store or a page, which a pattern that the shell expands matches as well
        found.setdefault(folder, []).extend(_matching(folder, pattern))
    if not found:
        raise InputError(f"{', '.join(names) or 'an empty list'} names no run; `undergrowth list` shows them")
    if len(found) > 1:
        folders = " and ".join(f"'{folder}'" for folder in found)
        raise InputError(f"the runs are in {folders}; name runs of one folder")
    [(folder, runs)] = found.items()
    return folder, list(dict.fromkeys(runs))


def as_names(argument: str, given: str | Iterable[str]) -> list[str]:
    """The names that a user gave: one as a text, or several."""
    names = list(given) if isinstance(given, Iterable) and not isinstance(given, str) else [given]
    if not all(isinstance(name, str) for name in names):
        raise InputError(f"{argument} {given!r} must be a name or a list of names")
    return names


def _folder_and_pattern(name: str, out: Path) -> tuple[Path, str]:
    if "/" not in name and not (Path(name) / FILE).exists():
        return out, name
    path = Path(name).expanduser()
    return (path, "*") if (path / FILE).exists() else (path.parent, path.name)


def _matching(folder: Path, pattern: str) -> list[str]:
    with Store(folder) as store:
        if not any(letter in pattern for letter in "*?["):
            return [store.find(pattern)]
        runs = [run for run in store.ids() if fnmatchcase(run, pattern)]
    if not runs:
        raise InputError(f"pattern '{pattern}' matches no run in '{folder}'; `undergrowth list` shows them")
    return runs
