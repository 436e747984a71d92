"""Files that are moved or replaced under an open page: photographs, the run, the table and the book of labels."""

from __future__ import annotations

import os
import random
import shutil
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from helpers.book_servers import Server, begin_server
from helpers.damage import HANGS, Tally
from helpers.killed import Killer

from semimetric.data.label_book import BookFile
from semimetric.serve.book import labels_file

ANSWERS = (200, 400, 404, 409, 503)
CASES = 25
"""Cases with one server."""

PUT: dict[str, Callable[[Path, Path], object]] = {
    "nothing": lambda path, aside: None,
    "junk": lambda path, aside: path.write_bytes(b"junk"),
    "a folder": lambda path, aside: path.mkdir(),
    "a pipe": lambda path, aside: os.mkfifo(path),
    "a link to nothing": lambda path, aside: path.symlink_to(path.with_name("nowhere")),
    "a copy": lambda path, aside: shutil.copytree(aside, path) if aside.is_dir() else shutil.copy(aside, path),
}
Asked = tuple[str, Any]


@contextmanager
def replaced(path: Path, what: str) -> Iterator[None]:
    """Let something else be where a file or folder was."""
    aside = path.with_name(f"{path.name}.aside")
    path.rename(aside)
    PUT[what](path, aside)
    try:
        yield
    finally:
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path)
        else:
            path.unlink(missing_ok=True)
        aside.rename(path)


def requests_of(draw: random.Random, rows: int) -> list[Asked]:
    """A few requests; the body of one that only reads is None."""
    row = draw.randrange(rows)
    known: list[Asked] = [
        *[(name, None) for name in ("api/run", "api/points", f"api/small/{row}", f"api/large/{row}")],
        *[(f"api/list/{name}", None) for name in ("queue", "errors", "duplicates", "outliers")],
        (f"api/similar/{row}", None),
        ("api/examples", {"rows": [row]}),
        ("api/export", {"rows": [row]}),
        ("api/undo", {"who": "someone"}),
        *[("api/labels", {"rows": [row], "label": draw.choice(["red", "blue"]), "who": "someone"})] * 4,
        ("api/book", {"do": "use"}),
    ]
    return [*draw.sample(known, 5), *([("api/learn", {"judge": False})] if draw.random() < 0.1 else [])]


def move_files(home: Path, folder: Path, killer: Killer, count: int, seed: int = 0) -> Tally:
    """Requests to a page whose files were moved: a sentence or an answer, and what was saved is in the book."""
    tally, draw = Tally(), random.Random(seed)
    for begin in range(0, count, CASES):
        run = draw.choice([home / "looks", home / "plain" / "run"])
        server = begin_server(killer, run, folder)
        assert isinstance(server, Server), server
        try:
            for number in range(begin, min(begin + CASES, count)):
                _one(tally, draw, server, run, f"#{number}")
        finally:
            server.kill()
            for left in (*run.parent.glob("*-again-*"), labels_file(run)):
                shutil.rmtree(left) if left.is_dir() else left.unlink(missing_ok=True)
    return tally


def _one(tally: Tally, draw: random.Random, server: Server, run: Path, number: str) -> None:
    """One file that is moved, and requests while it is."""
    book = labels_file(run)
    server.ask("api/labels", {"rows": [0], "label": "red", "who": "someone"})  # so that there is a book
    photos = sorted((run.parent / "photos").rglob("*.png")) if run.name == "looks" else [run.parent / "t.csv"]
    moved = draw.choice([book, run, draw.choice(sorted(run.iterdir())), photos[0].parent, *draw.sample(photos, 1)])
    moved = run.parent / "t.csv" if moved == run.parent else moved
    what = draw.choice(list(PUT))
    kind = f"moved {'book' if moved == book else 'run' if run in (moved, moved.parent) else 'example'}"
    with replaced(moved, what):
        for address, body in requests_of(draw, 15):
            tally.tried[kind] += 1
            began = time.monotonic()
            status, answer = server.ask(address, body)
            named = f"{kind} {number} {what} at {moved.name}, {address}: {status} {str(answer)[:200]}"
            if status not in ANSWERS or time.monotonic() - began > HANGS:
                tally.wrong.append(named)
            if status >= 400 and not str(answer).strip():
                tally.wrong.append(f"{named} without a sentence")
            if address == "api/labels" and status == 200:
                _check_saved(tally, book, body, server, named)
    while (answer := server.ask("api/run")[1]) and answer.get("learning"):
        time.sleep(0.05)


def _check_saved(tally: Tally, book: Path, body: dict[str, Any], server: Server, named: str) -> None:
    """What was acknowledged is in the file of the book."""
    name = server.ask("api/examples", {"rows": body["rows"]})[1][0]["name"]
    with BookFile(book) as opened:
        last = opened.entries()[-1]
    if (last.example, last.label) != (name, body["label"]):
        tally.wrong.append(f"{named} was not saved: {last}")
