"""Who may use the page: browsers that were given the token, and never other sites."""

from __future__ import annotations

import hmac
import ipaddress
from hashlib import sha256
from urllib.parse import SplitResult, urlsplit

from starlette.datastructures import Headers
from starlette.requests import Request
from starlette.responses import PlainTextResponse, RedirectResponse, Response
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


def is_loopback(host: str) -> bool:
    """Whether an address can be reached from this machine alone."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return False


class Guard:
    """Middleware that refuses foreign hosts, foreign origins and wrong tokens, and sets the headers.

    Parameters
    ----------
    app : the page
    host : address that the server listens on
    token : what every browser must know; empty lets all in
    """

    def __init__(self, app: ASGIApp, host: str, token: str) -> None:
        self._app, self._host, self._token = app, host, token
        self._cookie = f"semimetric-{sha256(token.encode()).hexdigest()[:8]}"  # pages on other ports have others

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request, or let the page answer it."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        refused = self._refusal(Request(scope))
        answer = self._app if refused is None else refused

        async def with_headers(message: dict[str, object]) -> None:
            if message["type"] == "http.response.start":
                raw = [(name.lower().encode(), value.encode()) for name, value in HEADERS.items()]
                message["headers"] = [*message.get("headers", []), *raw]  # type: ignore[misc]
            await send(message)

        await answer(scope, receive, with_headers)  # type: ignore[arg-type]

    def _refusal(self, request: Request) -> Response | None:
        """Why a request is not answered; None if it is."""
        host = _parts(f"//{request.headers.get('host', '')}").hostname or ""
        if is_loopback(self._host) and not is_loopback(host):
            return PlainTextResponse("The page answers under the address of this machine alone.", 403)
        if not _same_origin(request.headers):
            return PlainTextResponse("Another site asked for this. Open the page itself.", 403)
        if not self._token or self._knows(request.cookies.get(self._cookie, "")):
            return None
        if request.method == "GET" and request.url.path == "/" and self._knows(request.query_params.get("token", "")):
            answer = RedirectResponse("/", 303)
            answer.set_cookie(self._cookie, self._token, httponly=True, samesite="strict")
            return answer
        return PlainTextResponse("The token is missing or wrong. Open the address that serve printed.", 403)

    def _knows(self, given: str) -> bool:
        return hmac.compare_digest(given.encode(), self._token.encode())


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
