"""A few of the faults of ``python -m faults``: nothing ends in a traceback, a hang or a wrong answer."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from helpers import damage, kinds

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


def test_the_harness_finds_what_is_wrong() -> None:
    tally = damage.Tally()
    tally.check("x", "y", lambda: damage.Done(2, "", "no sentence"))

    def fail() -> damage.Done:
        raise KeyError("x")

    tally.check("x", "z", fail)
    assert len(tally.wrong) == 2
