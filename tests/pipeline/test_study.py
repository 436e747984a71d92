"""The study itself, on problems that cost nothing."""

from __future__ import annotations

import json
import os
import signal
import sys
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from helpers.sealed import reseal

from semimetric.core.errors import DivergedError, InputError, RunError
from semimetric.core.space import Range, Space
from semimetric.pipeline.study import Problem, Report, Scored, Study, rounded, standard_error
from semimetric.pipeline.study import run_study as tune
from semimetric.pipeline.study_folder import check_study

SPACE: Space = {"lr": Range(1e-4, 1.0, log=True), "k": Range(3, 20), "selective": (True, False)}
START = {"lr": 0.01, "k": 10, "selective": False}
Run = Callable[[dict[str, Any], Report], Scored]


class Tried:
    """Runs trials and remembers their settings; the score is best at k = 12."""

    def __init__(self, fails: dict[int, BaseException] | None = None) -> None:
        self.settings: list[dict[str, Any]] = []
        self._fails = fails or {}

    def __call__(self, settings: dict[str, Any], report: Report) -> Scored:
        self.settings.append(settings)
        if len(self.settings) in self._fails:
            raise self._fails[len(self.settings)]
        return Scored(1.0 - abs(settings["k"] - 12) / 20)


def problem(run: Run, start: dict[str, Any] | None = None, **about: Any) -> Problem:
    return Problem(SPACE, START if start is None else start, {"method": "lrml"} | about, run)


def test_the_first_trial_is_of_the_settings_in_force(tmp_path: Path) -> None:
    run = Tried()
    found = tune(problem(run), tmp_path / "study", 1)
    assert run.settings == [START]
    assert found == {
        "score": 0.9,
        "error": None,
        "settings": START,
        "start": 0.9,
        "best": 0.9,
        "gain": 0.0,
        "gain_error": None,
        "trials": 1,
        "complete": 1,
        "pruned": 0,
        "refused": 0,
    }
    assert isinstance(found["settings"]["k"], int)


def test_a_start_outside_of_the_space_is_not_tried(tmp_path: Path) -> None:
    run = Tried()
    found = tune(problem(run, START | {"lr": 2.0}), tmp_path / "study", 2)
    assert len(run.settings) == 2
    assert all(1e-4 <= settings["lr"] <= 1.0 for settings in run.settings)
    assert found["start"] is None


def test_what_is_tried_is_what_is_told_and_written(tmp_path: Path) -> None:
    run = Tried()
    found = tune(problem(run), tmp_path / "study", 8)
    assert found["settings"] in run.settings
    assert found["score"] == max(1.0 - abs(settings["k"] - 12) / 20 for settings in run.settings)
    assert json.loads((tmp_path / "study" / "best.json").read_text()) == {"method": "lrml"} | found
    for settings in run.settings[1:]:
        assert settings == rounded(settings)
        assert isinstance(settings["k"], int)
        assert all(value in SPACE[name] for name, value in settings.items())


def test_trials_are_counted_in_all(tmp_path: Path) -> None:
    run = Tried()
    tune(problem(run), tmp_path / "study", 3)
    again = Tried()
    found = tune(problem(again), tmp_path / "study", 3)
    assert again.settings == []
    assert found["trials"] == 3
    assert tune(problem(again), tmp_path / "study", 5)["trials"] == 5
    assert len(again.settings) == 2
    assert tune(problem(again), tmp_path / "study", 1)["trials"] == 5


def test_trials_must_be_some_and_the_seed_a_number_from_0(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="trials must be at least 1, got 0"):
        tune(problem(Tried()), tmp_path / "study", 0)
    with pytest.raises(InputError, match="seed must be at least 0, got -1"):
        tune(problem(Tried()), tmp_path / "study", 1, seed=-1)
    assert not (tmp_path / "study").exists()


def test_a_study_is_the_same_for_the_same_seed_and_another_for_another(tmp_path: Path) -> None:
    first, second, other = Tried(), Tried(), Tried()
    for number, (run, seed) in enumerate(((first, 3), (second, 3), (other, 4))):
        tune(problem(run), tmp_path / str(number), 12, seed)
    assert first.settings == second.settings
    assert first.settings != other.settings


@pytest.mark.parametrize("killed", [KeyboardInterrupt(), SystemExit(), MemoryError()])
def test_interrupted_it_continues_as_if_it_had_not_been(tmp_path: Path, killed: BaseException) -> None:
    whole = Tried()
    expected = tune(problem(whole), tmp_path / "whole", 14)
    parts: list[dict[str, Any]] = []
    for stop in (1, 3, 10):
        run = Tried({stop: killed})
        with pytest.raises(type(killed)):
            tune(problem(run), tmp_path / "parts", 14)
        parts += run.settings[:-1]
    last = Tried()
    assert tune(problem(last), tmp_path / "parts", 14) == expected
    assert parts + last.settings == whole.settings


