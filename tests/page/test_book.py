"""The file of labels: append-only, crash-safe, and read by ``fit --labels``."""

from __future__ import annotations

import csv
import subprocess
import sys
from pathlib import Path

import pytest
from helpers.own_photos import COLOURS, write_photo

from semimetric.core.errors import InputError, RunError
from semimetric.data import read_collection
from semimetric.serve.page.book import LabelBook, check_label

NAMES, GIVEN = ("a", "b", "c", "d"), ("red", None, None, "blue")


def opened(path: Path) -> LabelBook:
    return LabelBook(path, NAMES, GIVEN)


def test_labels_survive_without_being_closed(tmp_path: Path) -> None:
    path = tmp_path / "run.labels.csv"
    book = opened(path)
    assert not path.exists()
    book.set([1, 2], "red", "me")
    book.set([3], None, "me")
    book.close()
    again = opened(path)
    assert again.labels == ["red", "red", "red", None]
    assert again.undo("me").rows == (3,)
    assert again.undo("me").rows == (1, 2)
    assert again.undo("me") is None
    assert again.labels == list(GIVEN)
    again.set([0], "blue", "me")
    again.close()
    last = opened(path)
    assert last.labels == ["blue", None, None, "blue"]
    assert [change.number for change in last.changes] == [3]
    assert last.undo("me").number == 3
    last.close()
    rows = list(csv.DictReader(path.read_text().splitlines()))
    assert [row["change"] for row in rows] == ["0", "0", "1", "1", "2", "-2", "-1", "-1", "3", "-3"]
    assert {row["who"] for row in rows} == {"run", "me"}
    assert [row["source"] for row in rows[:5]] == ["", "", "suggested", "suggested", ""]  # b and c had no label
    assert all(row["when"].endswith("+00:00") for row in rows)


def test_a_line_that_a_crash_cut_off_is_dropped(tmp_path: Path) -> None:
    path = tmp_path / "labels.csv"
    book = opened(path)
    book.set([1], "red", "me")
    book.close()
    whole = path.read_bytes()
    path.write_bytes(whole + b"c,bl")
    again = opened(path)
    assert again.labels == ["red", "red", None, "blue"]
    again.set([2], "green", "me")
    again.close()
    assert path.read_bytes().startswith(whole + b"c,green,")


def test_a_file_of_an_earlier_version_keeps_its_columns(tmp_path: Path) -> None:
    path = tmp_path / "l.csv"
    path.write_text("path,label,who,when,change\na,red,run,now,0\nb,red,me,now,1\n")
    book = opened(path)
    book.set([2], "green", "me")
    book.close()
    assert opened(path).labels == ["red", "red", "green", "blue"]
    assert {line.count(",") for line in path.read_text().splitlines()} == {4}


def test_examples_that_a_run_has_beyond_the_book_are_taken_in(tmp_path: Path) -> None:
    book = opened(tmp_path / "l.csv")
    book.set([1], "red", "me")
    book.grow((*NAMES, "e", "f", "g"), (*GIVEN, None, "red", "blue"), {6})
    assert book.labels == ["red", "red", None, "blue", None, "red", "blue"]
    assert book.labelled == 5
    book.set([4, 5], "green", "me")
    assert book.sources[4:] == ["suggested", "", "suggested"]
    book.undo("me")
    assert book.labels[4:] == [None, "red", "blue"]
    with pytest.raises(RunError, match="has other examples than the labels in"):
        book.grow(("b", "a", *NAMES[2:]), GIVEN)
    book.close()


def test_two_pages_cannot_write_the_same_file(tmp_path: Path) -> None:
    book = opened(tmp_path / "l.csv")
    book.set([1], "red", "me")
    with pytest.raises(RunError, match="in use by another page"):
        opened(tmp_path / "l.csv")
    book.close()


