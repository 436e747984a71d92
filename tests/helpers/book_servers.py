"""Real servers of the page and the file of their label book, compared with what ``helpers.book_model`` foretells."""

from __future__ import annotations

import json
import os
import random
import re
import shutil
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from http.client import HTTPException
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any, ClassVar, NoReturn
from urllib.error import HTTPError
from urllib.request import Request, urlopen

from helpers.book_model import Identities, Paper, Refused, of_run
from helpers.command import Done, semimetric
from helpers.killed import Killer
from helpers.page import CHANGES
from hypothesis.stateful import RuleBasedStateMachine, invariant

from semimetric.core.errors import SemimetricError
from semimetric.data.label_book import BookFile
from semimetric.model.folder import load_run
from semimetric.serve.labels import given_labels

ROWS, GIVEN = 40, 8
JUNK = b"path,label\nr1,red\nr2,blue"
SOON = 20.0
"""Seconds within which a server sees what others wrote, on a busy machine."""

Act = Callable[[Paper], Paper]
Requested = tuple[str, dict[str, Any], Act]


def make_run(folder: Path) -> Path:
    """A run on a table of two classes, that is fitted within a second."""
    draw, lines = random.Random(0), ["id,a,b,c,label"]
    for number in range(ROWS):
        values = [f"{draw.gauss(3 * (number % 2) * (place == 0), 1):.4f}" for place in range(3)]
        lines.append(",".join([f"r{number}", *values, given_at(number) or ""]))
    (folder / "t.csv").write_text("\n".join(lines) + "\n")
    done = semimetric("fit", folder / "t.csv", "--method", "lrml", "--threads", 1, "-o", folder / "run")
    assert done.code == 0, done.err
    return folder / "run"


def predictions_of(run: Path) -> list[str]:
    """The class that a run predicts for each row."""
    fitted = load_run(run, "cpu").fitted
    trained = [str(name) for name in fitted.examples.classes]
    return [trained[place] for place in fitted.posteriors.shares.argmax(1).tolist()]


def given_at(number: int) -> str | None:
    """The label that the table has in a row."""
    return ("red", "blue")[number % 2] if number < GIVEN else None


class Broken(BaseException):
    """The book does not say what it must; no error that Hypothesis would want to see again."""


@dataclass
class File:
    """A file of labels, wherever it is: the model of what it holds; None for what is no book."""

    paper: Paper | None


def _value_of(content: bytes) -> Any:
    """What an answer says: JSON, or else its first bytes."""
    try:
        return json.loads(content)
    except ValueError:
        return content[:200]


@dataclass
class Server:
    """A process that serves the run; ``file`` is what it has open, None while it has what no file holds."""

    url: str
    process: BaseProcess
    file: File | None = None
    best: list[str] = field(default_factory=list)  # empty where the names of classes at its learning are not known
    learned: Identities = field(default_factory=dict)

    def ask(self, address: str, body: Any = None) -> tuple[int, Any]:
        """Status and answer of a request; 0 if the server died before it had answered."""
        data = None if body is None else json.dumps(body).encode()
        try:
            try:
                with urlopen(Request(self.url + address, data, CHANGES), timeout=60) as answer:
                    return answer.status, _value_of(answer.read())
            except HTTPError as refused:
                with refused:
                    return refused.code, _value_of(refused.read())
        except (OSError, HTTPException):
            return 0, None

    def kill(self) -> None:
        """SIGKILL."""
        self.process.kill()
        self.process.join()


def begin_server(killer: Killer, run: Path, folder: Path) -> Server | Done:
    """A new process that serves a run, or how it ended."""
    said = folder / "served"
    process, _ = killer.begin(said, "serve", run, "--port", "0", folder=folder)
    ended = time.monotonic() + 60
    while time.monotonic() < ended and process.exitcode is None:
        if found := re.search(r"http://\S+/", Path(f"{said}.out").read_text()):
            return Server(found[0], process)
        time.sleep(0.01)
    process.kill()
    return killer.ended(process, said)


