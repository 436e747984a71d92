"""Files of others in every place where a command writes: they stay as they are, or what ``--replace`` names is new."""

from __future__ import annotations

import os
import random
import shutil
import signal
import stat
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from types import FrameType
from typing import Any
from unittest.mock import patch

from helpers.command import Done, semimetric
from helpers.damage import HANGS, Tally
from helpers.kinds import called
from helpers.struck import NETWORK, Words

from semimetric.core.files import TEMPORARY
from semimetric.core.origin import page_key
from semimetric.serve.book import labels_file
from semimetric.serve.page.desk import Desk

MINE = b"what somebody else wrote, without a newline"
OWN = ("state", "cache")
"""Folders of the user in which a command keeps what it can do without."""

_heard: list[set[Path]] = []


@dataclass(frozen=True)
class Writer:
    """A command that writes below a folder. ``brings`` are runs of ``home`` that it changes."""

    name: str
    words: Callable[[Path, Path], Words]
    brings: tuple[str, ...] = ()
    has_replace: bool = True
    extra: str = "numpy"

    def act(self, home: Path, folder: Path, replace: bool = False) -> Done:
        """Run it."""
        if self.name == "page":
            return called(lambda: _label(folder / "net"))
        return semimetric(*self.words(home, folder), *(["--replace"] if replace else []))


def _label(run: Path) -> None:
    page_key(run)
    book = Desk(run).book
    try:
        book.label([3], "blue", "someone")
    finally:
        book.close()


def _fit(home: Path, out: Path) -> Words:
    return ("fit", home / "wine.npz", *NETWORK, "-o", out / "fitted")


def _export(home: Path, out: Path) -> Words:
    return ("export", out / "net", "--onnx", "--check", home / "wine.npz")


WRITERS = (
    Writer("fit", _fit, has_replace=False),
    Writer("fit resume", lambda home, out: (*_fit(home, out), "--resume"), has_replace=False),
    *(
        Writer(
            f"embed {end}", lambda home, out, end=end: ("embed", home / "run", home / "new.npy", "-o", out / f"e.{end}")
        )
        for end in ("npy", "npz", "csv")
    ),
    Writer("predict", lambda home, out: ("predict", home / "run", home / "new.npy", "-o", out / "p.csv")),
    Writer("search", lambda home, out: ("search", home / "run", home / "new.npy", "-k", 1, "-o", out / "s.csv")),
    Writer("suggest", lambda home, out: ("suggest", home / "net", "-n", 3, "-o", out / "s.csv")),
    Writer("labels", lambda home, out: ("labels", home / "net", "-o", out / "l.csv")),
    Writer("import", lambda home, out: ("labels", out / "net", "--import", home / "labels.csv"), ("net",), False),
    Writer("page", lambda home, out: (), ("net",), False, "starlette"),
    Writer("recover", lambda home, out: ("labels", home / "net", "--recover", out / "copy"), (), False),
    Writer("add", lambda home, out: ("add", out / "net", home / "more.npy"), ("net",), False),
    Writer(
        "evaluate", lambda home, out: ("evaluate", home / "run", home / "wine.npz", "-o", out / "scores"), (), False
    ),
    Writer("report", lambda home, out: ("report", home / "net", "-o", out / "report"), extra="matplotlib"),
    Writer(
        "compare",
        lambda home, out: ("compare", home / "net", home / "run", "-o", out / "compared"),
        extra="matplotlib",
    ),
    *(
        Writer(
            f"index {end}", lambda home, out, end=end: ("index", home / "run", "--to", out / f"i.{end}"), extra=extra
        )
        for end, extra in (("npy", "numpy"), ("faiss", "faiss"), ("db", "milvus_lite"))
    ),
    Writer("export", lambda home, out: (*_export(home, home), "-o", out / "m.onnx"), extra="onnxscript"),
    Writer("export in the run", _export, ("net",), extra="onnxscript"),
    Writer(
        "tune",
        lambda home, out: ("tune", home / "wine.npz", "--method", "lrml", "--trials", 2, "-o", out / "study"),
        has_replace=False,
        extra="optuna",
    ),
)

KINDS: dict[str, Callable[[Path, Path], object]] = {
    "file": lambda path, victim: path.write_bytes(MINE),
    "empty file": lambda path, victim: path.touch(),
    "link": lambda path, victim: path.symlink_to(victim / "mine"),
    "link to a folder": lambda path, victim: path.symlink_to(victim),
    "link to nothing": lambda path, victim: path.symlink_to(victim / "nothing"),
    "pipe": lambda path, victim: os.mkfifo(path),
    "folder": lambda path, victim: shutil.copytree(victim, path),
}


def make_foreign(home: Path) -> Path:
    """What the writers need beside ``make_home``: a book of labels next to a run."""
    if not labels_file(home / "net").exists():
        _label(home / "net")
    return home


def lay_foreign(home: Path, folder: Path, count: int, seed: int = 0, names: tuple[str, ...] = ()) -> Tally:
    """Commands that find something of others where they write; ``names`` are of writers, all without."""
    tally, draw = Tally(), random.Random(seed)
    writers = [writer for writer in WRITERS if find_spec(writer.extra) and (not names or writer.name in names)]
    places: dict[str, tuple[list[str], set[str]]] = {}
    for number in range(count):
        writer = writers[number % len(writers)]
        with scene(writer, home, folder) as out:
            if writer.name not in places:
                places[writer.name] = _places(writer, home, out)
        known, final = places[writer.name]
        place = draw.choice(known)
        kind = draw.choice([kind for kind in KINDS if not _is_theirs(kind, place)])
        replace = writer.has_replace and draw.random() < 0.4
        what = f"#{number} {kind} at {place}{' --replace' if replace else ''}"
        with scene(writer, home, folder) as out:
            lay_one(tally, writer, home, out, place, kind, replace, what, place in final)
    return tally