def test_what_is_no_file_of_labels_is_refused(tmp_path: Path) -> None:
    (tmp_path / "l.csv").write_text("a,b\n1,2\n")
    with pytest.raises(RunError, match="is no file of labels"):
        opened(tmp_path / "l.csv")
    (tmp_path / "m.csv").write_text("path,label,who,when,change\na,red,me,now,first\n")
    with pytest.raises(RunError, match="damaged in line 2"):
        opened(tmp_path / "m.csv")


@pytest.mark.parametrize(
    "label", ["", " ", "-1", "nan", "=1+1", "@x", "+x", "-x", "a\x1b[2J", "a\nb", "x" * 201, "\u202ex"]
)
def test_labels_that_are_none_or_hide_something_are_refused(label: str) -> None:
    with pytest.raises(InputError):
        check_label(label)


def test_labels_are_tidied_and_html_is_just_text() -> None:
    assert check_label(" <b>red</b> ") == "<b>red</b>"
    assert check_label("-3") == "-3"


def test_fit_reads_the_last_label_of_each_photograph(tmp_path: Path) -> None:
    names = []
    for number, (name, colour) in enumerate(COLOURS.items()):
        write_photo(tmp_path / "photos" / f"{name}.png", colour, number)
        names.append(f"{name}.png")
    book = LabelBook(tmp_path / "run.labels.csv", names, [None] * 3)
    book.set([0, 1], "warm", "me")
    book.set([1], "cold", "me")
    book.set([2], "cold", "me")
    book.undo("me")
    book.close()
    found = read_collection(tmp_path / "photos", tmp_path / "run.labels.csv")
    assert dict(zip(found.names, found.labels, strict=True)) == {
        "red.png": "warm",
        "green.png": "cold",
        "blue.png": None,
    }
    assert not found.skipped
    assert found.suggested == {"red.png", "green.png", "blue.png"}


def test_a_file_that_another_page_made_meanwhile_stays(tmp_path: Path) -> None:
    path = tmp_path / "run.labels.csv"
    one, other = opened(path), opened(path)
    one.set([1], "red", "me")
    with pytest.raises(RunError, match="made by another page"):
        other.set([2], "blue", "me")
    one.set([2], "green", "me")
    one.close()
    assert opened(path).labels == ["red", "red", "green", "blue"]


def test_a_full_disk_leaves_no_half_line(tmp_path: Path) -> None:
    """The limit on the size of files is that of a process of its own, so that no other test meets it."""
    path = tmp_path / "run.labels.csv"
    script = """
import resource, signal, sys
from pathlib import Path
from semimetric.core.errors import RunError
from semimetric.serve.page.book import LabelBook
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
path = Path(sys.argv[1])
book = LabelBook(path, ("a", "b", "c", "d"), ("red", None, None, "blue"))
book.set([1], "red", "me")
size = path.stat().st_size
resource.setrlimit(resource.RLIMIT_FSIZE, (size + 10, resource.RLIM_INFINITY))
try:
    book.set([2], "green", "me")
except RunError as error:
    assert "was not saved" in str(error), error
else:
    raise SystemExit("the label was taken for saved")
assert path.stat().st_size == size, path.read_text()
assert book.labels[2] is None
resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
book.set([2], "blue", "me")
"""
    done = subprocess.run([sys.executable, "-c", script, str(path)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert opened(path).labels == ["red", "red", "blue", "blue"]


def test_a_file_whose_maker_was_killed_is_begun_again(tmp_path: Path) -> None:
    path = tmp_path / "run.labels.csv"
    path.write_bytes(b"path,lab")
    book = opened(path)
    book.set([1], "red", "me")
    book.close()
    assert opened(path).labels == ["red", "red", None, "blue"]


@pytest.mark.parametrize("who", ["", " ", "a\nb", "=1+1", "\ud800", "x" * 201])
def test_who_labels_is_written_in_every_line_or_refused(who: str, tmp_path: Path) -> None:
    book = opened(tmp_path / "run.labels.csv")
    for act in (lambda: book.set([1], "red", who), lambda: book.undo(who)):
        with pytest.raises(InputError, match="your name"):
            act()
    assert not book.path.exists()
