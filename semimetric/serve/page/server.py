"""The server of the page: one run, any number of browsers."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from functools import partial
from importlib.resources import files
from typing import Any

from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Mount, Route
from starlette.staticfiles import StaticFiles

from semimetric.core.errors import InputError, SemimetricError
from semimetric.data.label_book import MovedError
from semimetric.serve.book import Change
from semimetric.serve.csv_file import table_text
from semimetric.serve.labels import COLUMNS
from semimetric.serve.page.again import check_can_learn
from semimetric.serve.page.asked import body_of, count_of, json_of, who_labels
from semimetric.serve.page.desk import Desk
from semimetric.serve.page.guard import Guard
from semimetric.serve.page.session import Page, next_run

LARGEST_UPLOAD = 20 << 20
"""Bytes of an uploaded picture."""

STATIC = files("semimetric.serve.page") / "static"


def build_app(desk: Desk, key: str, host: str = "127.0.0.1") -> Starlette:
    """The page as an ASGI application.

    Parameters
    ----------
    desk : the run
    key : first part of every address
    host : address that the server will listen on
    """
    page = Page(desk)

    @asynccontextmanager
    async def lifespan(app: Starlette) -> AsyncIterator[None]:
        watching = asyncio.create_task(page.follow_book())
        yield
        watching.cancel()
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
            Route("/api/classes", answers.classes, methods=["POST"]),
            Route("/api/book", answers.book, methods=["POST"]),
            Route("/api/export", answers.export, methods=["POST"]),
            Route("/api/learn", answers.learn, methods=["POST"]),
            Route("/api/events", answers.events),
            Mount("/static", StaticFiles(directory=str(STATIC))),
        ],
        middleware=[Middleware(Guard, host=host, key=key)],
        exception_handlers={SemimetricError: _refused},
        lifespan=lifespan,
    )
    app.state.page = page
    return app


async def _refused(_: Request, error: Exception) -> Response:
    if isinstance(error, MovedError):
        return JSONResponse({"error": str(error), "replaced": os.path.lexists(error.path)}, 409)
    return JSONResponse({"error": str(error)}, 400 if isinstance(error, InputError) else 503)


class Answers:
    """What the page answers, one method for each address."""

    def __init__(self, page: Page) -> None:
        self._page = page

    @property
    def _desk(self) -> Desk:
        return self._page.desk

    async def run(self, request: Request) -> Response:
        """The run in short."""
        facts = await run_in_threadpool(self._desk.facts)
        facts["who"] = who_labels(request, "")
        return JSONResponse(facts | {"learning": self._page.is_learning, "outcome": self._page.outcome})

    async def points(self, _: Request) -> Response:
        """All points as binary columns."""
        content = await run_in_threadpool(self._desk.columns)
        return Response(content, media_type="application/octet-stream", headers={"Cache-Control": "no-store"})

    async def examples(self, request: Request) -> Response:
        """Some examples in words."""
        rows = self._desk.checked((await json_of(request)).get("rows", []))
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
        row, k = request.path_params["row"], count_of(request, 48)
        return JSONResponse(await run_in_threadpool(self._desk.similar, row, k))

    async def search(self, request: Request) -> Response:
        """The nearest examples of an uploaded picture."""
        content = await body_of(request, LARGEST_UPLOAD)
        return JSONResponse(await run_in_threadpool(self._desk.similar_to_picture, content, count_of(request, 48)))

    async def list(self, request: Request) -> Response:
        """The queue, likely errors, near-duplicates or outliers."""
        desk, name = self._desk, request.path_params["name"]
        lists = {"errors": desk.errors, "duplicates": desk.duplicates, "outliers": desk.outliers}
        if name == "queue":
            return JSONResponse(await run_in_threadpool(desk.queue, count_of(request, 40)))
        if name not in lists:
            raise HTTPException(404, "there is no such list")
        return JSONResponse(await run_in_threadpool(lists[name]))

    async def label(self, request: Request) -> Response:
        """Give examples a label, take it away, or skip them."""
        wanted = await json_of(request)
        if wanted.get("key", self._desk.book.key) != self._desk.book.key:
            raise HTTPException(410, "the run was fitted anew since this page was opened. Reload the page.")
        label, skip = wanted.get("label"), wanted.get("skip", False)
        if not (label is None or isinstance(label, str)) or (skip and label is not None):
            raise InputError(f"label must be text or null, and null with skip, got {label!r}.")
        rows, who = self._desk.checked(wanted.get("rows", [])), who_labels(request, wanted.get("who", ""))
        act = partial(self._desk.book.skip, rows, who) if skip else partial(self._desk.book.label, rows, label, who)
        return await self._changed(act)

    async def undo(self, request: Request) -> Response:
        """Take back the last change of the person who asks."""
        who = (await json_of(request)).get("who", "")
        return await self._changed(partial(self._desk.book.undo, who_labels(request, who)))

    async def classes(self, request: Request) -> Response:
        """Add, rename, merge or delete a class."""
        wanted, book = await json_of(request), self._desk.book
        acts: dict[Any, Callable[..., Change]] = {
            "add": book.add_class,
            "rename": book.rename_class,
            "merge": book.merge_classes,
            "delete": book.delete_class,
        }
        what, names = wanted.get("do"), [wanted[name] for name in ("name", "to") if name in wanted]
        if what not in acts or not all(isinstance(name, str) for name in names):
            raise InputError(f"do must be one of {', '.join(acts)}, and name and to must be text, got {wanted!r}.")
        if len(names) != (2 if what in ("rename", "merge") else 1):
            raise InputError(f"{what} needs the name of a class, and rename and merge the name to as well.")
        return await self._changed(partial(acts[what], *names, who_labels(request, wanted.get("who", ""))))

    async def book(self, request: Request) -> Response:
        """Go on after the file of labels was moved: "write" it again, or "use" the one that is there."""
        what = (await json_of(request)).get("do")
        if what not in ("write", "use"):
            raise InputError(f"do must be write or use, got {what!r}.")
        book = self._desk.book
        rows = await run_in_threadpool(book.choose, what)
        return await self._changed(lambda: Change(book.last, rows))

    async def _changed(self, act: Callable[[], Change | None]) -> Response:
        """Change the book, and tell every browser what it says now."""
        book = self._desk.book
        change = await run_in_threadpool(act)
        rows = () if change is None else change.rows
        if change is not None:
            self._page.tell_labels(rows)
        done = {"done": change is not None, "change": book.last, "rows": rows}
        labels = [book.labels[row] for row in rows]
        return JSONResponse(done | {"labels": labels} | self._page.short_facts())

    async def export(self, request: Request) -> Response:
        """A selection as CSV."""
        rows = self._desk.checked((await json_of(request)).get("rows", []))
        listed = await run_in_threadpool(self._desk.examples, rows)
        text = table_text(COLUMNS, [["" if entry[c] is None else entry[c] for c in COLUMNS] for entry in listed])
        name = 'attachment; filename="selection.csv"'
        return Response(text, media_type="text/csv; charset=utf-8", headers={"Content-Disposition": name})

    async def learn(self, request: Request) -> Response:
        """Begin to learn again; without "judge" both models are not judged."""
        page, judge = self._page, (await json_of(request)).get("judge", True)
        if not isinstance(judge, bool):
            raise InputError(f"judge must be true or false, got {judge!r}.")
        if page.is_learning:
            raise InputError("the run is learning already. Wait for it.")
        check_can_learn(self._desk.loaded, self._desk.source)
        out = next_run(self._desk.book.path)
        page.learning = asyncio.create_task(page.learn(out, judge))
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
