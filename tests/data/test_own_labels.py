"""Lists of labels for a folder of photographs."""

import unicodedata
from pathlib import Path

import pytest

from semimetric.core.errors import InputError
from semimetric.data import Collection, read_collection


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for name in ("one/a.jpg", "one/b.jpg", "two/a.jpg", "c d.jpg"):
        path = tmp_path / "photos" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(b"x")
    return tmp_path / "photos"


def listed(folder: Path, text: str, place: str = "../labels.csv", **columns: str) -> Collection:
    path = folder / place
    path.write_bytes(text.encode())
    return read_collection(folder, labels=path, **columns)


def labels_of(collection: Collection) -> dict[str, str | None]:
    return dict(zip(collection.names, collection.labels, strict=True))


def test_the_list_tells_and_folders_do_not(folder: Path) -> None:
    collection = listed(folder, "path,label\none/a.jpg, cat \ntwo/a.jpg,dog\nc d.jpg,\n")
    assert labels_of(collection) == {"c d.jpg": None, "one/a.jpg": "cat", "one/b.jpg": None, "two/a.jpg": "dog"}
    assert collection.skipped == {}
    (note,) = collection.notes
    assert note.startswith("1 unlabelled in sub-folder 'one': ")
    assert note.endswith("To use both, add them to the list, with path and label.")
    assert note in collection.summary()


@pytest.mark.parametrize("filled", [0, 1])
def test_a_list_of_suggestions_that_nobody_filled_in_is_told(folder: Path, filled: int) -> None:
    (folder / "two").rename(folder / "unlabelled")
    rows = f"one/a.jpg,cat,\none/b.jpg,{'dog' * filled},suggested\nc d.jpg,,suggested\n"
    notes = listed(folder, f"path,label,source\n{rows}").notes
    told = f"none of the 2 suggestions in {folder / '../labels.csv'} has a label yet. Fill in its column of labels."
    assert notes == (() if filled else (told,))


def test_folders_that_a_list_covers_or_that_mean_no_label_need_no_word(folder: Path) -> None:
    (folder / "two").rename(folder / "unlabelled")
    assert listed(folder, "path,label\none/a.jpg,cat\none/b.jpg,\n").notes == ()


@pytest.mark.parametrize(
    "text",
    [
        "\ufeffpath,label\r\none/a.jpg,cat\r\n",
        "path;label\none/a.jpg;cat\n",
        "path\tlabel\none/a.jpg\tcat",
        "File , Species\none/a.jpg,cat\n",
        "filename,class\none/a.jpg,cat\n\n\n",
        "category,image\ncat,one/a.jpg\n",
        '"name","label","note, with; marks"\n"one/a.jpg","cat","a\nb"\n',
        "split,path,class,,\ntrain,one/a.jpg,cat,,\n , ,,,\n",
        'name,path,label\n"x",  one/a.jpg ,cat\n',
        "path,label\none\\a.jpg,cat\n",
        "path,label\n./two/../one/a.jpg,cat\n",
    ],
)
def test_ways_to_write_a_list(folder: Path, text: str) -> None:
    collection = listed(folder, text)
    assert labels_of(collection) == {"c d.jpg": None, "one/a.jpg": "cat", "one/b.jpg": None, "two/a.jpg": None}
    assert collection.skipped == {}


def test_columns_by_name(folder: Path) -> None:
    text = "path,where,label,genus\nx,one/a.jpg,y,Felis\n"
    collection = listed(folder, text, label_column="genus", id_column="where")
    assert labels_of(collection)["one/a.jpg"] == "Felis"
    with pytest.raises(InputError, match=r"label_column 'gnus' is not in .*labels.csv, which has 'path', 'where'"):
        listed(folder, text, label_column="gnus")


def test_unknown_columns(folder: Path) -> None:
    with pytest.raises(InputError, match=r"column of paths, named path, file, .* but has 'wo', 'label'.*id_column"):
        listed(folder, "wo,label\none/a.jpg,cat\n")
    with pytest.raises(InputError, match=r"column of labels, named label, class.*label_column"):
        listed(folder, "path,was\none/a.jpg,cat\n")
    with pytest.raises(InputError, match="2 columns of the name 'label'"):
        listed(folder, "path,label,label\none/a.jpg,cat,dog\n")


def test_paths_from_the_folder_of_the_list_and_absolute_ones(folder: Path, tmp_path: Path) -> None:
    other = tmp_path / "other.png"
    other.write_bytes(b"y")
    collection = listed(folder, f"path,label\nphotos/one/a.jpg,cat\n{folder}/two/a.jpg,dog\nother.png,eel\n")
    assert labels_of(collection) == {
        other.as_posix(): "eel",
        "c d.jpg": None,
        "one/a.jpg": "cat",
        "one/b.jpg": None,
        "two/a.jpg": "dog",
    }
    assert collection.skipped == {}


