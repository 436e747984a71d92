"""What a resume refuses, it refuses before it opens an example or writes a file."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from helpers.command import semimetric
from helpers.opened import opened_below
from helpers.own_photos import COLOURS, write_folder, write_photo

from semimetric.core.locks import locked

FIT = ["--encoder", "small-cnn", "--side", 16, "--epochs", 2, "--passes", 1]
DAMAGED = Path("blue", "damaged.jpg")


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Photographs, one of which cannot be decoded, and a run of them."""
    home = tmp_path_factory.mktemp("home")
    photos = write_folder(home / "photos", labelled=4, unlabelled=6)
    for number, colour in enumerate(("red", "blue")):  # files of one size, which the search for doubts compares
        write_photo(photos / colour / "a.bmp", COLOURS[colour], number)
    (photos / DAMAGED).write_text("not a photograph")
    with opened_below(photos) as opened:
        assert semimetric("fit", photos, "-o", home / "run", *FIT).code == 0
    assert opened == {path for path in photos.rglob("*") if path.is_file()}
    return home


def state(run: Path) -> dict[Path, tuple[int, bytes]]:
    return {path: (path.stat().st_mtime_ns, path.read_bytes()) for path in run.iterdir()}


def write_again(photos: Path) -> None:
    os.utime(photos / "red" / "a.bmp", ns=(0, 0))


def mend(photos: Path) -> None:
    write_photo(photos / DAMAGED, COLOURS["blue"], 5)


def add(photos: Path) -> None:
    write_photo(photos / "red" / "new.png", COLOURS["red"], 5)


def remove(photos: Path) -> None:
    (photos / "green" / "photo 1.jpg").unlink()


@pytest.mark.parametrize("change", [write_again, mend, add, remove])
def test_other_data(change: Callable[[Path], None], home: Path, tmp_path: Path) -> None:
    photos = shutil.copytree(home / "photos", tmp_path / "photos")  # times too
    change(photos)
    before = state(home / "run")
    with opened_below(photos) as opened:
        assert "other data" in semimetric("fit", photos, "-o", home / "run", *FIT, "--resume").sentence()
    assert not opened
    assert state(home / "run") == before


def test_other_settings_and_a_run_in_use(home: Path) -> None:
    again = ["fit", home / "photos", "-o", home / "run", *FIT, "--resume"]
    before = state(home / "run")
    with opened_below(home / "photos") as opened:
        assert "training.lr was" in semimetric(*again, "--lr", 0.5).sentence()
        assert "training.epochs was" in semimetric(*again, "--epochs", 3).sentence()
        assert "seed was" in semimetric(*again, "--seed", 1).sentence()
        assert state(home / "run") == before
        with locked(home / "run"):
            assert f"process {os.getpid()}" in semimetric(*again).sentence()
    assert not opened
    assert state(home / "run") == before


def test_a_folder_that_is_no_run(home: Path, tmp_path: Path) -> None:
    (tmp_path / "thesis.txt").write_text("x")
    with opened_below(home / "photos") as opened:
        assert "not an empty folder" in semimetric("fit", home / "photos", "-o", tmp_path, *FIT, "--resume").sentence()
    assert not opened


@pytest.mark.parametrize("cleared", [False, True])
def test_the_same_data_and_settings_are_continued(cleared: bool, home: Path, tmp_path: Path) -> None:
    photos, run = (shutil.copytree(home / name, tmp_path / name) for name in ("photos", "run"))
    if cleared:  # a file that could not be decoded may go
        (photos / DAMAGED).unlink()
    with opened_below(photos) as opened:
        assert semimetric("fit", photos, "-o", run, *FIT, "--resume").code == 0
    assert opened
    first, again = (json.loads((place / "result.json").read_text()) for place in (home / "run", run))
    assert list(again["found"]["skipped"]) == ([] if cleared else [DAMAGED.as_posix()])
    same = ("method", "seed", "components", "epochs", "best_epoch", "guards", "trust")
    assert {name: again[name] for name in same} == {name: first[name] for name in same}


def test_a_photograph_that_can_no_longer_be_decoded_is_other_data(home: Path, tmp_path: Path) -> None:
    photos, run = (shutil.copytree(home / name, tmp_path / name) for name in ("photos", "run"))
    spoilt = photos / "red" / "a.bmp"
    status = spoilt.stat()
    spoilt.write_bytes(b"x" * status.st_size)
    os.utime(spoilt, ns=(status.st_atime_ns, status.st_mtime_ns))
    before = state(run)
    assert "other data" in semimetric("fit", photos, "-o", run, *FIT, "--resume").sentence()
    assert state(run) == before
