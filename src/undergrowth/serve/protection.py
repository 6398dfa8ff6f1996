"""Keeps other web sites from reading what is served: the check of the Host header, and headers of every answer.

A page of another site can make a browser send requests here, but the browser does not give it the answers, because no
answer has a CORS header. The other site could get around this if its own name led to this machine. So a request must
name this machine: by an IP address, which no site can have as its name, or by a name of this machine.
"""

from __future__ import annotations

import socket
from ipaddress import ip_address
from urllib.parse import urlsplit

from starlette.datastructures import Headers, MutableHeaders
from starlette.responses import PlainTextResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

HEADERS = {
    # Plotly adds its own styles; pages have colours in style attributes.
    "Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'self' 'unsafe-inline'; "
    "connect-src 'self'; img-src 'self' data: blob:; form-action 'self'; base-uri 'none'; frame-ancestors 'none'",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
}


class ProtectionMiddleware:
    """Refuses requests that name another machine, and adds `HEADERS` to all answers.

    `host` is the address or name that the server listens on.
    """

    def __init__(self, app: ASGIApp, host: str) -> None:
        self.app = app
        own = socket.gethostname()
        self.names = {name.lower() for name in ("localhost", host, own, f"{own}.local") if name}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async def send_protected(message: Message) -> None:
            if message["type"] == "http.response.start":
                MutableHeaders(scope=message).update(HEADERS)
            await send(message)

        host = Headers(scope=scope).get("host", "") if scope["type"] == "http" else "localhost"
        if self._is_own(host):
            await self.app(scope, receive, send_protected)
        else:
            sentence = f"'{host}' is not a name of this machine; open the address that `undergrowth serve` printed\n"
            await PlainTextResponse(sentence, status_code=403)(scope, receive, send_protected)

    def _is_own(self, host: str) -> bool:
        name = ""
        try:
            name = urlsplit(f"//{host}").hostname or ""
            ip_address(name)
        except ValueError:  # not an IP address, or not a host at all
            return name in self.names
        return True
