"""`undergrowth topology`: draws a tree of servers and devices."""

from __future__ import annotations

from typing import Annotated

import typer

from undergrowth.cli.output import AsJson, console, print_json


def topology(
    name: Annotated[str, typer.Argument(metavar="FILE|TEXT", help="A topology file, star, or tree:4x5.")],
    svg: Annotated[str | None, typer.Option("-o", "--svg", metavar="FILE.svg", help="Write an image.")] = None,
    clients: Annotated[int | None, typer.Option(metavar="N", help="Number of devices.")] = None,
    data: Annotated[
        str | None, typer.Option(metavar="NAME", help="Data set, for files that group devices by a field.")
    ] = None,
    partition: Annotated[str | None, typer.Option(metavar="RULE", help="Partition of the data set.")] = None,
    path: Annotated[str | None, typer.Option(metavar="DIR", help="Folder or file of the data set.")] = None,
    seed: Annotated[int, typer.Option(metavar="N", help="Seed of the partition.")] = 0,
    json: AsJson = False,
) -> None:
    """Draw a topology: its servers, their settings, and the devices below them.

    Examples:

      undergrowth topology tree:4x5

      undergrowth topology regions.yaml --clients 40 -o regions.svg

      undergrowth topology languages.yaml --data speech-commands --path ~/data/speech --partition natural
    """
    from undergrowth.runs.atomic_files import check_target, replace_file
    from undergrowth.runs.topologies import preview_topology
    from undergrowth.topology import draw_svg, draw_text
    from undergrowth.topology.drawing import summary

    section = {"name": data, "partition": partition, "clients": clients, "path": path}
    found = preview_topology(name, {key: value for key, value in section.items() if value is not None}, seed)
    if svg is not None:
        replace_file(check_target(svg, "topology.svg"), draw_svg(found).encode("utf-8"))
        typer.echo(f"wrote the drawing to '{svg}'", err=True)
    if json:
        settings = {node: found.of(node).given for node in found.children}
        print_json({"topology": name, "children": found.children, "settings": settings})
        return
    console().print(draw_text(found))
    console().print(summary(found))