def test_the_folder_comes_before_that_of_the_list(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "c d.jpg").write_bytes(b"another")
    assert labels_of(listed(folder, "path,label\nc d.jpg,cat\n"))["c d.jpg"] == "cat"


def test_a_list_inside_the_folder_is_not_skipped(folder: Path) -> None:
    (folder / "notes.txt").write_bytes(b"x")
    collection = listed(folder, "path,label\none/a.jpg,cat\n", place="labels.csv")
    assert collection.skipped == {"notes.txt": "it is not an image by its name"}


def test_a_file_that_the_list_names_needs_no_image_suffix(folder: Path) -> None:
    (folder / "scan.raw").write_bytes(b"x")
    (folder / ".hidden.jpg").write_bytes(b"x")
    collection = listed(folder, "path,label\nscan.raw,cat\n.hidden.jpg,dog\n")
    assert (labels_of(collection)["scan.raw"], labels_of(collection)[".hidden.jpg"]) == ("cat", "dog")
    assert collection.skipped == {}


def test_rows_that_cannot_be_used_are_named(folder: Path) -> None:
    (folder / "empty.jpg").write_bytes(b"")
    text = "path,label\none/a.jpg,cat\ngone.jpg,dog\n\n,dog\none,cat\nempty.jpg,cat\none/b.jpg\none/b.jpg,x,y\n"
    collection = listed(folder, text)
    assert labels_of(collection)["one/b.jpg"] is None
    assert collection.skipped == {
        "empty.jpg": "it is empty",
        "row 3": "there is no file gone.jpg",
        "row 5": "it names no file",
        "row 6": "one cannot be used: it is not a file",
        "row 7": "empty.jpg cannot be used: it is empty",
        "row 8": "its number of fields is 1, that of the header 2",
        "row 9": "its number of fields is 3, that of the header 2",
    }


def test_a_file_listed_twice(folder: Path) -> None:
    (folder / "link.jpg").symlink_to(folder / "two" / "a.jpg")
    rows = ["one/a.jpg,cat", "one/a.jpg,cat ", "./one/a.jpg,", "one/b.jpg,cat", "two/a.jpg,dog", "link.jpg,eel"]
    collection = listed(folder, "\n".join(["path,label", *rows]))
    assert labels_of(collection) == {"c d.jpg": None, "one/a.jpg": "cat", "one/b.jpg": "cat"}
    reason = "two/a.jpg is 'dog' in row 6 and 'eel' in row 7"
    assert collection.skipped == {"link.jpg": "it is the same file as two/a.jpg", "row 6": reason, "row 7": reason}


def test_labels_of_mixed_types_are_text(folder: Path) -> None:
    collection = listed(folder, "path,label\none/a.jpg,1.0\none/b.jpg,cat\ntwo/a.jpg,-1\nc d.jpg,2\n")
    assert labels_of(collection) == {"c d.jpg": "2", "one/a.jpg": "1.0", "one/b.jpg": "cat", "two/a.jpg": None}


@pytest.mark.parametrize("form", ["NFC", "NFD"])
def test_accents_of_either_form_find_their_file(folder: Path, form: str) -> None:
    name = unicodedata.normalize({"NFC": "NFD", "NFD": "NFC"}[form], "Blåmes é.jpg")
    (folder / name).write_bytes(b"x")
    written = unicodedata.normalize(form, "Blåmes é")
    collection = listed(folder, f"path,label\n{written}.jpg,{written}\n")
    assert labels_of(collection)[name] == unicodedata.normalize("NFC", written)


def test_lists_that_cannot_be_read(folder: Path, tmp_path: Path) -> None:
    path = tmp_path / "labels.csv"
    path.write_bytes("path,label\none/a.jpg,Blåmes\n".encode("latin-1"))
    with pytest.raises(InputError, match=r"UTF-8 text, but byte 0xe5 in line 2.*Save it as UTF-8"):
        read_collection(folder, labels=path)
    path.write_bytes("path,label\none/a.jpg,cat\n".encode("utf-16-le"))
    with pytest.raises(InputError, match="zero bytes"):
        read_collection(folder, labels=path)
    with pytest.raises(InputError, match=r"missing.csv does not exist"):
        read_collection(folder, labels=tmp_path / "missing.csv")
    with pytest.raises(InputError, match="is a folder"):
        read_collection(folder, labels=tmp_path)
    with pytest.raises(InputError, match="first row, but that is empty"):
        listed(folder, "")
    with pytest.raises(InputError, match=r"line .*quotation mark before it is never closed"):
        listed(folder, 'path,label\none/a.jpg,"' + "cat\n" * 50_000)


def test_a_list_that_fits_nothing_leaves_all_unlabelled(folder: Path) -> None:
    collection = listed(folder, "path,label\nx.jpg,cat\ny.jpg,dog\n")
    assert (len(collection), collection.classes, len(collection.skipped)) == (4, (), 2)