def request_of(what: str, who: str, some: list[int], name: str, to: str) -> Requested:
    """Address and body of a request, and what it does to a book."""
    if what == "undo":
        return "api/undo", {"who": who}, lambda paper: paper.undone(who)
    if what.endswith(("class", "classes")):
        do = what.split()[0]
        body = {"do": do, "name": name, "who": who} | ({"to": to} if do in ("rename", "merge") else {})
        return "api/classes", body, lambda paper: paper.with_change_of_class(do, who, name, to)
    label = name if what.startswith("label") else None
    some = some[:1] if what == "label one" else some
    wanted = dict.fromkeys(some, label)
    body = {"rows": some, "label": label, "who": who, "skip": what == "skip"}
    return "api/labels", body, lambda paper: paper.labelled(wanted, who, "skip" if what == "skip" else "clear")


class BookStage(RuleBasedStateMachine):
    """Servers of one run, people who label on them, and a file of labels that is moved and replaced."""

    killer: ClassVar[Killer]
    run_once: ClassVar[Path]
    best_once: ClassVar[list[str]]
    counts: ClassVar[Counter[str]] = Counter()

    def __init__(self) -> None:
        super().__init__()
        self.steps: list[str] = []
        self.place = Path(tempfile.mkdtemp(dir=self.run_once.parent))
        self.run = Path(shutil.copytree(self.run_once, self.place / "run"))
        self.book = self.place / "run.labels.sqlite"
        self.first = of_run({row: str(given_at(row)) for row in range(GIVEN)})
        self.here: File | None = None
        self.aside: list[tuple[Path, File]] = []
        self.number = 0
        self.servers = [self.started()]

    def teardown(self) -> None:
        for server in self.servers:
            server.kill()
        shutil.rmtree(self.place, ignore_errors=True)

    def counted(self, what: str, *more: object) -> None:
        """Note a step of the machine."""
        self.counts[what] += 1
        self.steps.append(f"{what} {more}")

    def fail(self, what: str) -> NoReturn:
        """End all runs: kills at random moments cannot be repeated."""
        raise Broken(f"{what}, after:\n" + "\n".join(self.steps))

    def same(self, found: object, expected: object, what: str) -> None:
        """Compare, and name all steps that led here."""
        if found != expected:
            self.fail(f"{what}: {found!r} is not {expected!r}")

    def new(self, suffix: str) -> Path:
        """A path that is not in use."""
        self.number += 1
        return self.place / f"{self.number}{suffix}"

    def started(self, run: Path | None = None) -> Server:
        """A new process that serves a run; where the book is junk it refuses, and the junk is taken away."""
        server = begin_server(self.killer, run or self.run, self.place)
        if isinstance(server, Server):
            if run is not None and self.here is not None and self.here.paper is not None:
                self.here.paper = self.here.paper.brought(given_labels(load_run(run, "cpu").fitted))
            return replace(server, file=self.here, best=[] if run else self.best_once)
        done = server
        if self.here is None or self.here.paper is not None or done.code != 2:
            self.fail(f"serve ends with {done}")
        self.same((done.sentence().count(self.book.name), self.book.read_bytes()), (1, JUNK), "junk")
        self.counted("serve on junk")
        self.book.unlink()
        self.here = None
        return self.started()

    def server(self, which: int) -> Server:
        """One of the servers."""
        return self.servers[which % len(self.servers)]

    def seen(self, server: Server) -> Paper:
        """What a server has to say at the latest after its next change."""
        if server.file is None and self.here is not None and self.here.paper is not None:
            server.file = self.here  # it was made meanwhile
        return self.first if server.file is None or server.file.paper is None else server.file.paper

    def foretold(self, server: Server | None, act: Act) -> tuple[int, Paper | None]:
        """The status of the answer to a change, and the book after it; without a server it is a command."""
        here = self.here
        if server is None:
            before = self.first if here is None else here.paper
        else:
            before = self.seen(server)
            if server.file is not None and server.file is not here:
                return 409, None
        if before is None or (here is not None and here.paper is None):
            return (400 if server is None else 409), None
        try:
            after = act(before)
        except Refused:
            return 400, None
        return 200, None if after == before else after

    def write(self, server: Server | None, paper: Paper | None) -> None:
        """Note what was acknowledged."""
        if paper is None:
            return
        if self.here is None:
            self.here = File(paper)
        self.here.paper = paper
        if server is not None:
            server.file = self.here

    def change(self, which: int, address: str, body: dict[str, Any], act: Act) -> None:
        """Send a change, and compare the answer with the model's."""
        server = self.server(which)
        status, paper = self.foretold(server, act)
        found, answer = server.ask(address, body)
        self.same(found, status, f"{address} {body} answers {answer}")
        self.counts[f"answered {status}"] += 1
        if status == 200:
            self.write(server, paper)
            self.look_at(server)
        else:
            self.same(answer["error"].strip()[-1], ".", f"an answer without a sentence: {answer}")

    def look_at(self, server: Server, wait: float = 0.0) -> None:
        """Compare what a server says with the model; wait until it has seen what others wrote."""
        ended = time.monotonic() + wait
        while True:
            paper = self.seen(server)
            status, facts = server.ask("api/run")
            if status != 200:
                self.fail(f"the run is answered with {status} {facts}")
            listed = server.ask("api/examples", {"rows": list(range(ROWS))})[1]
            found = self.said(facts, listed, server.best)
            predicted = [paper.called(name, server.learned) for name in server.best]
            expected = paper.labels(ROWS), paper.used(), paper.changes(), predicted
            if found == expected or time.monotonic() > ended:
                break
            time.sleep(0.05)
        self.same(found, expected, "a server")
        self.keys(paper, {entry["colour"]: entry["key"] for entry in facts["classes"]})

    @staticmethod
    def said(facts: dict[str, Any], listed: list[dict[str, Any]], best: list[str]) -> tuple[object, ...]:
        """What a server says, in the words of the model."""
        classes = [(entry["colour"], entry["name"]) for entry in facts["classes"]]
        predicted = [entry["predicted"] for entry in listed][: len(best)]
        return [entry["label"] for entry in listed], classes, facts["changes"], predicted

    def keys(self, paper: Paper, keys: dict[int, str | None]) -> None:
        """Each class has a key of its own."""
        given = [key for key in keys.values() if key]
        self.same(len({*given}), len(given), "keys")

    @invariant()
    def book_is_the_model(self) -> None:
        """What the file says is what was acknowledged."""
        if self.here is None:
            self.same(os.path.lexists(self.book), False, "a book that nobody made")
            return
        if self.here.paper is None:
            self.same(self.book.read_bytes(), JUNK, "what others put there")
            return
        self.same(self.on_disk(), self.told(self.here.paper), "the book")

    def on_disk(self) -> tuple[object, ...]:
        """What the file of the book says."""
        try:
            with BookFile(self.book) as book:
                self.same(book.rows("PRAGMA integrity_check"), [("ok",)], "the integrity check")
                entries = {int(entry.example[1:]): entry for entry in book.entries()}
                classes = [(found.colour, found.name) for found in book.classes() if found.used]
                count = book.rows("SELECT count(*) FROM events WHERE person <> ''")[0][0]
        except SemimetricError as error:
            self.fail(f"the book cannot be read: {error}")
        return {row: self.held(e.person, e.event, e.label, e.source) for row, e in entries.items()}, classes, count

    @staticmethod
    def held(person: str, event: str, label: str | None, source: str) -> tuple[str | None, ...]:
        """What is compared: how a run brings a label again is its own affair."""
        return (person, event, label, source if event == "label" else "") if person else (person, label)

    @staticmethod
    def told(paper: Paper) -> tuple[object, ...]:
        """What a file that holds this says."""
        held = paper.held().items()
        entries = {row: BookStage.held(*found, "" if row < GIVEN else "suggested") for row, found in held}
        return entries, paper.used(), sum(event.person != "" for event in paper.events)

    def disturbed(self) -> bool:
        """Return True if the file was moved some steps ago: the steps shall not be moves alone."""
        return any(step.startswith(("moved", "deleted", "put", "junk")) for step in self.steps[-6:])

    def settle(self) -> None:
        """Let every server see a file that was made since it began, before that one is moved."""
        for server in self.servers:
            if server.file is None:
                self.seen(server)
                server.ask("api/undo", {"who": "nobody who labels"})
        Path(f"{self.book}-journal").unlink(missing_ok=True)  # of a killed server; it goes with its book

    def restart(self, which: int, run: Path | None = None) -> None:
        """Kill a server, and begin it again, or serve a run that learned from the same book."""
        place = which % len(self.servers)
        self.servers[place].kill()
        self.servers[place] = self.started(run)
        self.look_at(self.servers[place])

    def found_after(self, paper: Paper | None) -> tuple[int, Paper | None]:
        """Which of the two the book is, after a request without an answer."""
        if paper is None or not self.book.exists():
            return 200, None
        return 200, paper if self.on_disk() == self.told(paper) else None
