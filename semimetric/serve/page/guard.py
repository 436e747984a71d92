"""Who may use the page: browsers that know its key, and never other sites.

The key is the first part of every address, so that a browser keeps it with this page only. A cookie would go to every
port of the machine, to the servers of other users too.
"""

from __future__ import annotations

import hmac
import ipaddress
from urllib.parse import SplitResult, urlsplit

from starlette.datastructures import Headers
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.types import ASGIApp, Receive, Scope, Send

POLICY = (
    "default-src 'none'; script-src 'self' 'unsafe-eval'; style-src 'self'; img-src 'self' blob: data:; "
    "connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
"""Nothing from elsewhere. The map's drawing commands are compiled in the browser, which needs 'unsafe-eval'."""

HEADERS = {
    "Content-Security-Policy": POLICY,
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cross-Origin-Opener-Policy": "same-origin",
}

OWN_HEADER, OWN_VALUE = "X-Semimetric", "page"
"""Sent by the page's script with every change. Forms of other sites cannot set a header."""


def is_loopback(host: str) -> bool:
    """Whether an address can be reached from this machine alone."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return False


class Guard:
    """Middleware that refuses foreign hosts, foreign origins and wrong keys, and sets the headers.

    Parameters
    ----------
    app : the page
    host : address that the server listens on
    key : first part of every address
    """

    def __init__(self, app: ASGIApp, host: str, key: str) -> None:
        self._app, self._host, self._key = app, host, key

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request, or let the page answer it."""
        if scope["type"] != "http":
            if scope["type"] == "lifespan":
                await self._app(scope, receive, send)
            return
        refused = self._refusal(Request(scope))
        answer = self._app if refused is None else refused

        async def with_headers(message: dict[str, object]) -> None:
            if message["type"] == "http.response.start":
                raw = [(name.lower().encode(), value.encode()) for name, value in HEADERS.items()]
                message["headers"] = [*message.get("headers", []), *raw]  # type: ignore[misc]
            await send(message)

        await answer({**scope, "root_path": f"/{self._key}"}, receive, with_headers)  # type: ignore[arg-type]

    def _refusal(self, request: Request) -> Response | None:
        """Why a request is not answered; None if it is."""
        host = _parts(f"//{request.headers.get('host', '')}").hostname or ""
        if is_loopback(self._host) and not is_loopback(host):
            return PlainTextResponse("The page answers under the address of this machine alone.", 403)
        if not _same_origin(request.headers):
            return PlainTextResponse("Another site asked for this. Open the page itself.", 403)
        given = request.scope["path"].removeprefix("/").partition("/")[0]
        if not hmac.compare_digest(given.encode(), self._key.encode()):
            return PlainTextResponse("Open the address that serve printed.", 404)
        if request.method not in ("GET", "HEAD") and request.headers.get(OWN_HEADER) != OWN_VALUE:
            return PlainTextResponse("Something other than the page asked for this. Open the page itself.", 403)
        return None


def _same_origin(headers: Headers) -> bool:
    """Whether a request comes from the page itself, or from no page."""
    if headers.get("sec-fetch-site", "none") not in ("none", "same-origin"):
        return False
    origin = headers.get("origin")
    return origin is None or _parts(origin).netloc == headers.get("host")


def _parts(address: str) -> SplitResult:
    """The parts of an address; all are empty if it is none, such as "http://["."""
    try:
        return urlsplit(address)
    except ValueError:
        return urlsplit("")
