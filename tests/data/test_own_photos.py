"""Folders of a user's own photographs, tidy and untidy."""

import os
from pathlib import Path

import pytest
from helpers.photos import photo

from semimetric.core.errors import InputError
from semimetric.data import PhotoReader, read_collection
from semimetric.data.readers import folder as folder_reader

NOT_AN_IMAGE = "it is not an image by its name"


def touch(path: Path, content: bytes = b"something") -> Path:
    """A file that looks like an image by its name; it is not opened here."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content)
    return path


def found(folder: Path) -> dict[str, str | None]:
    collection = read_collection(folder)
    return dict(zip(collection.names, collection.labels, strict=True))


def test_class_folders_loose_files_and_unlabelled(tmp_path: Path) -> None:
    for name in ("cat/1.jpg", "cat/deep/er/2.jpg", "dog 10/1.jpg", "dog 9/1.jpg", "unlabelled/cat/3.jpg", "loose.jpg"):
        touch(tmp_path / name)
    collection = read_collection(tmp_path)
    assert dict(zip(collection.names, collection.labels, strict=True)) == {
        "cat/1.jpg": "cat",
        "cat/deep/er/2.jpg": "cat",
        "dog 9/1.jpg": "dog 9",
        "dog 10/1.jpg": "dog 10",
        "loose.jpg": None,
        "unlabelled/cat/3.jpg": None,
    }
    assert collection.classes == ("cat", "dog 9", "dog 10")
    assert collection.paths == tuple(tmp_path / name for name in collection.names)
    assert (collection.features, collection.columns, collection.skipped) == (None, (), {})


def test_folders_that_this_package_wrote_are_no_classes(tmp_path: Path) -> None:
    for name in ("cat/1.jpg", "dog/1.jpg", "dog/config.json", "dog/figures/2.png"):
        touch(tmp_path / name)
    for name in ("run/config.json", "run/manifest.json", "run/1.png", "deep/a/report.html", "deep/a/figures/map.png"):
        touch(tmp_path / name)
    touch(tmp_path / "both/compare.html")
    touch(tmp_path / "both/figures/curves.png")
    collection = read_collection(tmp_path)
    assert found(tmp_path) == {"cat/1.jpg": "cat", "dog/1.jpg": "dog", "dog/figures/2.png": "dog"}
    written = "that this package wrote"
    assert {name: why for name, why in collection.skipped.items() if name.endswith("/")} == {
        "run/": f"it holds a run {written}",
        "deep/a/": f"it holds a report {written}",
        "both/": f"it holds a comparison of runs {written}",
    }
    assert collection.empty == ("deep",)


@pytest.mark.parametrize("folder", ["unlabelled", "Unlabeled", "UNLABELLED", " unlabelled ", "-1"])
def test_folders_without_a_label(tmp_path: Path, folder: str) -> None:
    touch(tmp_path / folder / "1.jpg")
    touch(tmp_path / "class" / folder / "2.jpg")
    assert found(tmp_path) == {f"{folder}/1.jpg": None, f"class/{folder}/2.jpg": "class"}


def test_order_is_natural_and_by_folder(tmp_path: Path) -> None:
    names = ["a/img2.jpg", "a/IMG10.jpg", "a b/1.jpg", "a10/1.jpg", "B/1.jpg", "b/01.jpg", "b/1.jpg", "2.jpg", "10.jpg"]
    for name in names:
        touch(tmp_path / name)
    assert read_collection(tmp_path).names == (
        "2.jpg",
        "10.jpg",
        "a/img2.jpg",
        "a/IMG10.jpg",
        "a10/1.jpg",
        "a b/1.jpg",
        "B/1.jpg",
        "b/01.jpg",
        "b/1.jpg",
    )


@pytest.mark.parametrize("suffix", [*folder_reader.IMAGE_SUFFIXES, ".JPG", ".TiFF"])
def test_suffixes(tmp_path: Path, suffix: str) -> None:
    touch(tmp_path / f"a{suffix}")
    assert found(tmp_path) == {f"a{suffix}": None}


def test_clutter_is_left_out_and_other_files_are_told(tmp_path: Path) -> None:
    clutter = ".DS_Store", "cat/Thumbs.db", "cat/._1.jpg", ".cache/2.jpg", "__MACOSX/cat/1.jpg", "desktop.ini"
    for name in (*clutter, "cat/1.jpg", "cat/notes.txt", "cat/jpg", "list.csv"):
        touch(tmp_path / name)
    collection = read_collection(tmp_path)
    assert collection.names == ("cat/1.jpg",)
    assert collection.classes == ("cat",)
    assert collection.skipped == dict.fromkeys(("cat/jpg", "cat/notes.txt", "list.csv"), NOT_AN_IMAGE)


def test_cheap_checks(tmp_path: Path) -> None:
    touch(tmp_path / "good.jpg")
    touch(tmp_path / "empty.jpg", b"")
    os.mkfifo(tmp_path / "pipe.jpg")
    (tmp_path / "broken.jpg").symlink_to(tmp_path / "missing.jpg")
    (tmp_path / "itself.jpg").symlink_to(tmp_path / "itself.jpg")
    collection = read_collection(tmp_path)
    assert collection.names == ("good.jpg",)
    nowhere = collection.skipped.pop("broken.jpg"), collection.skipped.pop("itself.jpg")
    assert all(reason.startswith("it is a link that leads nowhere") for reason in nowhere)
    assert collection.skipped == {"empty.jpg": "it is empty", "pipe.jpg": "it is not a file"}


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read everything")
def test_permission(tmp_path: Path) -> None:
    touch(tmp_path / "good.jpg")
    touch(tmp_path / "secret.jpg").chmod(0)
    touch(tmp_path / "closed" / "1.jpg")
    (tmp_path / "closed").chmod(0)
    try:
        collection = read_collection(tmp_path)
    finally:
        (tmp_path / "closed").chmod(0o700)
    assert collection.names == ("good.jpg",)
    assert collection.skipped["secret.jpg"] == "permission to read it is denied"
    assert collection.skipped["closed/"].startswith("the folder cannot be read")


def test_links_are_followed(tmp_path: Path) -> None:
    touch(tmp_path / "elsewhere" / "pool" / "1.jpg")
    touch(tmp_path / "elsewhere" / "2.jpg")
    folder = tmp_path / "data"
    (folder / "cat").mkdir(parents=True)
    (folder / "cat" / "two.jpg").symlink_to(tmp_path / "elsewhere" / "2.jpg")
    (folder / "dog").symlink_to(tmp_path / "elsewhere" / "pool")
    assert found(folder) == {"cat/two.jpg": "cat", "dog/1.jpg": "dog"}


def test_loops_end_and_no_folder_is_read_twice(tmp_path: Path) -> None:
    touch(tmp_path / "b" / "1.jpg")
    touch(tmp_path / "c" / "2.jpg")
    (tmp_path / "b" / "loop").symlink_to(tmp_path)
    (tmp_path / "a").symlink_to(tmp_path / "b")
    (tmp_path / "b" / "c").symlink_to(tmp_path / "c")
    collection = read_collection(tmp_path)
    assert dict(zip(collection.names, collection.labels, strict=True)) == {"b/1.jpg": "b", "c/2.jpg": "c"}
    assert collection.skipped == dict.fromkeys(("a/", "b/c/", "b/loop/"), "the folder was read under another name")


def test_links_into_the_unlabelled_pool_keep_their_labels(tmp_path: Path) -> None:
    touch(tmp_path / "unlabelled" / "batch" / "1.jpg")
    touch(tmp_path / "unlabelled" / "2.jpg")
    (tmp_path / "zebra").mkdir()
    (tmp_path / "zebra" / "two.jpg").symlink_to(tmp_path / "unlabelled" / "2.jpg")
    (tmp_path / "wolf").symlink_to(tmp_path / "unlabelled" / "batch")
    collection = read_collection(tmp_path)
    assert dict(zip(collection.names, collection.labels, strict=True)) == {
        "wolf/1.jpg": "wolf",
        "zebra/two.jpg": "zebra",
    }
    assert collection.skipped == {
        "unlabelled/2.jpg": "it is the same file as zebra/two.jpg",
        "unlabelled/batch/": "the folder was read under another name",
    }


def test_a_file_counts_once_but_its_name_may_come_again(tmp_path: Path) -> None:
    first = touch(tmp_path / "a" / "1.jpg")
    touch(tmp_path / "b" / "1.jpg")
    os.link(first, tmp_path / "b" / "2.jpg")
    (tmp_path / "a" / "0.jpg").symlink_to(first)
    collection = read_collection(tmp_path)
    assert collection.names == ("a/1.jpg", "b/1.jpg")
    same = "it is the same file as a/1.jpg"
    assert collection.skipped == {"b/2.jpg": same, "a/0.jpg": same}


def test_unicode_spaces_and_odd_characters(tmp_path: Path) -> None:
    names = ["Blåmes  og/ein bilete (1).JPG", "小鳥/写真.png", 'it\'s "quoted", really/new\nline.jpg', "🐦/🐤.webp"]
    for name in names:
        touch(tmp_path / name)
    assert found(tmp_path) == {name: name.split("/")[0] for name in names}


def test_an_accent_of_two_characters_is_the_same_class(tmp_path: Path) -> None:
    touch(tmp_path / "caf\u00e9" / "1.jpg")
    touch(tmp_path / "cafe\u0301 " / "2.jpg")
    collection = read_collection(tmp_path)
    assert collection.classes == ("caf\u00e9",)
    assert len(collection) == 2


def test_names_that_are_not_utf8(tmp_path: Path) -> None:
    folder = os.fsencode(tmp_path) + b"/caf\xe9"
    try:
        os.mkdir(folder)
    except OSError:
        pytest.skip("this file system has names in UTF-8 only")
    with open(folder + b"/na\xefve.jpg", "wb") as file:
        file.write(b"x")
    touch(tmp_path / "caf\\xe9" / "na\\xefve.jpg")
    touch(tmp_path / "caf\\xe9" / "other.jpg")
    collection = read_collection(tmp_path)
    assert collection.names == ("caf\\xe9/na\\xefve.jpg", "caf\\xe9/other.jpg")
    assert collection.classes == ("caf\\xe9",)
    assert "rename one" in collection.skipped["caf\\xe9/na\\xefve.jpg"]
    collection.summary().encode("utf-8")
    assert all(path.read_bytes() for path in collection.paths)


def test_a_folder_whose_name_is_not_utf8_is_read(tmp_path: Path) -> None:
    path = Path(os.fsdecode(os.fsencode(tmp_path) + b"/\xff.jpg"))
    try:
        photo(path, 0, 0)
    except OSError:
        pytest.skip("this file system has names in UTF-8 only")
    collection = read_collection(tmp_path)
    assert collection.names == ("\\xff.jpg",)
    assert PhotoReader(collection.paths, 8).batch([0]).shape == (1, 3, 8, 8)


def test_folder_of_another_case_is_another_class(tmp_path: Path) -> None:
    touch(tmp_path / "Cat" / "1.jpg")
    if (tmp_path / "cat").exists():
        pytest.skip("this file system does not tell case apart")
    touch(tmp_path / "cat" / "1.jpg")
    assert read_collection(tmp_path).classes == ("Cat", "cat")


def test_nothing_to_read(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"must hold images.*\.jpg, \.jpeg"):
        read_collection(tmp_path)
    touch(tmp_path / "notes.txt")
    touch(tmp_path / "empty.png", b"")
    with pytest.raises(InputError, match=r"2 skipped: .*empty\.png: it is empty.*notes\.txt: it is not an image"):
        read_collection(tmp_path)


def test_sources_that_are_none(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="is not there"):
        read_collection(tmp_path / "missing")
    with pytest.raises(InputError, match=r"is an image. Name its folder"):
        read_collection(touch(tmp_path / "1.jpg"))
    with pytest.raises(InputError, match=r"\.csv, \.tsv, \.parquet, \.npy, \.npz.*data\.xlsx"):
        read_collection(touch(tmp_path / "data.xlsx"))
    with pytest.raises(InputError, match="as labels, or leave them out"):
        read_collection(tmp_path, label_column="species")
    os.mkfifo(tmp_path / "pipe.csv")
    with pytest.raises(InputError, match="neither a file nor a folder"):
        read_collection(tmp_path / "pipe.csv")


def test_what_is_found_can_be_decoded(tmp_path: Path) -> None:
    photo(tmp_path / "cat" / "1.jpg", 0, 0)
    photo(tmp_path / "dog" / "1.PNG", 1, 0)
    collection = read_collection(str(tmp_path))
    assert PhotoReader(collection.paths, 8).batch([0, 1]).shape == (2, 3, 8, 8)
