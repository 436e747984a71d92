"""The server of the page: one run, any number of browsers."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import asdict
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
from semimetric.core.files import read_json
from semimetric.serve.csv_file import table_text
from semimetric.serve.labels import COLUMNS
from semimetric.serve.page.again import Judgement, check_can_learn, judging_failed, sentence_of
from semimetric.serve.page.asked import body_of, count_of, json_of, who_labels
from semimetric.serve.page.desk import Desk, compared
from semimetric.serve.page.guard import Guard

LARGEST_UPLOAD = 20 << 20
"""Bytes of an uploaded picture."""

POLL = 0.3  # seconds between looks at the log of a run that learns
STATIC = files("semimetric.serve.page") / "static"


class Page:
    """The desk in use, the browsers that listen, and the process that learns, if any."""

    def __init__(self, desk: Desk) -> None:
        self.desk = desk
        self.listeners: set[asyncio.Queue[str]] = set()
        self.learning: asyncio.Task[None] | None = None
        self.process: subprocess.Popen[bytes] | None = None
        self.outcome: dict[str, Any] | None = None

    @property
    def is_learning(self) -> bool:
        """Whether a process learns."""
        return self.learning is not None and not self.learning.done()

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

    async def learn(self, out: Path, judge: bool = True) -> None:
        """Fit again in a process of its own, and go over to the new run once it is whole.

        Whatever goes wrong is told, and the page goes on with the old run. A folder that holds no whole run then is
        removed: no command can continue it.
        """
        before = self.desk
        try:
            out.mkdir()
        except OSError as error:
            self.tell("failed", {"why": sentence_of(error)})
            return
        try:
            judged = await self._fit(out, judge)
            after = await run_in_threadpool(Desk, out, before.book, before.data_dir, before.source)
            self.outcome = await run_in_threadpool(compared, before, after) | {"judged": judged}
            await run_in_threadpool(lambda: after.map)
        except Exception as error:
            self.tell("failed", {"why": sentence_of(error)})
            return
        finally:
            if not is_finished(out):
                shutil.rmtree(out, ignore_errors=True)
        self.desk = after
        self.tell("learned", self.outcome)

    async def _fit(self, out: Path, judge: bool) -> dict[str, Any]:
        """Let a process learn: its judgement of the old and the new model."""
        desk = self.desk
        with tempfile.TemporaryDirectory() as folder:
            asked, answer, said = (Path(folder) / name for name in ("request.json", "answer.json", "said.jsonl"))
            paths = {"run": desk.run, "out": out, "answer": answer, "data_dir": desk.data_dir, "source": desk.source}
            request = {name: None if path is None else str(path) for name, path in paths.items()}
            asked.write_text(json.dumps(request | {"labels": desk.book.labels, "judge": judge}), encoding="utf-8")
            with said.open("wb") as told:
                command = [sys.executable, "-m", "semimetric.serve.page.again", str(asked)]
                process = self.process = subprocess.Popen(command, stdout=told, stderr=subprocess.DEVNULL)
            try:
                await self._follow(process, {"epoch": out / "metrics.jsonl", "judging": said})
            finally:
                self._stop(process)
                self.process = None
            if not answer.exists():
                ended = f"ended with code {process.returncode}. Is memory short?"
                if not is_finished(out):
                    raise RunError(f"the process that learned was {ended}")
                return asdict(Judgement(why=judging_failed(f"the process that judged was {ended}")))
            found: dict[str, Any] = read_json(answer)
        if "error" in found:
            raise RunError(found["error"])
        return found

    async def _follow(self, process: subprocess.Popen[bytes], logs: dict[str, Path]) -> None:
        """Tell each line of each log as an event of its name as it is written, until the process ends."""
        told = dict.fromkeys(logs, 0)
        while True:
            ended = process.poll() is not None
            for kind, log in logs.items():
                lines = log.read_text(encoding="utf-8").splitlines(keepends=True) if log.exists() else []
                for line in (line for line in lines[told[kind] :] if line.endswith("\n")):
                    self.tell(kind, json.loads(line))
                    told[kind] += 1
            if ended:
                return
            await asyncio.sleep(POLL)

    def _stop(self, process: subprocess.Popen[bytes]) -> None:
        if process.poll() is None:
            process.terminate()
            process.wait()


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
        middleware=[Middleware(Guard, host=host, key=key)],
        exception_handlers={SemimetricError: _refused},
        lifespan=lifespan,
    )
    app.state.page = page
    return app


async def _refused(_: Request, error: Exception) -> Response:
    return JSONResponse({"error": str(error)}, 400)


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
        """Give examples a label, or take it away."""
        wanted = await json_of(request)
        label = wanted.get("label")
        if not (label is None or isinstance(label, str)):
            raise InputError(f"label must be text or null, got {label!r}.")
        rows = self._desk.checked(wanted.get("rows", []))
        change = await run_in_threadpool(self._desk.book.set, rows, label, who_labels(request, wanted.get("who", "")))
        self._page.tell_labels(change.rows)
        return JSONResponse({"change": change.number, "label": change.label} | self._page.short_facts())

    async def undo(self, request: Request) -> Response:
        """Take the last change back."""
        who = (await json_of(request)).get("who", "")
        change = await run_in_threadpool(self._desk.book.undo, who_labels(request, who))
        if change is not None:
            self._page.tell_labels(change.rows)
        rows, labels = ((), ()) if change is None else (change.rows, change.before)
        return JSONResponse({"rows": rows, "labels": labels} | self._page.short_facts())

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


def is_finished(run: Path) -> bool:
    """Whether the training of a run has ended and all of it is written; the result is the last file."""
    return (run / "result.json").exists()


def next_run(labels: Path) -> Path:
    """The first free folder for a run that learns from these labels: RUN-again-1, RUN-again-2, ..."""
    name = labels.name.removesuffix(".labels.csv")
    number = 1
    while os.path.lexists(labels.with_name(f"{name}-again-{number}")):
        number += 1
    return labels.with_name(f"{name}-again-{number}")
