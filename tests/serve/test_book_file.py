"""The file of a label book: what is not ours stays as it is, nothing is called saved that is not, damage is named."""

from __future__ import annotations

import os
import sqlite3
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from semimetric.core.errors import InputError, RunError
from semimetric.data.book_recovery import recover
from semimetric.data.label_book import BookFile, MovedError, crc_of
from semimetric.serve.book import Given, LabelBook

NAMES, GIVEN = ("a", "b", "c", "d"), ("red", None, None, "blue")


def opened(path: Path) -> LabelBook:
    return LabelBook(path, Given(NAMES, GIVEN, classes=("blue", "red")))


def names(book: LabelBook) -> list[tuple[str, str | None]]:
    return [(found.name, found.key) for found in book.classes()]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "run.labels.sqlite"


FOREIGN = {
    "a table": b"path,label\na.png,x\nb.png,y",
    "text": b"notes without a newline",
    "nothing": b"",
    "another database": None,
    "a newer format": None,
}


@pytest.mark.parametrize("what", FOREIGN)
def test_a_file_of_others_stays_as_it_is(what: str, path: Path) -> None:
    content = FOREIGN[what]
    if content is None:
        db = sqlite3.connect(path)
        db.execute("CREATE TABLE t (x)")
        if what == "a newer format":
            db.executescript("PRAGMA application_id = 1397574722; PRAGMA user_version = 2")
        db.commit()
        db.close()
    else:
        path.write_bytes(content)
    before = path.read_bytes(), os.stat(path)[:9]
    with pytest.raises(InputError, match=r"run\.labels\.sqlite"):
        opened(path)
    assert (path.read_bytes(), os.stat(path)[:9]) == before


def test_links_pipes_and_folders_are_refused(path: Path) -> None:
    victim = path.with_name("victim.json")
    victim.write_text("{}")
    path.symlink_to(victim)
    with pytest.raises(InputError, match=r"run\.labels\.sqlite is a link"):
        opened(path)
    assert path.is_symlink()
    assert victim.read_text() == "{}"
    path.unlink()
    opened(path.with_name("real")).label([1], "red", "me")
    whole = path.with_name("real").read_bytes()
    path.symlink_to(path.with_name("real"))
    with pytest.raises(InputError, match=r"run\.labels\.sqlite is a link"):
        opened(path)
    assert path.with_name("real").read_bytes() == whole
    path.unlink()
    path.symlink_to(path.with_name("nothing"))
    with pytest.raises(InputError, match="link"):
        opened(path)
    path.unlink()
    os.mkfifo(path)
    with pytest.raises(InputError):
        opened(path)  # and does not wait for a writer
    path.unlink()
    path.mkdir()
    with pytest.raises(InputError):
        opened(path)


def test_a_journal_that_a_stranger_laid_beside_removes_no_file(path: Path) -> None:
    """The journal of a crash may name a file that SQLite removes after it has rolled back."""
    book = opened(path)
    book.label([1], "red", "me")
    book.close()
    victim, journal = path.with_name("precious"), Path(f"{path}-journal")
    name = str(victim).encode()
    mark = bytes.fromhex("d9d505f920a163d7")
    header = mark + bytes(4) + bytes(4) + (2).to_bytes(4, "big") + (512).to_bytes(4, "big") + (4096).to_bytes(4, "big")
    tail = name + len(name).to_bytes(4, "big") + sum(name).to_bytes(4, "big") + mark
    victim.write_bytes(b"")
    journal.write_bytes(header.ljust(512, b"\0") + (3).to_bytes(4, "big") + tail)
    with pytest.raises(InputError, match="journal"):
        opened(path)
    assert victim.exists()
    journal.unlink()
    journal.symlink_to(victim)
    with pytest.raises(InputError, match="journal"):
        opened(path)
    journal.unlink()
    assert opened(path).labels == ["red", "red", None, "blue"]


def test_a_book_with_triggers_or_views_of_a_stranger_is_refused(path: Path) -> None:
    opened(path).label([1], "red", "me")
    db = sqlite3.connect(path)
    db.execute("CREATE TRIGGER t AFTER INSERT ON events BEGIN DELETE FROM events; END")
    db.commit()
    with pytest.raises(RunError, match="damaged"):
        opened(path)


