"""Labels that look like mistakes."""

from __future__ import annotations

from pathlib import Path

import pytest

from semimetric.core.errors import InputError
from semimetric.data import Collection, read_collection
from semimetric.data.doubts import with_doubts


def touch(path: Path, content: bytes = b"x") -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content)


def labelled(*labels: str | None) -> Collection:
    names = tuple(str(number) for number in range(len(labels)))
    return Collection(names, labels, None, None, (), {})


def doubts(collection: Collection) -> str:
    return " ".join(with_doubts(collection).doubts)


def test_a_clean_folder_has_none(tmp_path: Path) -> None:
    for number in range(4):
        touch(tmp_path / "cat" / f"{number}.jpg", bytes([number]))
        touch(tmp_path / "dog" / f"{number}.jpg", bytes([10 + number]))
    found = with_doubts(read_collection(tmp_path), strict=True)
    assert (found.doubts, found.notes) == ((), ())


@pytest.mark.parametrize("other", ["blue_jay", "Blue_Jay", "BLUE JAY", "blue-jay", "bluejay"])
def test_names_spelt_alike(other: str) -> None:
    told = doubts(labelled("Blue_jay", "Blue_jay", other, other, "crow"))
    assert "differ only in spelling: " in told
    assert "'Blue_jay'" in told
    assert repr(other) in told
    assert "spelling" not in doubts(labelled("Blue_jay", "Gray_jay", "a1", "a2"))


def test_one_photograph_in_two_classes(tmp_path: Path) -> None:
    touch(tmp_path / "cat" / "1.jpg", b"same")
    touch(tmp_path / "cat" / "2.jpg", b"same")
    touch(tmp_path / "dog" / "3.jpg", b"same")
    touch(tmp_path / "dog" / "4.jpg", b"size")
    touch(tmp_path / "unlabelled" / "5.jpg", b"same")
    told = doubts(read_collection(tmp_path))
    assert told == (
        "the same photograph in two classes: cat/1.jpg (cat); cat/2.jpg (cat); dog/3.jpg (dog). Only one can be right."
    )


def test_folders_that_are_no_classes(tmp_path: Path) -> None:
    for number, name in enumerate(["cat", "cat", "Unsorted", "?", "train", "train", "test", "crow"]):
        touch(tmp_path / name / f"{number}.jpg", bytes([number]))
    (tmp_path / "swan").mkdir()
    touch(tmp_path / "swift" / "notes.txt")
    found = with_doubts(read_collection(tmp_path))
    assert found.classes == ("cat", "crow", "test", "train")
    assert "2 unlabelled" in found.summary()
    assert "'?' (1), 'Unsorted' (1)" in " ".join(found.notes)
    assert found.doubts == (
        "'test', 'train' count as classes. If they are parts of a split, name the folder of one part instead.",
        "folders without a photograph: 'swan', 'swift'.",
        "classes with a single label, none of which can be held out: 'crow', 'test'.",
    )
    assert found.as_dict()["doubts"] == list(found.doubts)
    assert found.doubts[0] in found.summary()
    with pytest.raises(InputError, match=r"'test', 'train' count as classes.* Correct this, or leave --strict out"):
        with_doubts(found, strict=True)


def test_one_part_of_a_split_and_doubts_that_were_told_before(tmp_path: Path) -> None:
    for number, name in enumerate(["cat", "cat", "test", "test"]):
        touch(tmp_path / name / f"{number}.jpg", bytes([number]))
    found = with_doubts(read_collection(tmp_path))
    doubt = "'test' counts as a class. If it is a part of a split, name the folder of one part instead."
    assert found.doubts == (doubt,)
    assert doubt not in found.summary(told=found)
    assert found.summary(told=found).splitlines() == found.summary().splitlines()[:2]


def test_placeholders_in_tables_and_lists(tmp_path: Path) -> None:
    (tmp_path / "table.csv").write_text("a,label\n1,cat\n2,unknown\n3,UNKNOWN\n4,\n5,dog\n")
    found = read_collection(tmp_path / "table.csv")
    assert found.labels == ("cat", None, None, None, "dog")
    assert found.notes[0] == (
        "counted as unlabelled, by their label: 'unknown' (1), 'UNKNOWN' (1). Rename a class that is meant."
    )
    for number in range(2):
        touch(tmp_path / "photos" / f"{number}.jpg")
    (tmp_path / "labels.csv").write_text("path,label\n0.jpg,tbd\n1.jpg,cat\n")
    listed = read_collection(tmp_path / "photos", labels=tmp_path / "labels.csv")
    assert (listed.labels, len(listed.notes)) == ((None, "cat"), 1)
