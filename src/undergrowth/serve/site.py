"""The addresses of the site and what they answer.

A browser keeps every answer and asks whether it has changed; the ETag of an answer changes with the runs that it is
about. The functions are called in threads. Each opens the store for reading, which blocks no run that writes to it.
"""

from __future__ import annotations

import hashlib
import secrets
from collections.abc import Callable
from functools import lru_cache
from pathlib import Path
from urllib.parse import urlencode

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import HTMLResponse, Response
from starlette.routing import Route
from starlette.types import ASGIApp

from undergrowth.core import InputError
from undergrowth.report.html import escape
from undergrowth.serve.list_page import list_page, list_rows
from undergrowth.serve.protection import ProtectionMiddleware
from undergrowth.serve.run_pages import live_answer, run_page
from undergrowth.serve.run_state import RunState, read_states, version
from undergrowth.serve.template import ASSETS, asset, render

_MAX_CACHED_PAGES = 32


class Site:
    """The pages of the runs in `folder`."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        # A browser must not keep pages of an earlier server, which may have been of another version.
        self._start = secrets.token_hex(4)
        self._page = lru_cache(_MAX_CACHED_PAGES)(self._build_page)

    def list_page(self, request: Request) -> Response:
        return _answer_text(request, list_page(self.folder), "text/html")

    def rows(self, request: Request) -> Response:
        return _answer_text(request, list_rows(self.folder), "text/html")

    def page(self, request: Request) -> Response:
        states = self._states(request)
        return _answer(request, self._etag(states), lambda: self._page(tuple(states)), "text/html")

    def live(self, request: Request) -> Response:
        states = self._states(request)
        return _answer(request, self._etag(states), lambda: live_answer(self.folder, states), "application/json")

    def asset(self, request: Request) -> Response:
        name = request.path_params["name"]
        if name not in ASSETS:
            raise HTTPException(404, f"there is no file '{name}'")
        kind = "text/css" if name.endswith(".css") else "text/javascript"
        return _answer_text(request, asset(name), kind)

    def _states(self, request: Request) -> list[RunState]:
        """The runs in the path or in the query of an address."""
        names = [request.path_params["run"]] if request.path_params else request.query_params.getlist("run")
        if not names:
            raise HTTPException(404, "no run is ticked; tick two or more in the list")
        try:
            return read_states(self.folder, names)
        except InputError as error:
            raise HTTPException(404, str(error)) from None

    def _etag(self, states: list[RunState]) -> str:
        return f"{self._start}-{version(states)}"

    def _build_page(self, states: tuple[RunState, ...]) -> str:
        live_address = f"/live?{urlencode([('run', state.run) for state in states])}"
        return run_page(self.folder, states, live_address)


def build_app(folder: Path, host: str = "127.0.0.1") -> ASGIApp:
    """The application that serves the runs in `folder` under the name `host`."""
    site = Site(folder)
    routes = [
        Route("/", site.list_page),
        Route("/rows", site.rows),
        Route("/runs/{run}", site.page),
        Route("/compare", site.page),
        Route("/live", site.live),
        Route("/assets/{name}", site.asset),
    ]
    handlers = {HTTPException: _http_error, InputError: _error, Exception: _error}
    return ProtectionMiddleware(Starlette(routes=routes, exception_handlers=handlers), host)


def _answer(request: Request, etag: str, build: Callable[[], str], kind: str) -> Response:
    headers = {"ETag": f'"{etag}"', "Cache-Control": "private, no-cache"}
    if request.headers.get("if-none-match") == headers["ETag"]:
        return Response(status_code=304, headers=headers)
    return Response(build(), media_type=kind, headers=headers)


def _answer_text(request: Request, text: str, kind: str) -> Response:
    return _answer(request, hashlib.sha256(text.encode("utf-8")).hexdigest()[:16], lambda: text, kind)


def _http_error(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    return _error_page(error.detail, error.status_code)


def _error(request: Request, error: Exception) -> Response:
    text = str(error) if isinstance(error, InputError) else f"{type(error).__name__}: {error}"
    return _error_page(text, 500)


def _error_page(sentence: str, status: int) -> Response:
    title = "This page cannot be shown"
    main = f'<nav class="bar"><a href="/">← all runs</a></nav><h1>{title}</h1><p>{escape(sentence)}</p>'
    return HTMLResponse(render(title, main), status_code=status)