@pytest.mark.parametrize("how", ["moved", "removed", "replaced", "swapped"])
def test_nothing_is_called_saved_after_the_file_was_moved(how: str, path: Path) -> None:
    book = opened(path)
    book.label([1], "red", "me")
    kept = path.read_bytes()
    if how == "moved":
        path.rename(path.with_name("elsewhere"))
    elif how == "removed":
        path.unlink()
    else:
        other = path.with_name("other")
        other.write_bytes(kept if how == "replaced" else b"junk")
        other.replace(path)
    with pytest.raises(MovedError):
        book.label([2], "green", "me")
    assert book.labels == ["red", "red", None, "blue"]
    if how in ("moved", "removed"):
        with pytest.raises(InputError):
            book.choose("use")
        book.choose("write")
    elif how == "replaced":
        with pytest.raises(InputError):
            book.choose("write")
        assert path.read_bytes() == kept
        book.choose("use")
    else:
        with pytest.raises(InputError):
            book.choose("use")
        assert path.read_bytes() == b"junk"
        return
    book.label([2], "green", "me")
    assert opened(path).labels == ["red", "red", "green", "blue"]


def test_nothing_is_called_saved_after_a_damaged_file_was_chosen(path: Path) -> None:
    book = opened(path)
    book.label([1], "red", "me")
    content = bytearray(path.read_bytes())
    content[5000] ^= 1
    path.unlink()
    path.write_bytes(content[:8192])
    for act in (lambda: book.label([2], "green", "me"), lambda: book.choose("use"), lambda: book.label([2], "x", "me")):
        with pytest.raises(RunError):
            act()
    assert book.labels == ["red", "red", None, "blue"]
    path.unlink()
    book.choose("write")
    assert opened(path).labels == ["red", "red", None, "blue"]


def test_all_of_a_book_is_in_one_file_even_if_another_program_wanted_more(path: Path) -> None:
    opened(path).label([1], "red", "me")
    db = sqlite3.connect(path)
    db.execute("PRAGMA journal_mode = WAL")
    db.close()
    book = opened(path)
    book.label([2], "green", "me")
    assert [*path.parent.iterdir()] == [path]
    copy = path.with_name("copy")
    copy.write_bytes(path.read_bytes())
    assert opened(copy).labels == ["red", "red", "green", "blue"]


def test_a_file_that_was_put_back_is_gone_on_with(path: Path) -> None:
    book = opened(path)
    book.label([1], "red", "me")
    path.rename(path.with_name("elsewhere"))
    with pytest.raises(MovedError):
        book.label([2], "green", "me")
    path.with_name("elsewhere").rename(path)
    book.label([2], "green", "me")
    assert opened(path).labels == ["red", "red", "green", "blue"]


@pytest.mark.parametrize("seed", range(20))
def test_a_damaged_book_is_named_and_what_can_be_read_is_recovered(seed: int, path: Path) -> None:
    import random

    book = LabelBook(path, Given([f"example {row}" for row in range(400)], [None] * 400))
    for row in range(400):
        book.label([row], f"class {row % 7}", "me")
    whole = {entry.example: entry.label for entry in book.file.entries()}
    book.close()
    draw = random.Random(seed)
    content = bytearray(path.read_bytes())
    at = draw.randrange(100, len(content))
    if seed % 2:
        content[at] ^= 1 << draw.randrange(8)
    else:
        content[at & ~4095 : (at & ~4095) + 4096] = bytes(4096)  # a lost page
    path.write_bytes(content)
    try:
        found = {entry.example: entry.label for entry in BookFile(path).entries()}
    except (RunError, InputError) as error:
        assert "run.labels.sqlite" in str(error)  # noqa: PT017
        copy = path.with_name("copy.sqlite")
        counts = recover(path, copy)
        with BookFile(copy) as opened_copy:
            found = {entry.example: entry.label for entry in opened_copy.entries()}
        assert counts["events"] >= 300
        assert len(found) >= 300
        assert {*found.items()} <= {*whole.items()}
    else:
        assert found == whole  # the damage was in a place that holds nothing


def test_recovery_needs_no_head_of_the_file(path: Path) -> None:
    opened(path).label([1, 2], "green", "me")
    content = path.read_bytes()
    path.write_bytes(bytes(100) + content[100:])
    copy = path.with_name("copy")
    recover(path, copy)
    assert opened(copy).labels == ["red", "green", "green", "blue"]
    with pytest.raises(InputError):
        recover(path, copy)  # which is there


