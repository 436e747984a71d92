"""A state machine of the label book: real servers of the page, real kills, and a book that says what was acknowledged.

What each request must answer is foretold by ``helpers.book_model``. A request that was under way when its server was
killed may have been written or not; the model then goes on with what the book says, if it is one of the two.
"""

from __future__ import annotations

import json
import os
import random
import re
import shutil
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from http.client import HTTPException
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any, ClassVar
from urllib.error import HTTPError
from urllib.request import Request, urlopen

from helpers.book_model import Identities, Paper, Refused, of_run
from helpers.command import semimetric
from helpers.damage import Tally
from helpers.killed import Killer
from helpers.page import CHANGES
from hypothesis import HealthCheck, Phase, settings
from hypothesis import seed as with_seed
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule, run_state_machine_as_test

from semimetric.data.label_book import BookFile
from semimetric.model.folder import load_run
from semimetric.serve.labels import given_labels

ROWS, GIVEN = 40, 8
NAMES = ["red", "blue", "green", "teal", "9", "grün & <b>"]
PEOPLE = ["Ada", "Bo"]
JUNK = b"path,label\nr1,red\nr2,blue"
SERVER = ("semimetric.serve.page.server", "semimetric.serve.page.desk", "uvicorn", "sklearn.manifold")
SOON = 20.0
"""Seconds within which a server sees what others wrote, on a busy machine."""

rows = st.lists(st.integers(0, 11), min_size=1, max_size=4, unique=True)
names, people, servers = st.sampled_from(NAMES), st.sampled_from(PEOPLE), st.integers(0, 1)


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


def predictions_of(run: Path) -> tuple[list[str], list[str]]:
    """The classes that a run has learned, and which of them it predicts for each row."""
    fitted = load_run(run, "cpu").fitted
    trained = [str(name) for name in fitted.examples.classes]
    return trained, [trained[place] for place in fitted.posteriors.shares.argmax(1).tolist()]


def given_at(number: int) -> str | None:
    """The label that the table has in a row."""
    return ("red", "blue")[number % 2] if number < GIVEN else None


@dataclass
class File:
    """A file of labels, wherever it is: the model of what it holds; None for what is no book."""

    paper: Paper | None


@dataclass
class Server:
    """A process that serves the run; ``file`` is what it has open, None while it has what no file holds."""

    url: str
    process: BaseProcess
    file: File | None = None
    trained: list[str] = field(default_factory=lambda: ["blue", "red"])
    best: list[str] = field(default_factory=list)
    learned: Identities = field(default_factory=dict)

    def ask(self, address: str, body: Any = None) -> tuple[int, Any]:
        """Status and answer of a request; 0 if the server died before it had answered."""
        data = None if body is None else json.dumps(body).encode()
        try:
            try:
                with urlopen(Request(self.url + address, data, CHANGES), timeout=60) as answer:
                    return answer.status, json.loads(answer.read())
            except HTTPError as refused:
                with refused:
                    return refused.code, json.loads(refused.read())
        except (OSError, HTTPException):
            return 0, None

    def kill(self) -> None:
        """SIGKILL."""
        self.process.kill()
        self.process.join()


