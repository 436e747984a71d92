"""The label book: what people say of examples is kept, comes back, and stays with its example."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from helpers.command import semimetric
from helpers.own_photos import COLOURS, write_photo

from semimetric.core.errors import InputError, RunError
from semimetric.data import read_collection
from semimetric.data.label_book import BookFile
from semimetric.serve.book import Given, LabelBook, check_label, labels_file
from semimetric.serve.book_import import import_labels
from semimetric.serve.csv_file import write_table

NAMES, GIVEN = ("a", "b", "c", "d"), ("red", None, None, "blue")


RUN = Given(NAMES, GIVEN, classes=("blue", "red"))


def opened(path: Path) -> LabelBook:
    return LabelBook(path, RUN)


def names(book: LabelBook) -> list[tuple[str, str | None]]:
    return [(found.name, found.key) for found in book.classes()]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "run.labels.sqlite"


def test_labels_survive_without_being_closed(path: Path) -> None:
    book = opened(path)
    assert book.labels == [*GIVEN]
    assert not path.exists()
    book.label([1, 2], "red", "me")
    book.label([3], None, "me")
    again = opened(path)
    assert again.labels == ["red", "red", "red", None]
    assert (again.undo("me").rows, again.undo("me").rows, again.undo("me")) == ((3,), (1, 2), None)
    assert again.labels == [*GIVEN]
    assert book.refresh() == (1, 2, 3)
    assert book.labels == [*GIVEN]
    assert opened(path).undo("me") is None
    assert [*path.parent.iterdir()] == [path]  # nothing stays beside it


def test_a_step_that_changes_nothing_makes_no_file(path: Path) -> None:
    book = opened(path)
    assert book.undo("me") is None
    for act in (lambda: book.label([9], "red", "me"), lambda: book.rename_class("x", "y", "me")):
        with pytest.raises(InputError):
            act()
    assert not path.exists()


def test_undo_takes_back_the_last_change_of_its_person_alone(path: Path) -> None:
    book = opened(path)
    book.label([1], "red", "Ada")
    book.label([1, 2], "green", "Bo")
    assert book.undo("Ada").rows == ()  # Bo's label stands
    assert book.labels == ["red", "green", "green", "blue"]
    book.label([1], None, "Ada")
    book.undo("Bo")
    assert book.labels == ["red", None, None, "blue"]
    assert names(book) == [("blue", "1"), ("red", "2")]  # green came and went with Bo's change
    book.undo("Ada")
    assert book.undo("Ada") is None
    assert book.labels == [*GIVEN]


def test_classes_keep_key_and_colour_for_good(path: Path) -> None:
    book = LabelBook(path, Given(NAMES, GIVEN, classes=("blue", "7", "red")))
    assert names(book) == [("blue", "1"), ("7", "7"), ("red", "2")]
    book.label([1], "green", "me")
    book.rename_class("blue", "sea", "me")
    book.delete_class("red", "me")
    assert book.labels == [None, "green", None, "sea"]
    assert names(book) == [("sea", "1"), ("7", "7"), ("green", "3")]
    assert book.names_of(RUN) == ["sea", None]
    book.merge_classes("green", "sea", "you")
    assert book.labels == [None, "sea", None, "sea"]
    book.label([2], "green", "me")  # the class is used again, but for its earlier examples
    assert book.labels == [None, "sea", "green", "sea"]
    assert names(book)[-1] == ("green", "3")
    book.undo("you")
    assert book.labels == [None, "green", "green", "sea"]
    book.undo("me")
    book.undo("me")
    assert book.labels == ["red", "green", None, "sea"]
    assert opened(path).labels == book.labels


def test_two_classes_never_have_one_name(path: Path) -> None:
    book = opened(path)
    book.label([1], "green", "me")
    for act in (
        lambda: book.rename_class("green", "red", "me"),
        lambda: book.merge_classes("green", "green", "me"),
        lambda: book.merge_classes("green", "grey", "me"),
        lambda: book.rename_class("green", " ", "me"),
    ):
        with pytest.raises(InputError):
            act()
    book.rename_class("green", "teal", "me")
    book.label([2], "green", "you")
    with pytest.raises(InputError, match="green"):
        book.undo("me")  # teal would be green again
    assert book.labels == ["red", "teal", "green", "blue"]


def test_labels_of_the_run_follow_names_that_people_gave(path: Path) -> None:
    book = opened(path)
    book.rename_class("red", "crimson", "me")
    again = LabelBook(path, Given((*NAMES, "e"), (*GIVEN, "red"), classes=("blue", "red")))
    assert again.labels == ["crimson", None, None, "blue", "crimson"]
    assert names(again) == [("blue", "1"), ("crimson", "2")]
    assert again.undo("me").rows == (0, 4)


def test_classes_of_a_run_are_told_apart_by_more_than_their_names(path: Path) -> None:
    """A run that learns from the book knows the names of that moment; the book's own run knows the first ones."""
    book = opened(path)
    book.rename_class("red", "crimson", "me")
    book.label([1], "red", "me")  # another class
    assert book.names_of(RUN) == ["blue", "crimson"]
    learned = Given(NAMES, ("crimson", "red", None, "blue"), (), ("blue", "crimson", "red"), learned=book.identities())
    book.rename_class("crimson", "ruby", "me")
    book.grow(learned)
    assert names(book) == [("blue", "1"), ("ruby", "2"), ("red", "3")]  # and no new class "crimson"
    assert book.names_of(learned) == ["blue", "ruby", "red"]
    book.grow(Given((*NAMES, "e"), (*GIVEN, "red"), classes=("blue", "red")))
    assert book.labels == ["ruby", "red", None, "blue", "ruby"]


