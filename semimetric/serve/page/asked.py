"""What a request of a browser says, or why it cannot be understood."""

from __future__ import annotations

import json
from typing import Any

from starlette.exceptions import HTTPException
from starlette.requests import Request

from semimetric.core.errors import InputError
from semimetric.serve.book import login_name
from semimetric.serve.page.guard import is_loopback

LARGEST_REQUEST = 8 << 20
"""Bytes of a request that is no picture: a selection of a million examples."""


async def body_of(request: Request, most: int) -> bytes:
    """The body of a request, as long as it is not too large."""
    parts, size = [], 0
    async for part in request.stream():
        size += len(part)
        if size > most:
            raise HTTPException(413, f"more than {most >> 20} MiB. Send less.")
        parts.append(part)
    return b"".join(parts)


async def json_of(request: Request) -> dict[str, Any]:
    """The object that a request holds."""
    try:
        value = json.loads(await body_of(request, LARGEST_REQUEST))
    except (ValueError, RecursionError) as error:
        raise InputError(f"the request is no JSON: {error}.") from error
    if not isinstance(value, dict):
        raise InputError("the request must be a JSON object.")
    return value


def who_labels(request: Request, given: Any) -> str:
    """Who labels: the name given, else the login name, or the address of another machine."""
    if not isinstance(given, str):
        raise InputError(f"who must be text, got {given!r}.")
    address = request.client.host if request.client else ""
    if given.strip() or not is_loopback(address):
        return given.strip() or f"someone at {address or 'an unknown address'}"
    return login_name()


def count_of(request: Request, usual: int) -> int:
    """How many entries a request asks for."""
    text = request.query_params.get("n", str(usual))
    if not text.isdecimal() or not 1 <= int(text) <= 1000:
        raise InputError(f"n must be a whole number from 1 to 1000, got {text!r}.")
    return int(text)
