"""``semimetric serve``: a page in the browser to search, look and label."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from semimetric.cli.console import DataDir, RunFolder, Source, say, showing_progress
from semimetric.core.errors import InputError
from semimetric.core.extras import import_extra


def serve(
    run: RunFolder,
    host: Annotated[
        str, typer.Option(help="Address to listen on; one other than this machine's own lets other machines in.")
    ] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65535, help="Port; 0 takes a free one.")] = 8765,
    data_dir: DataDir = None,
    source: Source = None,
    new_key: Annotated[
        bool, typer.Option("--new-key", help="Make a new address; the one printed before no longer opens the page.")
    ] = False,
) -> None:
    """Open a page on this machine to search, look at and label the examples of a run. The run is not changed."""
    import logging
    import secrets
    import socket

    for package in ("starlette", "uvicorn"):
        import_extra(package, "page", "the page")
    import uvicorn

    from semimetric.core.origin import page_key
    from semimetric.serve.page.desk import Desk
    from semimetric.serve.page.guard import is_loopback
    from semimetric.serve.page.server import build_app

    try:
        listener = socket.create_server((host, port), family=socket.AF_INET6 if ":" in host else socket.AF_INET)
    except OSError as error:
        raise InputError(
            f"--host {host} --port {port} cannot be used: {error.strerror or error}. Try --port 0."
        ) from error
    with listener:
        listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)  # else answers wait 40 ms for a browser
        with showing_progress() as progress:
            progress.stage("drawing the map")
            desk = Desk(run, data_dir=data_dir, source=source)
            _ = desk.map
        kept = page_key(run, new_key)
        key = kept if kept and is_loopback(host) else secrets.token_urlsafe(16)  # a network may have seen the old one
        name = f"[{host}]" if ":" in host else host
        address = f"http://{name}:{listener.getsockname()[1]}/"
        log = desk.book.path.with_suffix(".csv")
        if log.is_file() and not desk.book.path.exists():
            say(f"{log} has labels of an earlier version. Take them in with: semimetric labels {run} --import {log}")
        say(f"{address}{key}/  (Ctrl-C ends; labels are in {desk.book.path})")

        class Server(uvicorn.Server):
            """A server that stops without a word about browsers that still listen."""

            def handle_exit(self, *signal: Any) -> None:
                logging.getLogger("uvicorn.error").setLevel(logging.CRITICAL)
                super().handle_exit(*signal)

        app = build_app(desk, key, host)
        config = uvicorn.Config(app, log_level="warning", timeout_graceful_shutdown=1, server_header=False)
        Server(config).run(sockets=[listener])