def test_a_run_that_learned_from_the_book_changes_no_label_in_it(path: Path) -> None:
    """What it knows is what the book said then; people have deleted and merged classes, and take that back."""
    book = opened(path)
    book.delete_class("red", "me")
    book.label([1], "green", "me")
    book.merge_classes("blue", "green", "you")
    learned = Given(NAMES, tuple(book.labels), classes=("green",), learned=book.identities())
    assert book.labels == [None, "green", None, "green"]
    book.grow(learned)
    book.choose("use")
    LabelBook(path, learned._replace(learned={}))  # served by itself
    again = opened(path)
    assert again.labels == [None, "green", None, "green"]
    assert names(again) == [("green", "3")]
    again.undo("you")
    again.undo("me")
    again.undo("me")
    assert again.labels == [*GIVEN]
    assert names(again) == [("blue", "1"), ("red", "2")]


def test_a_deleted_class_stays_deleted_when_the_run_gets_an_example_of_another(path: Path) -> None:
    book = opened(path)
    book.delete_class("red", "me")
    again = LabelBook(path, Given((*NAMES, "e"), (*GIVEN, "blue"), classes=("blue", "red")))
    assert again.labels == [None, None, None, "blue", "blue"]
    assert names(again) == [("blue", "1")]


def test_a_class_of_the_run_comes_back_where_another_one_took_its_name(path: Path) -> None:
    book = opened(path)
    book.rename_class("red", "crimson", "me")
    book.delete_class("crimson", "me")
    book.rename_class("blue", "crimson", "me")
    again = LabelBook(path, Given((*NAMES, "e"), (*GIVEN, "red"), classes=("blue", "red")))
    assert again.labels[3:] == ["crimson", "red"]


def test_a_run_that_learned_again_goes_on_with_the_book(tmp_path: Path) -> None:
    place = tmp_path / "run"
    assert labels_file(tmp_path / "run-again-2") == tmp_path / "run-again-2.labels.sqlite"
    book = LabelBook(labels_file(place), Given(NAMES, GIVEN, classes=("blue", "red")))
    book.rename_class("red", "crimson", "me")
    book.label([1], "crimson", "me")
    book.label([2], "green", "me")
    assert labels_file(tmp_path / "run-again-2") == book.path
    learned = Given(NAMES, tuple(book.labels), classes=("blue", "crimson", "green"))
    again = LabelBook(book.path, learned)
    assert again.names_of(learned) == ["blue", "crimson", "green"]
    assert again.labels == ["crimson", "crimson", "green", "blue"]
    again.undo("me")
    assert again.labels == ["crimson", "crimson", None, "blue"]
    (tmp_path / "run-again-2.labels.sqlite").touch()
    assert labels_file(tmp_path / "run-again-2") != book.path


