"""`undergrowth serve`: the pages of all runs in a browser."""

from __future__ import annotations

import os
import sys
import threading
import webbrowser
from typing import Annotated

import typer

_LOCAL = ("127.0.0.1", "localhost", "::1")


def serve(
    folder: Annotated[str, typer.Argument(metavar="DIR", help="Folder of the runs.")] = "runs",
    port: Annotated[int, typer.Option(min=0, max=65535, help="Port to listen on; 0: any free one.")] = 8765,
    host: Annotated[
        str, typer.Option(help="Address to listen on; 0.0.0.0 lets other machines read the runs.")
    ] = "127.0.0.1",
    open_page: Annotated[
        bool | None, typer.Option("--open/--no-open", help="Open the list in a browser. Default: on a desktop.")
    ] = None,
) -> None:
    """Serve the pages of all runs of a folder: a list, a page per run that grows while it runs, and comparisons.

    Only this machine can read them, unless --host says otherwise. Ctrl-C ends it.

    Example: undergrowth serve runs --port 0
    """
    from undergrowth.serve import serve_runs

    def show(address: str) -> None:
        typer.echo(f"{address} shows the runs in '{folder}'; Ctrl-C ends it")
        if host not in _LOCAL:
            typer.echo(f"note: host {host}: other machines can read the runs, too; there is no password", err=True)
        if _has_desktop() if open_page is None else open_page:
            _open_browser(address)

    serve_runs(folder, host=host, port=port, on_start=show)


def _has_desktop() -> bool:
    """Whether the command was typed where a browser can open a window."""
    screen = sys.platform in ("darwin", "win32") or "DISPLAY" in os.environ or "WAYLAND_DISPLAY" in os.environ
    return sys.stdout.isatty() and screen


def _open_browser(address: str) -> None:
    """Opens a browser from a thread: it may wait for the first answer, which comes after this function returns."""
    threading.Thread(target=webbrowser.open, args=(address,), daemon=True).start()
