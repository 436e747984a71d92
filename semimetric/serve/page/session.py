"""An open page: the desk in use, the browsers that listen, and the process that learns again."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import asdict
from itertools import count
from pathlib import Path
from typing import Any

from starlette.concurrency import run_in_threadpool

from semimetric.core.errors import RunError, SemimetricError
from semimetric.core.files import read_json
from semimetric.data.label_book import SUFFIX
from semimetric.serve.page.again import Judgement, judging_failed, sentence_of
from semimetric.serve.page.desk import Desk, compared

POLL, WATCH = 0.3, 1.0  # seconds between looks at the log of a run that learns, and at the labels of other programs


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

    def tell_labels(self, rows: Sequence[int]) -> None:
        """Tell every browser the labels of some examples, and the state of the book."""
        book = self.desk.book
        labels = [book.labels[row] for row in rows]
        self.tell("labels", {"rows": rows, "labels": labels, "facts": self.short_facts()})

    def short_facts(self) -> dict[str, Any]:
        """What changes with a label."""
        book = self.desk.book
        counts = {"labelled": book.labelled, "changes": book.changes, "last": book.last}
        return counts | {"classes": self.desk.listed_classes()}

    async def follow_book(self) -> None:
        """Tell every browser what other programs write into the book."""
        while True:
            await asyncio.sleep(WATCH)
            with suppress(SemimetricError):  # whoever saves next is told
                last, rows = self.desk.book.last, await run_in_threadpool(self.desk.book.refresh)
                if rows or self.desk.book.last != last:
                    self.tell_labels(rows)

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
            learned = before.book.identities()
            judged = await self._fit(out, judge)
            after = await run_in_threadpool(Desk, out, before.book, before.data_dir, before.source, learned)
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
            given = {"labels": desk.book.labels, "digests": desk.book.evidence(), "judge": judge}
            asked.write_text(json.dumps(request | given), encoding="utf-8")
            with said.open("wb") as told:
                command = [sys.executable, "-m", "semimetric.serve.page.again", str(asked)]
                process = self.process = subprocess.Popen(command, stdout=told, stderr=subprocess.DEVNULL)
            try:
                await self._follow(process, {"epoch": out / "metrics.jsonl", "judging": said})
            finally:
                process.terminate()
                process.wait()
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


def is_finished(run: Path) -> bool:
    """Whether the training of a run has ended and all of it is written; the result is the last file."""
    return (run / "result.json").exists()


def next_run(labels: Path) -> Path:
    """The first free folder for a run that learns from these labels: RUN-again-1, RUN-again-2, ..."""
    name = labels.name.removesuffix(SUFFIX)
    places = (labels.with_name(f"{name}-again-{number}") for number in count(1))
    return next(place for place in places if not os.path.lexists(place))