def killed_before(point: int, trials: int, folder: Path) -> bool:
    """Run a study in a process that is killed before its file operation ``point``; False if it has fewer."""
    child = os.fork()
    if child == 0:
        left = iter(range(point))

        def count(event: str, about: tuple[Any, ...]) -> None:
            writes = event in ("os.rename", "os.remove") or (event == "open" and "a" in str(about[1]))
            if writes and next(left, None) is None:
                os.kill(os.getpid(), signal.SIGKILL)

        sys.addaudithook(count)
        with suppress(BaseException):
            tune(problem(Tried({trials: InputError("too many.")})), folder, trials)
        os._exit(0)
    return os.WIFSIGNALED(os.waitpid(child, 0)[1])


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_killed_between_any_two_writes_it_continues_as_if_it_had_not_been(tmp_path: Path) -> None:
    trials, point = 2, 0
    whole = tmp_path / "whole"
    expected = tune(problem(Tried({trials: InputError("too many.")})), whole, trials)
    while killed_before(point, trials, folder := tmp_path / str(point)):
        done = len(Study(problem(Tried()), folder, seed=0).finished())
        again = Tried({trials - done: InputError("too many.")})
        assert tune(problem(again), folder, trials) == expected, point
        assert len(again.settings) == trials - done, point
        assert (folder / "best.json").read_bytes() == (whole / "best.json").read_bytes(), point
        assert {path.name for path in folder.iterdir()} == {path.name for path in whole.iterdir()}, point
        point += 1
    assert point > 5 * trials


def test_a_log_that_was_torn_when_its_writer_was_killed_is_mended(tmp_path: Path) -> None:
    whole, before, after = Tried(), Tried(), Tried()
    tune(problem(whole), tmp_path / "whole", 5)
    tune(problem(before), tmp_path / "torn", 2)
    with (tmp_path / "torn" / "study.log").open("a") as log:
        log.write('{"op_code":4,"worker_id":"abc')
    tune(problem(after), tmp_path / "torn", 5)
    assert before.settings + after.settings == whole.settings


def test_a_damaged_log_is_refused(tmp_path: Path) -> None:
    tune(problem(Tried()), tmp_path / "study", 2)
    log = tmp_path / "study" / "study.log"
    lines = log.read_text().splitlines()
    log.write_text("\n".join([lines[0], "{", *lines[1:]]) + "\n")
    with pytest.raises(RunError, match=r"study\.log is damaged.*choose another --out"):
        tune(problem(Tried()), tmp_path / "study", 3)
    reseal(log.parent)
    with pytest.raises(RunError, match=r"study\.log cannot be read.*choose another --out"):
        tune(problem(Tried()), tmp_path / "study", 3)


def test_another_study_in_the_folder_is_refused_untouched(tmp_path: Path) -> None:
    folder = tmp_path / "study"
    tune(problem(Tried(), data="a"), folder, 1)
    before = {path: path.read_bytes() for path in folder.iterdir()}
    with pytest.raises(RunError, match=r"other data or settings: the data differ\. Use the same ones"):
        tune(problem(Tried(), data="b"), folder, 2)
    with pytest.raises(RunError, match="seed was 0 and is now 1"):
        tune(problem(Tried(), data="a"), folder, 2, seed=1)
    with pytest.raises(RunError, match="space"):
        tune(Problem({"k": Range(3, 4)}, {"k": 3}, {"method": "lrml", "data": "a"}, Tried()), folder, 2)
    assert {path: path.read_bytes() for path in folder.iterdir()} == before


def test_a_folder_of_something_else_is_refused_untouched(tmp_path: Path) -> None:
    (tmp_path / "photo.jpg").write_text("")
    with pytest.raises(RunError, match="neither an empty folder nor a study"):
        tune(problem(Tried()), tmp_path, 1)
    with pytest.raises(RunError, match="neither an empty folder nor a study"):
        tune(problem(Tried()), tmp_path / "photo.jpg", 1)
    assert [path.name for path in tmp_path.iterdir()] == ["photo.jpg"]
    with pytest.raises(RunError, match="cannot be written"):
        tune(problem(Tried()), tmp_path / "photo.jpg" / "study", 1)


class Epochs:
    """Trials of ten epochs; those of the numbers that are bad score nothing."""

    def __init__(self, bad: int) -> None:
        self.bad = bad
        self.ended: list[int] = []

    def __call__(self, settings: dict[str, Any], report: Report) -> Scored:
        number = len(self.ended) + 1
        score = 0.0 if number == self.bad else 0.5 + number / 100
        self.ended.append(0)
        for epoch in range(1, 11):
            report(epoch, score + epoch / 1000)
            self.ended[-1] = epoch
        return Scored(score)


def test_a_hopeless_trial_is_cut_short(tmp_path: Path) -> None:
    run = Epochs(bad=7)
    found = tune(problem(run), tmp_path / "study", 8)
    assert run.ended == [10, 10, 10, 10, 10, 10, 2, 10]
    assert (found["trials"], found["complete"], found["pruned"]) == (8, 7, 1)
    assert found["score"] == pytest.approx(0.58)


def test_no_trial_is_cut_short_before_there_are_some_to_compare(tmp_path: Path) -> None:
    run = Epochs(bad=3)
    assert tune(problem(run), tmp_path / "study", 5)["pruned"] == 0
    assert run.ended == [10] * 5


