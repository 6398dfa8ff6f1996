"""Serves a folder of runs until Ctrl-C."""

from __future__ import annotations

import errno
import socket
from collections.abc import Callable
from contextlib import suppress
from os import PathLike
from pathlib import Path

from undergrowth.core import InputError

_SECONDS_TO_END = 2  # for answers that are being sent when Ctrl-C is pressed
_MAX_REQUEST_BYTES = 1 << 20  # the address of a comparison names all its runs


def serve_runs(
    folder: str | PathLike[str] = "runs",
    *,
    host: str = "127.0.0.1",
    port: int = 8765,
    on_start: Callable[[str], None] = print,
) -> None:
    """Serve the pages of all runs in `folder` until Ctrl-C.

    `host` is the address to listen on; with another one than 127.0.0.1, other machines can read the runs. `port` 0 is
    any free port. `on_start` gets the address of the first page as soon as it can be opened.
    """
    try:
        import uvicorn

        from undergrowth.serve.site import build_app
    except ImportError as error:
        raise InputError(f"serve needs the extra ({error}): pip install 'undergrowth[serve]'") from error
    path = Path(folder).expanduser()
    if not path.is_dir():
        raise InputError(f"folder '{folder}' does not exist; name the folder that runs are written to")
    with _listen(host, port) as listener:
        config = uvicorn.Config(
            build_app(path, host), http="h11", ws="none", lifespan="off", log_level="warning", access_log=False,
            timeout_graceful_shutdown=_SECONDS_TO_END, h11_max_incomplete_event_size=_MAX_REQUEST_BYTES,
        )  # fmt: skip
        on_start(_address(listener, host))
        with suppress(KeyboardInterrupt):
            uvicorn.Server(config).run(sockets=[listener])


def _listen(host: str, port: int) -> socket.socket:
    if not 0 <= port <= 65535:
        raise InputError(f"port {port} must be from 0 (any free port) to 65535")
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        return socket.create_server((host, port), family=family)
    except OSError as error:
        if error.errno in (errno.EADDRINUSE, errno.EACCES):
            reason = "another program uses it" if error.errno == errno.EADDRINUSE else "it needs more rights"
            raise InputError(
                f"port {port} cannot be used: {reason}; name another one, or 0 for any free port"
            ) from None
        raise InputError(f"host '{host}' is not an address of this machine; 127.0.0.1 is one") from None


def _address(listener: socket.socket, host: str) -> str:
    """What a browser on this machine opens."""
    name = {"0.0.0.0": "127.0.0.1", "": "127.0.0.1", "::": "::1"}.get(host, host)
    return f"http://{f'[{name}]' if ':' in name else name}:{listener.getsockname()[1]}/"