def test_two_servers_on_one_book_see_all_events(path: Path) -> None:
    one, other = opened(path), opened(path)
    one.label([1], "red", "me")
    other.label([2], "green", "you")
    assert other.labels == ["red", "red", "green", "blue"]
    assert one.refresh() == (2,)
    assert one.labels == other.labels
    assert one.refresh() == ()
    other.undo("you")
    assert one.label([3], None, "me").rows == (3,)
    assert one.labels == [*other.labels[:3], None] == ["red", "red", None, None]


def test_examples_that_a_run_has_beyond_the_book_are_taken_in(path: Path) -> None:
    book = opened(path)
    book.label([1], "red", "me")
    book.grow(Given((*NAMES, "e", "f", "g"), (*GIVEN, None, "red", "blue"), {6}, ("blue", "red")))
    assert book.labels == ["red", "red", None, "blue", None, "red", "blue"]
    book.label([4, 5], "green", "me")
    assert book.sources[4:] == ["suggested", "", "suggested"]
    book.undo("me")
    assert book.labels[4:] == [None, "red", "blue"]
    with pytest.raises(RunError):
        book.grow(Given(("b", "a", *NAMES[2:]), GIVEN))


def test_a_label_follows_the_content_of_its_example(path: Path) -> None:
    book = LabelBook(path, Given(("row 0", "row 1", "row 2"), (None, None, "x"), digests=("p", "q", "r")))
    book.label([0], "a", "me")
    book.label([1], "b", "me")
    moved = LabelBook(
        path, Given(("row 0", "row 1", "row 2", "row 3"), (None, None, None, "x"), digests=("n", "p", "q", "r"))
    )
    assert moved.labels == [None, "a", "b", "x"]
    assert not moved.matches.note(path)
    moved.label([1], "c", "me")  # and the older label of "row 1", with another content, stays with that content
    assert moved.labels == [None, "c", "b", "x"]
    again = LabelBook(
        path, Given(("row 0", "row 1", "row 2", "row 3"), (None, None, None, "x"), digests=("n", "p", "q", "r"))
    )
    assert again.labels == [None, "c", "b", "x"]


def test_a_label_whose_example_has_changed_is_listed_and_not_used(path: Path) -> None:
    book = LabelBook(path, Given(("row 0", "row 1"), (None, None), digests=("p", "q")))
    book.label([0], "a", "me")
    book.label([1], "b", "me")
    twice = LabelBook(path, Given(("row 0", "row 1", "row 2"), (None,) * 3, digests=("z", "p", "p")))
    assert twice.labels == [None, None, None]
    (note,) = twice.matches.note(path)
    assert "2 labels" in note
    assert "row 0 (a)" in note


@pytest.mark.parametrize(
    "label", ["", " ", "-1", "nan", "=1+1", "@x", "+x", "-x", "a\x1b[2J", "a\nb", "x" * 201, "\u202ex"]
)
def test_labels_that_are_none_or_hide_something_are_refused(label: str) -> None:
    with pytest.raises(InputError):
        check_label(label)


def test_labels_are_tidied_and_html_is_just_text() -> None:
    assert check_label(" <b>red</b> ") == "<b>red</b>"
    assert check_label("-3") == "-3"


@pytest.mark.parametrize("who", ["", " ", "a\nb", "=1+1", "\ud800", "x" * 201])
def test_who_labels_is_noted_or_refused(who: str, path: Path) -> None:
    book = opened(path)
    for act in (lambda: book.label([1], "red", who), lambda: book.undo(who)):
        with pytest.raises(InputError, match="your name"):
            act()
    assert not path.exists()


def test_the_log_of_an_earlier_version_is_taken_in(path: Path) -> None:
    log = path.with_name("run.labels.csv")
    log.write_text(
        "path,label,who,when,change,source\na,red,run,now,0,\nd,blue,run,now,0,\nb,red,me,now,1,suggested\n"
        "d,,me,now,2,\nb,green,me,now,3,suggested\nz,green,me,now,3,suggested\n"
    )
    book = opened(path)
    assert import_labels(book, log, "you") == (1, 1, ("z",))
    assert book.labels == ["red", "green", None, None]
    assert import_labels(book, log, "you") == (0, 0, ("z",))
    assert {entry.person for entry in book.file.entries()} == {"", "me"}
    assert len(book.undo("me").rows) == 2  # one change