def test_a_full_disk_saves_all_of_a_step_or_nothing(path: Path) -> None:
    """The limit on the size of files is that of a process of its own, so that no other test meets it."""
    script = """
import resource, signal, sys
from pathlib import Path
from semimetric.core.errors import RunError
from semimetric.serve.book import Given, LabelBook
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
path = Path(sys.argv[1])
book = LabelBook(path, Given([f"example {row}" for row in range(900)], [None] * 900))
resource.setrlimit(resource.RLIMIT_FSIZE, (2000, resource.RLIM_INFINITY))
for size in (2000, 70_000):
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, resource.RLIM_INFINITY))
    try:
        book.label(range(900), "green", "me")
    except RunError as error:
        assert "run.labels.sqlite" in str(error), error
    else:
        raise SystemExit("the labels were taken for saved")
    assert book.labelled == (size > 2000), book.labelled
    assert len(list(path.parent.iterdir())) == (size > 2000), list(path.parent.iterdir())
    resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
    book.label([0], "blue", "me")
book.label([2], "blue", "me")
"""
    done = subprocess.run([sys.executable, "-c", script, str(path)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    with BookFile(path) as book:
        found = {entry.example: entry.label for entry in book.entries()}
    assert found == {"example 0": "blue", "example 2": "blue"}


def test_a_new_book_has_the_rights_of_any_new_file(path: Path) -> None:
    opened(path).label([1], "red", "me")
    plain = path.with_name("plain")
    plain.touch()
    assert stat.S_IMODE(path.stat().st_mode) == stat.S_IMODE(plain.stat().st_mode)


def test_a_flipped_bit_in_what_no_index_holds_is_damage(path: Path) -> None:
    opened(path).label([1], "red", "me")
    content = path.read_bytes()
    time = content.index(b"+00:00") - 5
    path.write_bytes(content[:time] + bytes([content[time] ^ 1]) + content[time + 1 :])
    with pytest.raises(RunError, match="checksum"):
        opened(path)


@pytest.mark.parametrize("value", [5, 1e999, b"x", None])
def test_a_forged_event_is_a_sentence(value: object, path: Path) -> None:
    book = opened(path)
    book.rename_class("red", "crimson", "me")
    book.close()
    db = sqlite3.connect(path)
    row = [*db.execute("SELECT * FROM events WHERE event = 'rename class'").fetchone()]
    row[8] = value
    db.execute("UPDATE events SET value = ?, crc = ? WHERE number = ?", (value, crc_of(row[:-1]), row[0]))
    db.commit()
    db.close()
    with pytest.raises(RunError, match="damaged"):
        opened(path)


@pytest.mark.parametrize("name", ["a b", "50%", "x?y", "#1", "ü", "caf\udce9", "new\nline", "'"])
def test_a_book_lies_in_any_folder(name: str, tmp_path: Path) -> None:
    folder = tmp_path / name
    folder.mkdir()
    opened(folder / "run.labels.sqlite").label([1], "red", "me")
    assert opened(folder / "run.labels.sqlite").labels == ["red", "red", None, "blue"]
    assert [*folder.iterdir()] == [folder / "run.labels.sqlite"]
    assert opened(Path(f"/{folder}") / "run.labels.sqlite").labelled == 3


def test_a_journal_that_was_left_where_the_book_was_is_named(path: Path) -> None:
    """A killed program leaves one, and a person moves the book without it."""
    book = opened(path)
    book.label([1], "red", "me")
    path.rename(path.with_name("elsewhere"))
    journal = Path(f"{path}-journal")
    journal.write_bytes(bytes(512))  # as SQLite begins one
    with pytest.raises(MovedError):
        book.label([2], "green", "me")
    with pytest.raises(InputError, match="-journal"):
        book.choose("write")
    with pytest.raises(InputError, match="-journal"):
        opened(path).label([2], "green", "me")
    assert not path.exists()
    path.with_name("elsewhere").rename(path)
    assert opened(path).labels == ["red", "red", None, "blue"]
    path.rename(path.with_name("elsewhere"))
    journal.unlink()
    book.choose("write")
    book.label([2], "green", "me")
    assert opened(path).labels == ["red", "red", "green", "blue"]
