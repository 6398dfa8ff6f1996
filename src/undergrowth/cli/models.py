"""`undergrowth models`: the model zoo."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from undergrowth.cli.output import AsJson, EntryName, console, print_json, print_rows


def models(name: EntryName = None, json: AsJson = False) -> None:
    """List the models. With NAME: split levels, options, number of parameters, and an example.

    Capital letters in a name stand for numbers: wrn-D-K is written as wrn-16-1.

    Example: undergrowth models wrn-40-1
    """
    from undergrowth.models import describe, names
    from undergrowth.report.tables import count, facts

    if name is None:
        entries = [describe(each) for each in names()]
        rows = [
            (each.name, each.title, count(each.parameters), _input(each), ", ".join(each.levels)) for each in entries
        ]
        rows.append(("hf:NAME", "a text or vision model of transformers", "", "", "embeddings, low, mid, up, head"))
        columns = ("model", "description", "parameters", "for", "split levels")
        print_rows([asdict(entry) for entry in entries], json, columns, rows, right=(2,))
        return
    entry = describe(name)
    if json:
        print_json(asdict(entry))
        return
    options = "\n".join(f"{key}={value}: {entry.meanings[key]}" for key, value in entry.options.items())
    details = [
        ("parameters", f"{count(entry.parameters)} for {_input(entry)}"),
        ("split levels", ", ".join(f"{level} (before {stage})" for level, stage in entry.levels.items())),
        ("other levels", "levels: {LEVEL: SUBMODULE} replaces them; the features at a level are the submodule's input"),
        ("normalisation", f"norm: {', '.join(entry.norms)} (the first is the default)"),
        ("initial weights", f"init: {', '.join(entry.inits)} (the first is the default)"),
        ("options", options or "none"),
        ("weights", "weights: FILE (.safetensors or .pt) replaces them, with skip_head: true all but the head's"),
        ("projection", "projection: SIZE puts MOON's projection head, two linear layers, before the last layer"),
        ("image size", "image_size: PIXELS resizes images at the input of the model"),
        ("frozen part", "freeze: LEVEL trains and sends only the part above that level"),
        ("statistics", "statistics: frozen trains BatchNorm with the running statistics of the weights"),
        ("adapters", "lora: {rank: 8} freezes all but the head and trains low-rank adapters"),
        ("source", entry.source),
        ("example", f"undergrowth run --model {_example_name(entry)}"),
        ("in a file", entry.example),
    ]
    screen = console()
    screen.print(f"{entry.name}: {entry.title}\n")
    screen.print(facts(details))


def _input(entry: Any) -> str:
    return f"{'×'.join(map(str, entry.shape))}, {entry.classes} classes"


def _example_name(entry: Any) -> str:
    """The name with numbers instead of capital letters, from the entry's example file."""
    return str(entry.example).split("name: ", 1)[1].split(",")[0].rstrip("}")