def test_an_imported_list_says_nothing_where_it_is_empty(path: Path) -> None:
    book = opened(path)
    book.label([1], "green", "me")
    listed = path.with_name("labels.csv")
    listed.write_text("name,label,predicted\na,,x\nb,,x\nc,green,x\nd,unlabelled,x\n")
    assert import_labels(book, listed, "you") == (1, 1, ())
    assert book.labels == ["red", "green", "green", None]
    assert book.sources == ["", "suggested", "suggested", ""]
    listed.write_text("name,label,source\nb,green,suggested\nc,red,\n")
    assert import_labels(book, listed, "you") == (1, 0, ())
    assert book.sources == ["", "suggested", "", ""]
    listed.write_text("name,label\nphotos/a,green\n")
    with pytest.raises(InputError, match="such as a"):
        import_labels(book, listed, "you")
    listed.write_text("name,label\na,green\na,blue\n")
    with pytest.raises(InputError, match="'green' and 'blue'"):
        import_labels(book, listed, "you")


def test_fit_reads_a_book_and_follows_a_photograph_to_its_new_name(tmp_path: Path) -> None:
    folder = tmp_path / "photos"
    for number, (name, colour) in enumerate(COLOURS.items()):
        write_photo(folder / f"{name}.png", colour, number)
    files = [folder / f"{name}.png" for name in COLOURS]
    book = LabelBook(tmp_path / "b", Given([f.name for f in files], [None] * 3), lambda row: _digest(files[row]))
    book.label([0, 1], "warm", "me")
    book.label([2], "cold", "me")
    (folder / "red.png").rename(folder / "renamed.png")
    write_photo(folder / "blue.png", (250, 250, 0), 9)
    found = read_collection(folder, tmp_path / "b")
    assert dict(zip(found.names, found.labels, strict=True)) == {
        "blue.png": None,
        "green.png": "warm",
        "renamed.png": "warm",
    }
    assert found.suggested == {"green.png", "renamed.png"}
    assert "blue.png (cold)" in " ".join(found.notes)


def _digest(path: Path) -> str:
    from semimetric.data.label_matches import digest_of_file

    return digest_of_file(path)


def table(path: Path, rows: list[tuple[float, float, str]]) -> Path:
    path.write_text("a,b,label\n" + "".join(f"{a},{b},{label}\n" for a, b, label in rows))
    return path


ROWS = [(float(n % 2), n / 40, "xy"[n % 2] if n < 8 else "") for n in range(40)]