class BookMachine(RuleBasedStateMachine):
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

    def same(self, found: object, expected: object, what: str) -> None:
        """Compare, and name all steps that led here."""
        if found != expected:
            raise AssertionError(f"{what}: {found!r} is not {expected!r}, after:\n" + "\n".join(self.steps))

    def new(self, suffix: str) -> Path:
        """A path that is not in use."""
        self.number += 1
        return self.place / f"{self.number}{suffix}"

    # Servers -----------------------------------------------------------------------------------------------------

    def started(self) -> Server:
        """A new process that serves the run; where the book is junk it refuses, and the junk is taken away."""
        said = self.new("")
        process, _ = self.killer.begin(said, "serve", self.run, "--port", "0", folder=self.place)
        ended = time.monotonic() + 60
        while time.monotonic() < ended:
            if found := re.search(r"http://\S+/", Path(f"{said}.out").read_text()):
                return Server(found[0], process, self.here, best=self.best_once)
            if process.exitcode is not None:
                break
            time.sleep(0.01)
        process.kill()
        done = self.killer.ended(process, said)
        if self.here is None or self.here.paper is not None or done.code != 2:
            raise AssertionError(f"serve ends with {done}, after:\n" + "\n".join(self.steps))
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

    def foretold(self, server: Server | None, act: Callable[[Paper], Paper]) -> tuple[int, Paper | None]:
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

    def change(self, which: int, address: str, body: dict[str, Any], act: Callable[[Paper], Paper]) -> None:
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
            assert answer["error"].endswith((".", "first."))

    def look_at(self, server: Server, wait: float = 0.0) -> None:
        """Compare what a server says with the model; wait until it has seen what others wrote."""
        ended = time.monotonic() + wait
        while True:
            paper = self.seen(server)
            facts = server.ask("api/run")[1]
            listed = server.ask("api/examples", {"rows": list(range(ROWS))})[1]
            found = self.said(facts, listed)
            predicted = [paper.called(name, server.learned) for name in server.best]
            expected = paper.labels(ROWS), paper.used(), len(paper.events), paper.changes(), predicted
            if found == expected or time.monotonic() > ended:
                break
            time.sleep(0.05)
        self.same(found, expected, "a server")
        self.keys(paper, {entry["colour"]: entry["key"] for entry in facts["classes"]})

    @staticmethod
    def said(facts: dict[str, Any], listed: list[dict[str, Any]]) -> tuple[object, ...]:
        """What a server says, in the words of the model."""
        classes = [(entry["colour"], entry["name"]) for entry in facts["classes"]]
        predicted = [entry["predicted"] for entry in listed]
        return [entry["label"] for entry in listed], classes, facts["last"], facts["changes"], predicted

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
        with BookFile(self.book) as book:
            self.same(book.rows("PRAGMA integrity_check"), [("ok",)], "the integrity check")
            entries = {
                int(entry.example[1:]): (entry.person, entry.event, entry.label, entry.source)
                for entry in book.entries()
            }
            classes = [(found.colour, found.name) for found in book.classes() if found.used]
            return entries, classes, book.rows("SELECT max(number) FROM events")[0][0]

    @staticmethod
    def told(paper: Paper) -> tuple[object, ...]:
        """What a file that holds this says."""
        entries = {row: (*held, "" if row < GIVEN else "suggested") for row, held in paper.held().items()}
        return entries, paper.used(), len(paper.events)

    # What people do ----------------------------------------------------------------------------------------------

    @rule(which=servers, row=st.integers(0, 11), name=names, who=people)
    def label_one(self, which: int, row: int, name: str, who: str) -> None:
        self.counted("label one", which, row, name, who)
        self.change(which, *self.labelling([row], name, who))

    @rule(which=servers, some=rows, name=names, who=people)
    def label_several(self, which: int, some: list[int], name: str, who: str) -> None:
        self.counted("label several", which, some, name, who)
        self.change(which, *self.labelling(some, name, who))

    @rule(which=servers, some=rows, who=people)
    def clear(self, which: int, some: list[int], who: str) -> None:
        self.counted("clear", which, some, who)
        self.change(which, *self.labelling(some, None, who))

    @rule(which=servers, some=rows, who=people)
    def skip(self, which: int, some: list[int], who: str) -> None:
        self.counted("skip", which, some, who)
        self.change(which, *self.labelling(some, None, who, skip=True))

    @rule(which=servers, who=people)
    def undo(self, which: int, who: str) -> None:
        self.counted("undo", which, who)
        self.change(which, *self.undoing(who))

    @rule(which=servers, who=people, name=names)
    def add_class(self, which: int, who: str, name: str) -> None:
        self.counted("add class", which, name, who)
        self.change(which, *self.classing("add", who, name))

    @rule(which=servers, who=people, name=names, to=names)
    def rename_class(self, which: int, who: str, name: str, to: str) -> None:
        self.counted("rename class", which, name, to, who)
        self.change(which, *self.classing("rename", who, name, to))

    @rule(which=servers, who=people, name=names, to=names)
    def merge_classes(self, which: int, who: str, name: str, to: str) -> None:
        self.counted("merge classes", which, name, to, who)
        self.change(which, *self.classing("merge", who, name, to))

    @rule(which=servers, who=people, name=names)
    def delete_class(self, which: int, who: str, name: str) -> None:
        self.counted("delete class", which, name, who)
        self.change(which, *self.classing("delete", who, name))

    @staticmethod
    def labelling(
        some: list[int], name: str | None, who: str, skip: bool = False
    ) -> tuple[str, dict[str, Any], Callable[[Paper], Paper]]:
        """A request that labels, and what it does to a book."""
        wanted = dict.fromkeys(some, name)
        body = {"rows": some, "label": name, "who": who, "skip": skip}
        return "api/labels", body, lambda paper: paper.labelled(wanted, who, "skip" if skip else "clear")

    @staticmethod
    def undoing(who: str) -> tuple[str, dict[str, Any], Callable[[Paper], Paper]]:
        """A request that takes back, and what it does to a book."""
        return "api/undo", {"who": who}, lambda paper: paper.undone(who)

    @staticmethod
    def classing(what: str, who: str, name: str, to: str = "") -> tuple[str, dict[str, Any], Callable[[Paper], Paper]]:
        """A request that changes a class, and what it does to a book."""
        body = {"do": what, "name": name, "who": who} | ({"to": to} if to else {})
        return "api/classes", body, lambda paper: paper.with_change_of_class(what, who, name, to)

    @rule(
        given=st.dictionaries(st.integers(0, 11), st.sampled_from([*NAMES, "unlabelled", ""]), min_size=1), who=people
    )
    def import_table(self, given: dict[int, str], who: str) -> None:
        """A command takes a CSV file into the book."""
        self.counted("import", given, who)
        listed = self.new(".csv")
        listed.write_text("name,label\n" + "".join(f"r{row},{name}\n" for row, name in given.items()))
        wanted = {row: None if name == "unlabelled" else name for row, name in given.items() if name}

        def act(paper: Paper) -> Paper:
            now = paper.labels(ROWS)
            new = {row: name for row, name in wanted.items() if name != now[row]}
            return paper.labelled(new, who) if new else paper

        status, paper = self.foretold(None, act)
        done = semimetric("labels", self.run, "--import", listed, "--who", who, "--json")
        self.same(done.code, 0 if status == 200 else 2, done.err)
        self.write(None, paper)

    # What happens to the file ------------------------------------------------------------------------------------

    def disturbed(self) -> bool:
        """Return True if the file was moved some steps ago: the steps shall not be moves alone."""
        return any(step.startswith(("moved", "deleted", "put", "junk")) for step in self.steps[-6:])

    def settle(self) -> None:
        """Let every server see a file that was made since it began, before that one is moved."""
        for server in self.servers:
            if server.file is None:
                self.seen(server)
                server.ask("api/undo", {"who": "nobody who labels"})

    @rule(how=st.sampled_from(["moved", "deleted"]))
    def take_away(self, how: str) -> None:
        """The file is renamed, or deleted."""
        if self.here is None or self.disturbed():
            return
        self.counted(how)
        self.settle()
        aside = self.new(".aside")
        self.book.rename(aside)
        if how == "deleted":
            aside.unlink()
        else:
            self.aside.append((aside, self.here))
        self.here = None

    @rule()
    def copy(self) -> None:
        """The file is copied."""
        if self.here is None or len(self.aside) > 2:
            return
        self.counted("copied")
        aside = self.new(".copy")
        shutil.copy(self.book, aside)
        self.aside.append((aside, File(self.here.paper)))

    @rule(which=st.integers(0, 3))
    def put(self, which: int) -> None:
        """A copy, or the file itself, is put in the place of the book."""
        if not self.aside:
            return
        path, file = self.aside.pop(-1 - which % len(self.aside))
        self.counted("put", file.paper is not None)
        self.settle()
        path.replace(self.book)
        self.here = file

    @rule()
    def replace_by_junk(self) -> None:
        """Somebody else's file is put there."""
        if self.disturbed():
            return
        self.counted("junk")
        self.settle()
        other = self.new(".junk")
        other.write_bytes(JUNK)
        other.replace(self.book)
        self.here = File(None)

    @rule(which=servers, what=st.sampled_from(["write", "use"]))
    def choose(self, which: int, what: str) -> None:
        """After the page said that the file was moved, somebody chooses."""
        if all(server.file is self.here for server in self.servers):
            return
        self.counted(f"choose {what}")
        server = self.server(which)
        paper = self.seen(server)
        is_book = self.here is not None and self.here.paper is not None
        fine = is_book if what == "use" else self.here is None
        found, answer = server.ask("api/book", {"do": what})
        self.same(found, 200 if fine else 400, f"{what} answers {answer}")
        if not fine:
            return
        if what == "write":
            self.here = File(paper)
        assert self.here is not None
        assert self.here.paper is not None
        self.here.paper = self.here.paper.brought(server.trained, server.learned)
        server.file = self.here
        self.look_at(server)

    # What happens to servers -------------------------------------------------------------------------------------

    @rule()
    def second_server(self) -> None:
        """Another server of the same run begins, or ends."""
        self.counted("second server")
        if len(self.servers) == 1:
            self.servers.append(self.started())
        else:
            self.servers.pop().kill()

    @rule(which=servers)
    def look(self, which: int) -> None:
        """A server sees what others wrote."""
        self.counted("look", which)
        self.look_at(self.server(which), wait=SOON)

    @rule(which=servers)
    def kill(self, which: int) -> None:
        """SIGKILL, and the server begins again."""
        self.counted("kill", which)
        self.restart(which)

    def restart(self, which: int) -> None:
        """Kill a server, and begin it again."""
        place = which % len(self.servers)
        self.servers[place].kill()
        self.servers[place] = self.started()
        self.look_at(self.servers[place])

    @rule(
        which=servers,
        who=people,
        some=rows,
        name=names,
        what=st.sampled_from(["label", "clear", "undo", "delete", "add"]),
        after=st.integers(0, 25),
    )
    def kill_in_flight(self, which: int, who: str, some: list[int], name: str, what: str, after: int) -> None:
        """SIGKILL while a request is under way: it was written as a whole, or nothing of it was."""
        if self.here is not None and self.here.paper is None:
            return
        self.counted("kill in flight", which, what, some, name, who, after)
        server = self.server(which)
        if what in ("delete", "add"):
            address, body, act = self.classing(what, who, name)
        elif what == "undo":
            address, body, act = self.undoing(who)
        else:
            address, body, act = self.labelling(some, name if what == "label" else None, who)
        status, paper = self.foretold(server, act)
        got: list[int] = []
        thread = threading.Thread(target=lambda: got.append(server.ask(address, body)[0]))
        thread.start()
        time.sleep(after / 1000)
        server.kill()
        thread.join()
        if got[0] == 0:
            self.counts["answer lost"] += 1
            status, paper = self.found_after(paper)
            self.counts["written without an answer"] += paper is not None
            got[0] = status
        self.same(got[0], status, "a request in flight")
        self.write(None, paper)
        self.restart(which)

    def found_after(self, paper: Paper | None) -> tuple[int, Paper | None]:
        """Which of the two the book is, after a request without an answer."""
        if paper is None or not self.book.exists():
            return 200, None
        return 200, paper if self.on_disk() == self.told(paper) else None

    @rule(
        which=servers,
        often=st.integers(0, 2),
        during=st.sampled_from(["nothing", "label", "rename", "kill"]),
        name=names,
    )
    def learn(self, which: int, often: int, during: str, name: str) -> None:
        """Learn again; somebody changes the book meanwhile, or the server is killed."""
        if often:
            return  # it takes seconds
        self.counted("learn again", which, during, name)
        server = self.server(which)
        self.look_at(server, wait=SOON)
        before = self.seen(server)
        status, answer = server.ask("api/learn", {"judge": False})
        self.same(status, 200, f"learning: {answer}")
        out = Path(answer["out"])
        if during == "kill":
            time.sleep(len(name) / 4)
            self.restart(which)
            return
        if during == "label":
            self.change(which, *self.labelling([3], name, "Ada"))
        elif during == "rename":
            self.change(which, *self.classing("rename", "Bo", "red", name))
        ended = time.monotonic() + 120
        while (facts := server.ask("api/run")[1])["learning"]:
            assert time.monotonic() < ended, "it does not end"
            time.sleep(0.05)
        learned = facts["outcome"] is not None and facts["outcome"]["run"] == str(out)
        labels = before.labels(ROWS)
        self.same(learned, len({*labels} - {None}) > 1, f"what was learned: {facts}")
        if learned:
            self.counts["learned"] += 1
            self.same(given_labels(load_run(out, "cpu").fitted), labels, "the labels that were learned from")
            server.trained, server.best = predictions_of(out)
            server.learned = before.identities()
        else:
            self.same(out.exists(), False, "a folder of nothing")
        self.look_at(server)


