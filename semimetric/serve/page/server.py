"""The server of the page: one run, any number of browsers."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from importlib.resources import files
from pathlib import Path
from typing import Any

from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Mount, Route
from starlette.staticfiles import StaticFiles

from semimetric.core.errors import InputError, RunError, SemimetricError
from semimetric.serve.embed import table_text
from semimetric.serve.page.again import check_can_learn
from semimetric.serve.page.desk import Desk, compared
from semimetric.serve.page.guard import Guard

LARGEST_UPLOAD = 20 << 20
"""Bytes of an uploaded picture."""

LARGEST_REQUEST = 8 << 20
"""Bytes of any other request: a selection of a million examples."""

POLL = 0.3  # seconds between looks at the log of a run that learns
STATIC = files("semimetric.serve.page") / "static"


class Page:
    """The desk in use, the browsers that listen, and the process that learns, if any."""

    def __init__(self, desk: Desk) -> None:
        self.desk = desk
        self.listeners: set[asyncio.Queue[str]] = set()
        self.learning: asyncio.Task[None] | None = None
        self.process: subprocess.Popen[bytes] | None = None

    def tell(self, kind: str, value: dict[str, Any]) -> None:
        """Send an event to every browser."""
        for queue in self.listeners:
            queue.put_nowait(f"event: {kind}\ndata: {json.dumps(value)}\n\n")

    def tell_labels(self, rows: tuple[int, ...]) -> None:
        """Tell every browser the labels of some examples, and the state of the book."""
        book = self.desk.book
        labels = [book.labels[row] for row in rows]
        self.tell("labels", {"rows": rows, "labels": labels, "facts": self.short_facts()})

    def short_facts(self) -> dict[str, Any]:
        """What changes with a label."""
        book = self.desk.book
        counts = {"labelled": book.labelled, "changes": len(book.changes), "last": book.last}
        return counts | {"classes": self.desk.classes()}

    async def learn(self, out: Path) -> None:
        """Fit again in a process of its own, and go over to the new run once it is whole."""
        before = self.desk
        places = {"data_dir": before.data_dir, "source": before.source}
        request: dict[str, Any] = {"run": str(before.run), "labels": before.book.labels, "out": str(out)}
        request |= {name: None if path is None else str(path) for name, path in places.items()}
        with tempfile.TemporaryDirectory() as folder:
            asked, said = Path(folder) / "request.json", Path(folder) / "said.txt"
            asked.write_text(json.dumps(request), encoding="utf-8")
            with said.open("wb") as errors:
                command = [sys.executable, "-m", "semimetric.serve.page.again", str(asked)]
                self.process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=errors)
            try:
                await self._follow(self.process, out)
                if self.process.returncode:
                    lines = said.read_text(encoding="utf-8", errors="replace").strip().splitlines()
                    raise RunError(lines[-1] if lines else f"it ended with code {self.process.returncode}")
                after = await run_in_threadpool(Desk, out, before.book, before.data_dir, before.source)
                outcome = await run_in_threadpool(compared, before, after)
                await run_in_threadpool(lambda: after.map)
            except (SemimetricError, OSError) as error:
                self.tell("failed", {"why": str(error)})
                return
            finally:
                self._stop(self.process)
                self.process = None
            self.desk = after
            self.tell("learned", outcome)

    async def _follow(self, process: subprocess.Popen[bytes], out: Path) -> None:
        """Tell each line of the log as it is written, until the process ends."""
        log, told = out / "metrics.jsonl", 0
        while True:
            ended = process.poll() is not None
            lines = log.read_text(encoding="utf-8").splitlines(keepends=True) if log.exists() else []
            for line in (line for line in lines[told:] if line.endswith("\n")):
                self.tell("epoch", json.loads(line))
                told += 1
            if ended:
                return
            await asyncio.sleep(POLL)

    def _stop(self, process: subprocess.Popen[bytes]) -> None:
        if process.poll() is None:
            process.terminate()
            process.wait()


def build_app(desk: Desk, host: str = "127.0.0.1", token: str = "") -> Starlette:
    """The page as an ASGI application.

    Parameters
    ----------
    desk : the run
    host : address that the server will listen on
    token : what browsers must know
    """
    page = Page(desk)

    @asynccontextmanager
    async def lifespan(app: Starlette) -> AsyncIterator[None]:
        yield
        if page.learning is not None:
            page.learning.cancel()
        page.desk.book.close()

    answers = Answers(page)
    app = Starlette(
        routes=[
            Route("/", lambda _: Response((STATIC / "index.html").read_bytes(), media_type="text/html")),
            Route("/api/run", answers.run),
            Route("/api/points", answers.points),
            Route("/api/examples", answers.examples, methods=["POST"]),
            Route("/api/small/{row:int}", answers.small),
            Route("/api/large/{row:int}", answers.large),
            Route("/api/similar/{row:int}", answers.similar),
            Route("/api/search", answers.search, methods=["POST"]),
            Route("/api/list/{name}", answers.list),
            Route("/api/labels", answers.label, methods=["POST"]),
            Route("/api/undo", answers.undo, methods=["POST"]),
            Route("/api/export", answers.export, methods=["POST"]),
            Route("/api/learn", answers.learn, methods=["POST"]),
            Route("/api/events", answers.events),
            Mount("/static", StaticFiles(directory=str(STATIC))),
        ],
        middleware=[Middleware(Guard, host=host, token=token)],
        exception_handlers={SemimetricError: _refused},
        lifespan=lifespan,
    )
    app.state.page = page
    return app


async def _refused(_: Request, error: Exception) -> Response:
    return JSONResponse({"error": str(error)}, 400)


async def _body(request: Request, most: int) -> bytes:
    """The body of a request, as long as it is not too large."""
    parts, size = [], 0
    async for part in request.stream():
        size += len(part)
        if size > most:
            raise HTTPException(413, f"more than {most >> 20} MiB. Send less.")
        parts.append(part)
    return b"".join(parts)


async def _json(request: Request) -> dict[str, Any]:
    try:
        value = json.loads(await _body(request, LARGEST_REQUEST))
    except (ValueError, RecursionError) as error:
        raise InputError(f"the request is no JSON: {error}.") from error
    if not isinstance(value, dict):
        raise InputError("the request must be a JSON object.")
    return value


class Answers:
    """What the page answers, one method for each address."""

    def __init__(self, page: Page) -> None:
        self._page = page

    @property
    def _desk(self) -> Desk:
        return self._page.desk

    async def run(self, _: Request) -> Response:
        """The run in short."""
        facts = await run_in_threadpool(self._desk.facts)
        return JSONResponse(facts | {"learning": self._page.process is not None})

    async def points(self, _: Request) -> Response:
        """All points as binary columns."""
        content = await run_in_threadpool(self._desk.columns)
        return Response(content, media_type="application/octet-stream", headers={"Cache-Control": "no-store"})

    async def examples(self, request: Request) -> Response:
        """Some examples in words."""
        rows = self._desk.checked((await _json(request)).get("rows", []))
        return JSONResponse(await run_in_threadpool(self._desk.examples, rows[:1000]))

    async def small(self, request: Request) -> Response:
        """A small picture."""
        return await self._picture(request, self._desk.small)

    async def large(self, request: Request) -> Response:
        """A large picture."""
        return await self._picture(request, self._desk.large)

    async def _picture(self, request: Request, draw: Callable[[int], bytes | None]) -> Response:
        (row,) = self._desk.checked([request.path_params["row"]])
        content = await run_in_threadpool(draw, row)
        if content is None:
            raise HTTPException(404, "there is no picture of this example")
        return Response(content, media_type="image/jpeg", headers={"Cache-Control": "no-store"})

    async def similar(self, request: Request) -> Response:
        """The nearest examples of one of them."""
        row, k = request.path_params["row"], _count(request, 48)
        return JSONResponse(await run_in_threadpool(self._desk.similar, row, k))

    async def search(self, request: Request) -> Response:
        """The nearest examples of an uploaded picture."""
        content = await _body(request, LARGEST_UPLOAD)
        return JSONResponse(await run_in_threadpool(self._desk.similar_to_picture, content, _count(request, 48)))

    async def list(self, request: Request) -> Response:
        """The queue, likely errors, near-duplicates or outliers."""
        desk, name = self._desk, request.path_params["name"]
        lists = {"errors": desk.errors, "duplicates": desk.duplicates, "outliers": desk.outliers}
        if name == "queue":
            return JSONResponse(await run_in_threadpool(desk.queue, _count(request, 40)))
        if name not in lists:
            raise HTTPException(404, "there is no such list")
        return JSONResponse(await run_in_threadpool(lists[name]))

    async def label(self, request: Request) -> Response:
        """Give examples a label, or take it away."""
        wanted = await _json(request)
        label = wanted.get("label")
        if not (label is None or isinstance(label, str)):
            raise InputError(f"label must be text or null, got {label!r}.")
        rows = self._desk.checked(wanted.get("rows", []))
        change = await run_in_threadpool(self._desk.book.set, rows, label, str(wanted.get("who", "")))
        self._page.tell_labels(change.rows)
        return JSONResponse({"change": change.number, "label": change.label} | self._page.short_facts())

    async def undo(self, request: Request) -> Response:
        """Take the last change back."""
        who = str((await _json(request)).get("who", ""))
        change = await run_in_threadpool(self._desk.book.undo, who)
        if change is not None:
            self._page.tell_labels(change.rows)
        rows = [] if change is None else list(change.rows)
        return JSONResponse({"rows": rows} | self._page.short_facts())

    async def export(self, request: Request) -> Response:
        """A selection as CSV."""
        rows = self._desk.checked((await _json(request)).get("rows", []))
        listed = await run_in_threadpool(self._desk.examples, rows)
        columns = ["name", "label", "predicted", "confidence"]
        text = table_text(columns, [["" if entry[c] is None else entry[c] for c in columns] for entry in listed])
        name = 'attachment; filename="selection.csv"'
        return Response(text, media_type="text/csv; charset=utf-8", headers={"Content-Disposition": name})

    async def learn(self, _: Request) -> Response:
        """Begin to learn again."""
        page = self._page
        if page.learning is not None and not page.learning.done():
            raise InputError("the run is learning already. Wait for it.")
        check_can_learn(self._desk.loaded, self._desk.source)
        out = next_run(self._desk.book.path)
        page.learning = asyncio.create_task(page.learn(out))
        return JSONResponse({"out": str(out)})

    async def events(self, request: Request) -> Response:
        """Labels of others and the progress of learning, as they happen."""
        queue: asyncio.Queue[str] = asyncio.Queue()
        self._page.listeners.add(queue)

        async def stream() -> AsyncIterator[str]:
            try:
                yield "retry: 2000\n\n"
                while True:
                    try:
                        yield await asyncio.wait_for(queue.get(), 15)
                    except TimeoutError:
                        yield ": still here\n\n"
            finally:
                self._page.listeners.discard(queue)

        return StreamingResponse(stream(), media_type="text/event-stream", headers={"Cache-Control": "no-store"})


def next_run(labels: Path) -> Path:
    """The first free folder for a run that learns from these labels: RUN-again-1, RUN-again-2, ..."""
    name = labels.name.removesuffix(".labels.csv")
    number = 1
    while os.path.lexists(labels.with_name(f"{name}-again-{number}")):
        number += 1
    return labels.with_name(f"{name}-again-{number}")


def _count(request: Request, usual: int) -> int:
    text = request.query_params.get("n", str(usual))
    if not text.isdecimal() or not 1 <= int(text) <= 1000:
        raise InputError(f"n must be a whole number from 1 to 1000, got {text!r}.")
    return int(text)
