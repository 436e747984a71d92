"""A state machine of the label book: real servers of the page, real kills, and a book that says what was acknowledged.

What each request must answer is foretold by ``helpers.book_model``. A request that was under way when its server was
killed may have been written or not; the model then goes on with what the book says, if it is one of the two.
"""

from __future__ import annotations

import shutil
import threading
import time
import traceback
from collections import Counter
from pathlib import Path
from typing import Any

from helpers.book_model import Paper
from helpers.book_servers import JUNK, ROWS, SOON, BookStage, Broken, File, make_run, predictions_of, request_of
from helpers.command import semimetric
from helpers.damage import Tally
from helpers.killed import Killer
from hypothesis import HealthCheck, Phase, settings
from hypothesis import seed as with_seed
from hypothesis import strategies as st
from hypothesis.stateful import rule, run_state_machine_as_test

from semimetric.model.folder import load_run
from semimetric.serve.labels import given_labels

SERVER = ("semimetric.serve.page.server", "semimetric.serve.page.desk", "uvicorn", "sklearn.manifold")
"""What a server imports, so that it begins at once."""

NAMES = ["red", "blue", "green", "teal", "9", "grün & <b>"]
REQUESTS = (
    *("label one", "label several", "clear", "skip", "undo"),
    *("add class", "rename class", "merge classes", "delete class"),
)

names, people, servers = st.sampled_from(NAMES), st.sampled_from(["Ada", "Bo"]), st.integers(0, 1)
rows, requests = st.lists(st.integers(0, 11), min_size=1, max_size=4, unique=True), st.sampled_from(REQUESTS)
asked = st.tuples(servers, requests, people, rows, names, names)
tables = st.dictionaries(st.integers(0, 11), st.sampled_from([*NAMES, "unlabelled", ""]), min_size=1)


class BookMachine(BookStage):
    """Servers of one run, people who label on them, and a file of labels that is moved and replaced."""

    # What people do ----------------------------------------------------------------------------------------------

    def ask(self, asked: list[tuple[int, str, str, list[int], str, str]]) -> None:
        """Two people ask for changes, one after another."""
        for which, *request in asked:
            self.counted(str(request[0]), which, *request[1:])
            self.change(which, *request_of(*request))  # type: ignore[arg-type]

    morning = rule(asked=st.lists(asked, min_size=1, max_size=6))(ask)
    evening = rule(asked=st.lists(asked, min_size=1, max_size=6))(ask)

    @rule(given=tables, who=people)
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
        paper = self.first if server.file is None else server.file.paper
        is_book = self.here is not None and self.here.paper is not None
        fine = is_book if what == "use" else self.here is None
        found, answer = server.ask("api/book", {"do": what})
        self.same(found, 200 if fine else 400, f"{what} answers {answer}")
        if not fine:
            return
        if what == "write":
            self.here = File(paper)
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

    @rule(which=servers, again=st.booleans())
    def kill(self, which: int, again: bool) -> None:
        """SIGKILL, and the server begins again, or that of the run which learned last from the same book."""
        learned = sorted(run.parent for run in self.place.glob("run-again-*/result.json"))
        is_book = self.here is not None and self.here.paper is not None
        run = learned[-1] if again and learned and is_book else None
        self.counted("kill" if run is None else "serve what learned", which)
        self.restart(which, run)

    @rule(
        which=servers,
        who=people,
        some=rows,
        name=names,
        what=requests,
        after=st.integers(0, 25),
    )
    def kill_in_flight(self, which: int, who: str, some: list[int], name: str, what: str, after: int) -> None:
        """SIGKILL while a request is under way: it was written as a whole, or nothing of it was."""
        if self.here is not None and self.here.paper is None:
            return
        self.counted("kill in flight", which, what, some, name, who, after)
        server = self.server(which)
        address, body, act = request_of(what, who, some, name, "teal")
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
            self.change(which, *request_of("label one", "Ada", [3], name, ""))
        elif during == "rename":
            self.change(which, *request_of("rename class", "Bo", [], "red", name))
        ended = time.monotonic() + 120
        while (facts := server.ask("api/run")[1])["learning"]:
            self.same(time.monotonic() < ended, True, "learning ends")
            time.sleep(0.05)
        learned = facts["outcome"] is not None and facts["outcome"]["run"] == str(out)
        labels = before.labels(ROWS)
        self.same(learned, len({*labels} - {None}) > 1, f"what was learned: {facts}")
        if learned:
            self.counts["learned"] += 1
            self.same(given_labels(load_run(out, "cpu").fitted), labels, "the labels that were learned from")
            server.best = predictions_of(out)
            server.learned = before.identities()
        else:
            self.same(out.exists(), False, "a folder of nothing")
        self.look_at(server)


RULES = (
    *REQUESTS,
    *("import", "moved", "deleted", "copied", "put", "junk", "choose write", "choose use"),
    *("second server", "look", "kill", "serve what learned", "kill in flight", "learn again"),
)
"""All that happens."""

LEAST = 5
"""How often each of these happens in a long run."""


def machine_on(folder: Path, killer: Killer) -> type[BookMachine]:
    """A machine whose runs are in a folder, with counts of its own."""
    run = make_run(folder)
    more: dict[str, Any] = {"run_once": run, "best_once": predictions_of(run)}
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
        except (Broken, Exception) as error:
            shown = "".join(traceback.format_exception(error))
            tally.wrong.append(f"labels, seed {number}: {error if isinstance(error, Broken) else shown[-3000:]}")
        done = sum(machine.counts[name] for name in RULES)
        if done >= steps and (tally.wrong or min(machine.counts[name] for name in RULES) >= LEAST):
            break
    tally.tried = Counter({f"labels {name}": machine.counts[name] for name in RULES})
    return tally
