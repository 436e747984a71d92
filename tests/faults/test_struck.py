"""A few of the signals, second writers and full disks of ``python -m faults``."""

from __future__ import annotations

import multiprocessing
from pathlib import Path

import pytest
from helpers import struck
from helpers.command import Done
from helpers.killed import Killer

pytestmark = pytest.mark.filterwarnings("ignore:.*")
QUICK = ("embed", "index npy", "add")


@pytest.fixture(scope="module")
def stage(home: Path, tmp_path_factory: pytest.TempPathFactory) -> struck.Stage:
    killer = Killer(multiprocessing.get_context("forkserver"))
    scenes = [scene for scene in struck.SCENES if scene.name in QUICK]
    return struck.Stage(home, tmp_path_factory.mktemp("stage"), killer, scenes)


def test_signals_at_any_moment(stage: struck.Stage) -> None:
    assert not struck.strike(stage, 6, seed=1).wrong


def test_two_writers(stage: struck.Stage) -> None:
    assert not struck.write_twice(stage).wrong


def test_files_that_cannot_grow(stage: struck.Stage) -> None:
    assert not struck.lack_room(stage, 1).wrong


def test_the_stage_finds_what_is_wrong(stage: struck.Stage) -> None:
    scene, before = stage.scenes[0], list(stage.tally.wrong)
    folder = scene.prepare(stage.home, stage.new_folder())
    (folder / "e.npy").write_bytes(b"torn")
    stage.check_after("x", scene, folder)
    stage.check_said("x", Done(1, "", "Traceback"))
    assert len(stage.tally.wrong) == len(before) + 3
    stage.tally.wrong[:] = before
