"""A few of the faults of ``python -m faults``: nothing ends in a traceback, a hang or a wrong answer."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from helpers import damage, foreign, kinds

pytestmark = pytest.mark.filterwarnings("ignore:.*")


def test_damaged_inputs(home: Path, tmp_path: Path) -> None:
    tally = damage.damage_inputs(home, tmp_path, 60)
    assert sum(tally.tried.values()) == 60
    assert not tally.wrong


def test_damaged_runs_that_are_sealed_again(home: Path, tmp_path: Path) -> None:
    assert not damage.damage_runs(home, tmp_path, 20).wrong


def test_damaged_files_of_all_kinds(home: Path, tmp_path: Path) -> None:
    whole = Path(shutil.copytree(home, tmp_path / "home"))
    tally = kinds.damage_kinds(kinds.make_kinds(whole), tmp_path, 36)
    assert not tally.wrong
    assert len(tally.tried) >= 14


def test_flipped_bits(home: Path, tmp_path: Path) -> None:
    assert not damage.flip_runs(home, tmp_path, 40).wrong


def test_a_full_disk(home: Path, tmp_path: Path) -> None:
    tally = damage.fill_disk(home, tmp_path, 3)
    assert not tally.wrong
    assert {kind for kind in tally.tried if kind.startswith("full")} == {
        "full disk fit",
        "full disk embed",
        "full disk predict",
        "full disk index",
    }


def test_odd_numbers() -> None:
    assert not damage.odd_numbers(150).wrong


def test_files_of_others_where_commands_write(home: Path, tmp_path: Path) -> None:
    whole = foreign.make_foreign(Path(shutil.copytree(home, tmp_path / "home")))
    quick = ("fit", "embed npy", "embed csv", "predict", "search", "import", "page", "recover", "add", "evaluate")
    tally = foreign.lay_foreign(whole, tmp_path, 60, seed=2, names=quick)
    assert not tally.wrong
    assert len(tally.tried) == len(quick)


FOUND = (
    ("embed npy", ".e.npy.semimetric-parts", "link to a folder"),
    ("embed npy", ".e.npy.semimetric-parts/origin.json", "pipe"),
    ("embed npy", ".e.npy.semimetric-parts/.semimetric-lock", "pipe"),
    ("embed npy", ".e.npy.semimetric-parts/.semimetric-lock", "file"),
    ("import", "net.labels.sqlite-journal", "file"),
    ("page", "net.labels.sqlite-journal", "link"),
    ("page", "net.labels.sqlite-wal", "file"),
    ("add", "net/added.safetensors", "pipe"),
    ("fit", "state/semimetric/origin.key", "pipe"),
    ("compare", "compared/figures", "link to a folder"),
    ("index db", "i.db/collections/semimetric/schema.json", "pipe"),
)
"""Where files of others were changed, or a command hung."""


@pytest.mark.parametrize(("name", "place", "kind"), FOUND)
def test_a_file_of_others_stays(name: str, place: str, kind: str, home: Path, tmp_path: Path) -> None:
    whole = foreign.make_foreign(Path(shutil.copytree(home, tmp_path / "home")))
    writer = next(writer for writer in foreign.WRITERS if writer.name == name)
    pytest.importorskip(writer.extra)
    tally = damage.Tally()
    with foreign.scene(writer, whole, tmp_path) as out:
        foreign.lay_one(tally, writer, whole, out, place, kind, writer.has_replace, "", is_output=False)
    assert not tally.wrong


def test_the_harness_finds_what_is_wrong() -> None:
    tally = damage.Tally()
    tally.check("x", "y", lambda: damage.Done(2, "", "no sentence"))

    def fail() -> damage.Done:
        raise KeyError("x")

    tally.check("x", "z", fail)
    assert len(tally.wrong) == 2