@pytest.fixture(scope="module")
def labelled(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run on a table without ids, and six more labels in its book."""
    place = tmp_path_factory.mktemp("book")
    done = semimetric("fit", table(place / "t.csv", ROWS), "-o", place / "run", "--method", "lrml", "--json")
    assert done.code == 0, done.err
    (place / "more.csv").write_text("name,label\n" + "".join(f"row {n + 2},{'xy'[n % 2]}\n" for n in range(20, 26)))
    done = semimetric("labels", place / "run", "--import", place / "more.csv", "--who", "me", "--json")
    assert done.json()["labelled"] == 6, done.err
    return place


@pytest.mark.parametrize("change", ["inserted", "shuffled", "edited"])
def test_labels_stay_with_their_rows_when_a_table_changes(change: str, labelled: Path, tmp_path: Path) -> None:
    """Without ids, the names of rows are their numbers, which move."""
    rows = list(ROWS)
    if change == "inserted":
        rows = [(0.0, -1.0, ""), (1.0, -2.0, ""), (0.5, -3.0, ""), *rows]
    elif change == "shuffled":
        rows = rows[::-1]
    else:
        rows[20] = (0.0, 0.77, "")
    source = table(tmp_path / "t.csv", rows)
    found = read_collection(source, labelled / "run.labels.sqlite")
    assert found.features is not None
    given = {tuple(row): label for row, label in zip(found.features.tolist(), found.labels, strict=True) if label}
    assert len(given) == (13 if change == "edited" else 14)
    assert all(label == "xy"[int(features[0])] for features, label in given.items())
    assert any("row 22 (x)" in note for note in found.notes) == (change == "edited")


def test_labels_are_printed_with_those_of_the_book(labelled: Path, tmp_path: Path) -> None:
    out = tmp_path / "labels.csv"
    assert semimetric("labels", labelled / "run", "-o", out, "--json").json()["labelled"] == 14
    rows = {line.split(",")[0]: line.split(",")[1:3] for line in out.read_text().splitlines()}
    assert rows["row 2"] == ["x", ""]
    assert rows["row 22"] == ["x", "suggested"]
    damaged = tmp_path / "run"
    assert semimetric("labels", labelled / "run", "--recover", damaged, "--json").json()["events"] == 16


def test_what_others_wrote_reaches_the_browsers_after_a_label_of_ones_own(path: Path) -> None:
    one, other = opened(path), opened(path)
    one.label([0], "green", "me")
    other.label([2], "green", "you")
    one.label([3], "green", "me")
    assert one.labels == ["green", None, "green", "green"]
    assert one.refresh() == (2,)
    assert one.refresh() == ()


def test_many_threads_leave_in_memory_what_the_file_says(path: Path) -> None:
    book = opened(path)

    def act(person: int) -> None:
        for number in range(12):
            if number % 4 == 3:
                book.undo(f"person {person}")
            else:
                book.label([number % 4], f"class {person}", f"person {person}")

    with ThreadPoolExecutor(8) as threads:
        list(threads.map(act, range(8)))
    assert book.labels == opened(path).labels
    assert book.changes == opened(path).changes == 8 * 6


def test_a_label_keeps_the_digest_of_the_run_where_the_content_cannot_be_seen(path: Path) -> None:
    given = Given(("row 0", "row 1"), (None, None), digests=("p", "q"))
    LabelBook(path, given, lambda row: None).label([0], "a", "me")
    moved = LabelBook(path, Given(("row 0", "row 1", "row 2"), (None,) * 3, digests=("n", "p", "q")))
    assert moved.labels == [None, "a", None]


def test_a_label_is_of_the_content_that_was_shown(path: Path) -> None:
    content = {0: "p", 1: "q"}
    book = LabelBook(path, Given(("a", "b"), (None, None)), content.__getitem__)
    book.see(0)
    content[0] = "z"  # the file is replaced while its picture is on the screen
    book.label([0, 1], "red", "me")
    again = LabelBook(path, Given(("a", "b"), (None, None)), content.__getitem__)
    assert again.labels == [None, "red"]
    assert "a (red)" in again.matches.note(path)[0]


def test_a_listing_leaves_the_book_as_it_is(path: Path) -> None:
    book = opened(path)
    book.label([1], "green", "me")
    before = path.read_bytes()
    path.chmod(0o444)
    grown = Given((*NAMES, "e"), (*GIVEN, "new"), classes=("blue", "red", "new"))
    listed = LabelBook(path, grown, reading=True)
    assert listed.labels == ["red", "green", None, "blue", "new"]
    assert path.read_bytes() == before
    assert [*path.parent.iterdir()] == [path]


def test_labels_of_the_run_are_in_a_file_that_is_gone_on_with_after_the_run_grew(path: Path) -> None:
    book = opened(path)
    book.label([1], "green", "me")
    book.grow(Given((*NAMES, "e"), (*GIVEN, None), classes=("blue", "red")))
    other = BookFile(path.with_name("other"))
    with other.step("you") as step:
        step.add("label", "a", None, step.class_of("z"))
    other.close()
    path.unlink()
    path.with_name("other").rename(path)
    book.choose("use")
    assert book.labels == ["z", None, None, "blue", None]


def test_cells_that_a_spreadsheet_would_run_come_back_as_they_were(path: Path) -> None:
    given = Given(("=a", "-b", "c"), ("=A1", "-x", None), classes=("=A1", "-x"))
    book = LabelBook(path, given)
    listed = path.with_name("labels.csv")
    write_table(listed, ["name", "label"], [["=a", "=A1"], ["-b", "-x"], ["c", "green"]])
    assert import_labels(book, listed, "me") == (1, 0, ())
    assert book.labels == ["=A1", "-x", "green"]
