"""A few of the faults of ``python -m faults``: nothing ends in a traceback, a hang or a wrong answer."""

from __future__ import annotations

import dataclasses
import multiprocessing
import shutil
import zipfile
from pathlib import Path
from typing import Any

import pytest
from helpers import damage, foreign, kinds, moved, strange
from helpers.book_machine import SERVER
from helpers.command import semimetric
from helpers.killed import Killer

from semimetric.data import read_collection

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


@pytest.fixture(scope="module")
def strangers(home: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    whole = Path(shutil.copytree(home, tmp_path_factory.mktemp("strangers") / "home"))
    return strange.make_tables(kinds.make_kinds(whole))


def test_tables_that_changed_after_they_were_labelled(strangers: Path, tmp_path: Path) -> None:
    tally = strange.change_tables(strangers, tmp_path, 40)
    assert not tally.wrong
    assert len(tally.tried) >= 6


def test_wrong_formats_under_the_right_name(strangers: Path, tmp_path: Path) -> None:
    tally = strange.mix_formats(strangers, tmp_path, 60)
    assert not tally.wrong
    assert len(tally.tried) >= 12


def test_a_zip_of_something_else_is_not_a_table(home: Path, tmp_path: Path) -> None:
    with zipfile.ZipFile(tmp_path / "x.npz", "w") as archive:
        archive.writestr("a.png", b"x")
    shutil.copy(tmp_path / "x.npz", tmp_path / "x.npy")
    for name in ("x.npz", "x.npy"):
        assert name in semimetric("predict", home / "run", tmp_path / name).sentence()


def test_forged_runs(strangers: Path, tmp_path: Path) -> None:
    tally = strange.forge_runs(strangers, tmp_path, 60)
    assert not tally.wrong
    assert len(tally.tried) >= 6


def test_files_that_move_under_an_open_page(strangers: Path, tmp_path: Path) -> None:
    pytest.importorskip("uvicorn", reason="needs semimetric[page]")
    killer = Killer(multiprocessing.get_context("forkserver"), *SERVER)
    tally = moved.move_files(strangers, tmp_path, killer, 6, seed=3)
    assert not tally.wrong
    assert sum(tally.tried.values()) >= 30


def test_the_harness_finds_what_is_wrong() -> None:
    tally = damage.Tally()
    tally.check("x", "y", lambda: damage.Done(2, "", "no sentence"))

    def fail() -> damage.Done:
        raise KeyError("x")

    tally.check("x", "z", fail)
    assert len(tally.wrong) == 2


def test_the_harness_finds_a_file_of_others_that_was_changed(home: Path, tmp_path: Path) -> None:
    class Careless(foreign.Writer):
        def act(self, home: Path, folder: Path, replace: bool = False) -> damage.Done:
            (folder / "out").write_text("new")
            return damage.Done(0, "", "")

    writer = Careless("careless", lambda home, out: ())
    for kind in ("file", "link", "link to nothing"):
        tally = damage.Tally()
        with foreign.scene(writer, home, tmp_path) as out:
            foreign.lay_one(tally, writer, home, out, "out", kind, False, "", is_output=True)
        assert len(tally.wrong) == 2, tally.wrong


def test_the_harness_finds_labels_on_other_rows_and_formats_that_are_taken(
    strangers: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def shifted(*given: Any) -> Any:
        found = read_collection(*given)
        return dataclasses.replace(found, labels=(found.labels[-1], *found.labels[:-1]))

    monkeypatch.setattr(strange, "read_collection", shifted)
    assert len(strange.change_tables(strangers, tmp_path, 20).wrong) >= 8
    monkeypatch.setattr(strange, "semimetric", lambda *_: damage.Done(0, "", ""))
    assert len(strange.mix_formats(strangers, tmp_path, 20).wrong) >= 15
