"""`undergrowth datasets`: the data sets, and how to get each."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from undergrowth.cli.output import AsJson, EntryName, console, print_json, print_rows

_JSON_KEYS = (
    "name", "title", "shape", "classes", "train", "test", "megabytes", "licence", "how_to_get", "layout", "fields",
    "embedded", "options", "meanings",
)  # fmt: skip


def datasets(
    name: EntryName = None,
    plot: Annotated[
        str | None, typer.Option(metavar="FILE.html", help="Write a page that plots the samples of each device.")
    ] = None,
    partition: Annotated[str, typer.Option(metavar="RULE", help="Partition to plot.")] = "dirichlet:0.1",
    clients: Annotated[int | None, typer.Option(metavar="N", help="Number of devices to plot. (Default: 20.)")] = None,
    path: Annotated[str | None, typer.Option(metavar="DIR", help="Folder or file of the data set.")] = None,
    seed: Annotated[int, typer.Option(metavar="N", help="Seed of the partition.")] = 0,
    json: AsJson = False,
) -> None:
    """List the data sets. With NAME: shape, classes, size, licence, how to get it, and an example.

    Examples:

      undergrowth datasets cifar10

      undergrowth datasets digits --plot partition.html --partition classes:2 --clients 30
    """
    from undergrowth.core import InputError
    from undergrowth.data import describe, names
    from undergrowth.report.partition import write_partition_page
    from undergrowth.report.tables import count

    if name is None and plot is not None:
        raise InputError("--plot needs the name of a data set, such as digits")
    if name is not None:
        entry = describe(name)
        if plot is not None:
            given = {"name": name, "partition": partition, "clients": clients, "path": path}
            section = {key: value for key, value in given.items() if value is not None}
            typer.echo(f"wrote the plot to '{write_partition_page(section, seed, plot)}'", err=True)
        _print_entry(entry, json)
        return
    entries = [describe(each) for each in names()]
    rows = [
        (
            each.name, each.title, _shape(each.shape), count(each.classes if each.task == "classification" else None),
            count(each.train), count(each.test),
        )
        for each in entries
    ]  # fmt: skip
    columns = ("data set", "description", "input", "classes", "train", "test")
    print_rows([_json_entry(entry) for entry in entries], json, columns, rows, right=(3, 4, 5))


def _print_entry(entry: Any, json: bool) -> None:
    from undergrowth.report.tables import count, facts

    example = f"undergrowth run --data {entry.name}"
    if not entry.embedded:
        example += f" -s data.path={_example_path(entry)}"
    if json:
        print_json({**_json_entry(entry), "example": example})
        return
    augment = f"{', '.join(_augmentations(entry))}; several joined by +, such as data.augment=crop+flip"
    size = "depends on your files" if entry.megabytes is None else f"{entry.megabytes:g} MB in memory"
    options = "\n".join(f"{key}={default}: {entry.meanings[key]}" for key, default in entry.options.items())
    rows = [
        ("task", entry.task),
        ("input", _shape(entry.shape)),
        ("classes" if entry.task == "classification" else "outputs", count(entry.classes)),
        ("train", count(entry.train)), ("test", count(entry.test)), ("size", size), ("licence", entry.licence),
        ("how to get it", entry.how_to_get),
        ("layout", entry.layout), ("natural groups", ", ".join(entry.fields) or "none"), ("options", options),
        *([("augment", augment)] if entry.may_hold_images else []),
        ("example", example), ("in Python", f"undergrowth.data.{entry.example}"),
    ]  # fmt: skip
    screen = console()
    screen.print(f"{entry.name}: {entry.title}\n")
    screen.print(facts(rows))


def _example_path(entry: Any) -> str:
    """The path of the entry's example in Python: the second text in quotes."""
    return str(entry.example).split('"')[3]


def _json_entry(entry: Any) -> dict[str, Any]:
    return {**{key: getattr(entry, key) for key in _JSON_KEYS}, "task": entry.task, "augment": _augmentations(entry)}


def _augmentations(entry: Any) -> list[str]:
    """What `data.augment` can be for this data set."""
    from undergrowth.learning.augmentation import AUGMENTATIONS, NONE

    names = AUGMENTATIONS if entry.may_hold_images else [NONE]
    return [AUGMENTATIONS[name].usage(name) for name in names]


def _shape(shape: tuple[int, ...] | None) -> str | None:
    return None if shape is None else "×".join(map(str, shape))