def _is_theirs(kind: str, place: str) -> bool:
    """Return True for what a user may lay there so that it is used, and for what a killed process leaves so."""
    is_folder = place in (*OWN, f"{OWN[0]}/semimetric")
    left = place.endswith(("-journal", "-wal", ".semimetric-lock"))
    return (is_folder and kind in ("folder", "link to a folder")) or (left and kind == "empty file")


def lay_one(
    tally: Tally,
    writer: Writer,
    home: Path,
    out: Path,
    place: str,
    kind: str,
    replace: bool,
    what: str,
    is_output: bool,
) -> None:
    """One command with one thing of others; what it did to that is noted."""
    named, victim, path = f"foreign {writer.name}", out.parent / "victim", out / place
    victim.mkdir()
    (victim / "mine").write_bytes(MINE)
    path.parent.mkdir(parents=True, exist_ok=True)
    KINDS[kind](path, victim)
    seen = path / "mine" if kind == "folder" else path
    mine, others, files = _state(seen), _state(victim), _files(out)
    mine_of_others = _state(victim / "mine")

    def act() -> Done:
        with _in_time():
            return writer.act(home, out, replace)

    done = tally.check(named, what, act)
    named_by_user = kind == "link to a folder" and place in ("report", "compared", "scores")
    if _state(victim) != others and not (named_by_user and _state(victim / "mine") == mine_of_others):
        tally.wrong.append(f"{named} {what}: what a link led to was changed")
    may_replace = replace and is_output and kind not in ("pipe", "folder")
    if _state(seen) != mine and not may_replace:
        tally.wrong.append(f"{named} {what}: it was changed, code {done and done.code} {done and done.err[-200:]}")
    if done is None:
        return
    new = {name for name in _files(out) - files if not name.startswith(OWN) and name != "i.db/LOCK"}
    if done.code and new:
        tally.wrong.append(f"{named} {what}: refused after it had written {sorted(new)[:4]}: {done.err[-200:]}")
    if not done.code and is_output and not replace and "folder" not in kind and not place.startswith(OWN):
        tally.wrong.append(f"{named} {what}: success, and nothing is there")


@contextmanager
def scene(writer: Writer, home: Path, folder: Path) -> Iterator[Path]:
    """A folder for a command, with a state and a cache of its own."""
    place = folder / "foreign"
    shutil.rmtree(place, ignore_errors=True)
    out = place / "out"
    out.mkdir(parents=True)
    for name in writer.brings:
        shutil.copytree(home / name, out / name)
    with patch.dict(os.environ, {"XDG_STATE_HOME": str(out / OWN[0]), "SEMIMETRIC_CACHE": str(out / OWN[1])}):
        yield out


def _places(writer: Writer, home: Path, out: Path) -> tuple[list[str], set[str]]:
    """Where a command writes, and what of that stays."""
    before = _files(out, folders=True)
    with _listening(out) as heard:
        done = writer.act(home, out)
    assert done.code == 0, (writer.name, done.err)
    final = _files(out, folders=True) - before
    touched = {str(path.relative_to(out)) for path in heard if path != out} | final
    if writer.name in ("import", "page"):
        touched |= {f"net.labels.sqlite-{end}" for end in ("journal", "wal", "shm")}
    hidden = (TEMPORARY, "-loading.db/")
    return sorted(name for name in touched - before if not any(part in name for part in hidden)), final


def _files(folder: Path, folders: bool = False) -> set[str]:
    found = (path for path in folder.rglob("*") if folders or path.is_symlink() or not path.is_dir())
    return {str(path.relative_to(folder)) for path in found}


def _state(path: Path) -> Any:
    """All that can be seen of a path, without following a link."""
    try:
        found = os.lstat(path)
    except FileNotFoundError:
        return None
    seen: tuple[Any, ...] = found.st_mode, found.st_ino, found.st_mtime_ns, found.st_nlink
    if stat.S_ISLNK(found.st_mode):
        return *seen, os.readlink(path)
    if stat.S_ISDIR(found.st_mode):
        return *seen, {inner.name: _state(inner) for inner in sorted(path.iterdir())}
    return *seen, path.read_bytes() if stat.S_ISREG(found.st_mode) else None


@contextmanager
def _in_time() -> Iterator[None]:
    """Raise where a command takes so long that it hangs, as on a pipe without a writer."""

    def end(number: int, frame: FrameType | None) -> None:
        raise RuntimeError(f"hung for {HANGS:.0f} s")

    before = signal.signal(signal.SIGALRM, end)
    others = signal.setitimer(signal.ITIMER_REAL, HANGS)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, *others)
        signal.signal(signal.SIGALRM, before)


def _hear(event: str, values: tuple[Any, ...]) -> None:
    if not _heard or event not in ("open", "os.mkdir", "os.rename", "os.link", "os.symlink"):
        return
    written = event != "open" or values[2] & (os.O_WRONLY | os.O_RDWR | os.O_CREAT)
    name = values[1] if event in ("os.rename", "os.link", "os.symlink") else values[0]
    if written and isinstance(name, str | bytes | os.PathLike):
        _heard[-1].add(Path(os.path.abspath(os.fsdecode(name))))


@contextmanager
def _listening(folder: Path) -> Iterator[set[Path]]:
    """Collect the paths below a folder that are written meanwhile; the set is filled at the end."""
    if not hasattr(_listening, "hooked"):
        sys.addaudithook(_hear)  # it cannot be removed
        _listening.hooked = True  # type: ignore[attr-defined]
    found: set[Path] = set()
    _heard.append(set())
    try:
        yield found
    finally:
        found |= {path for path in _heard.pop() if path.is_relative_to(folder)}