RULES = (
    *("label one", "label several", "clear", "skip", "undo", "add class", "rename class", "merge classes"),
    *("delete class", "import", "moved", "deleted", "copied", "put", "junk", "choose write", "choose use"),
    *("second server", "look", "kill", "kill in flight", "learn again"),
)
"""All that happens."""

LEAST = 5
"""How often each of these happens in a long run."""


def machine_on(folder: Path, killer: Killer) -> type[BookMachine]:
    """A machine whose runs are in a folder, with counts of its own."""
    run = make_run(folder)
    more: dict[str, Any] = {"run_once": run, "best_once": predictions_of(run)[1]}
    more |= {"killer": killer, "counts": Counter()}
    return type("BookMachineHere", (BookMachine,), more)


def play(machine: type[BookMachine], examples: int, steps: int, seed: int) -> None:
    """Let the machine run."""
    few = settings(
        max_examples=examples,
        stateful_step_count=steps,
        phases=[Phase.generate],
        derandomize=False,
        database=None,
        deadline=None,
        suppress_health_check=list(HealthCheck),
    )
    run_state_machine_as_test(with_seed(seed)(machine), settings=few)


def play_long(folder: Path, killer: Killer, steps: int, seed: int = 0) -> Tally:
    """Runs of the machine until there were so many steps, and each action happened five times."""
    tally, machine = Tally(), machine_on(folder, killer)
    for number in range(seed * 1000, seed * 1000 + 999):
        try:
            play(machine, 6, 50, number)
        except Exception as error:
            tally.wrong.append(f"labels, seed {number}: {error}")
        done = sum(machine.counts[name] for name in RULES)
        if done >= steps and (tally.wrong or min(machine.counts[name] for name in RULES) >= LEAST):
            break
    tally.tried = Counter({f"labels {name}": machine.counts[name] for name in RULES})
    return tally