def test_trials_that_diverge_or_are_refused_are_finished(tmp_path: Path) -> None:
    run = Tried({2: DivergedError("NaN"), 4: InputError("k is too large.")})
    found = tune(problem(run), tmp_path / "study", 6)
    assert len(run.settings) == 6
    assert (found["complete"], found["pruned"], found["refused"]) == (4, 1, 1)
    assert tune(problem(Tried({1: AssertionError()})), tmp_path / "study", 6) == found


def test_what_refuses_the_settings_in_force_ends_the_study(tmp_path: Path) -> None:
    run = Tried({1: InputError("there are no labels.")})
    with pytest.raises(InputError, match="there are no labels"):
        tune(problem(run), tmp_path / "study", 6)
    assert not (tmp_path / "study").exists()
    assert tune(problem(Tried()), tmp_path / "study", 1)["trials"] == 1


def test_where_no_trial_comes_to_an_end_it_says_why(tmp_path: Path) -> None:
    diverged = Tried({number: DivergedError("NaN") for number in (1, 2, 3)})
    with pytest.raises(InputError, match=r"none of 3 trials came to an end\. All of them diverged; give a smaller lr"):
        tune(problem(diverged), tmp_path / "a", 3)
    refused = Tried({number: InputError(f"number {number}.") for number in (1, 2)})
    with pytest.raises(InputError, match=r"none of 2 trials came to an end\. The first was refused: number 1\."):
        tune(problem(refused, START | {"k": 99}), tmp_path / "b", 2)


def test_it_prints_nothing_and_tells_its_watcher(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    told: list[tuple[Any, ...]] = []

    class Watcher:
        def trial(self, number: int, trials: int, best: float | None) -> None:
            told.append((number, trials, best))

        def epoch(self, epoch: int, score: float) -> None:
            told.append((epoch, score))

    def run(settings: dict[str, Any], report: Report) -> Scored:
        report(1, 0.25)
        return Scored(0.5)

    tune(problem(run), tmp_path / "study", 2, watcher=Watcher())
    assert told == [(1, 2, None), (1, 0.25), (2, 2, 0.5), (1, 0.25)]
    assert capfd.readouterr() == ("", "")


def test_without_optuna_the_extra_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "optuna", None)
    with pytest.raises(InputError, match=r"needs the package optuna.*pip install 'semimetric\[tune\]'"):
        tune(problem(Tried()), tmp_path / "study", 1)
    assert not (tmp_path / "study").exists()


def test_a_range_is_cut_to_what_there_is() -> None:
    assert Range(3, 20).up_to(9) == Range(3, 9)
    assert Range(3, 20).up_to(99) == Range(3, 20)
    assert Range(3, 20).up_to(2) == Range(2, 2)
    assert 20 in Range(3, 20)
    assert 21 not in Range(3, 20)


@pytest.mark.parametrize(("noise", "kept"), [(0.01, False), (0.1, True)])
def test_the_default_is_kept_unless_the_gain_is_beyond_its_error(noise: float, kept: bool, tmp_path: Path) -> None:
    """Scores of 0.9 and 1.0, whose difference has a standard error of 3 times the noise."""

    def run(settings: dict[str, Any], report: Report) -> Scored:
        score, swing = (0.9, 0.0) if settings == START else (1.0, noise)
        return Scored(score, tuple(score + swing * (-1) ** group for group in range(10)))

    found = tune(problem(run), tmp_path / "study", 2)
    assert (found["start"], found["best"]) == (0.9, 1.0)
    assert found["gain_error"] == pytest.approx(3 * noise)
    assert (found["settings"] == START) is kept
    assert found["score"] == (found["start"] if kept else found["best"])


def test_the_standard_error_of_a_mean_is_the_usual_one() -> None:
    values = np.random.default_rng(0).normal(size=20)
    parts = [np.delete(values, row).mean() for row in range(20)]
    assert standard_error(parts) == pytest.approx(values.std(ddof=1) / 20**0.5)
    assert standard_error([0.5]) is None


def test_another_study_is_refused_before_any_work(tmp_path: Path) -> None:
    folder = tmp_path / "study"
    asked = {"method": "lrml", "seed": 0, "given": {"epochs": 8}}
    check_study(folder, asked)
    tune(problem(Tried(), given={"epochs": 8}), folder, 1)
    check_study(folder, asked)
    sentence = r"was made with --epochs 8, and this command is with --epochs 9\. Give the same settings to continue it,"
    with pytest.raises(RunError, match=sentence):
        check_study(folder, asked | {"given": {"epochs": 9}})
    with pytest.raises(RunError, match=r"was made without --lr, and this command is with --lr 0\.1"):
        check_study(folder, asked | {"given": {"epochs": 8, "lr": 0.1}})
    with pytest.raises(RunError, match="was made with --method lrml, and this command is with --method triplet"):
        check_study(folder, asked | {"method": "triplet"})
    with pytest.raises(RunError, match="neither an empty folder nor a study"):
        check_study(tmp_path, asked)
