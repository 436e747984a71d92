"""Progress as lines: how often there is one, and what it says."""

from __future__ import annotations

import io
import logging
import re

import numpy as np
import pytest
from rich.console import Console
from sklearn.datasets import load_wine

import semimetric as sm
from semimetric.pipeline import linear
from semimetric.reporting.progress import RichProgress, rate_of
from semimetric.training.progress import Lines, duration, epoch_line


class Clock:
    """A time that a test sets."""

    now = 0.0

    def __call__(self) -> float:
        return self.now


def follow(lines: Lines, clock: Clock, seconds_per_batch: float) -> None:
    lines.stage("reading photographs", 0, 64)
    lines.begin(3, 0)
    lines.epoch({"epoch": 0, "best": True})
    for epoch in (1, 2, 3):
        lines.stage("graph")
        for batch in (1, 2):
            clock.now += seconds_per_batch
            lines.batch(epoch, batch, 2)
        lines.epoch({"epoch": epoch, "best": True, "selection_recall@1": 0.5})
    lines.end()


def test_short_work_has_no_line_and_long_work_one_every_ten_seconds() -> None:
    clock, told = Clock(), list[str]()
    follow(Lines(told.append, clock=clock), clock, 1.0)
    assert told == []
    follow(Lines(told.append, clock=clock), clock, 6.0)
    assert told == ["epoch 1 of 3: batch 2 of 2", "epoch 2 of 3: batch 2 of 2", "epoch 3 of 3: batch 2 of 2"]


def test_every_epoch_has_a_line_if_asked_for() -> None:
    clock, told = Clock(), list[str]()
    follow(Lines(told.append, each_epoch=True, clock=clock), clock, 1.0)
    assert told == [
        "reading photographs: 0 of 64",
        "epoch 1 of 3  R@1  50.0  4 s left",
        "epoch 2 of 3  R@1  50.0  2 s left",
        "epoch 3 of 3  R@1  50.0",
    ]


def test_the_line_of_an_epoch_has_loss_scores_rank_signs_and_the_time_left() -> None:
    logged = {"training_loss": 0.51234, "selection_nmi": 0.8, "effective_rank": 8.25, "signs": ["collapsing"]}
    assert epoch_line(logged | {"epoch": 7}, 120, 5400.0, (6, 0.925)) == (
        "epoch   7 of 120  loss 0.5123  rank  8.2  COLLAPSING  NMI  80.0  held-out  92.5  90 min left"
    )
    assert [duration(seconds) for seconds in (0.2, 99.0, 100.0, 7200.0)] == ["0 s", "99 s", "2 min", "2.0 h"]


def test_the_last_known_accuracy_on_held_out_labels_stays() -> None:
    told = list[str]()
    lines = Lines(told.append, each_epoch=True)
    lines.begin(3, 0)
    for epoch in (1, 2):
        lines.epoch({"epoch": epoch, "held_back_accuracy": 0.9})
    lines.epoch({"epoch": 3})
    assert [line.partition("  ")[2][:25] for line in told] == ["held-out  90.0  0 s left"] * 2 + [
        "held-out  90.0 (epoch 1)"
    ]


def shown_on_a_terminal(seconds: float, quiet: bool = False) -> str:
    """What stays on a terminal after twelve epochs of these seconds."""
    console = Console(file=io.StringIO(), force_terminal=True, color_system=None, width=100)
    clock = Clock()
    progress = RichProgress(console, quiet, clock=clock)
    progress.begin(12, 0)
    for epoch in range(1, 13):
        clock.now += seconds
        progress.batch(epoch, 1, 1)
        progress.epoch({"epoch": epoch, "best": True, "training_loss": 1.0 / epoch, "signs": ["degrading"]})
    progress.end()
    return console.file.getvalue()


def test_a_terminal_keeps_a_line_for_each_epoch() -> None:
    found = re.findall(r"epoch +(\d+) of 12  loss [\d.]+  DEGRADING", shown_on_a_terminal(1.0))
    assert found == [str(epoch) for epoch in range(1, 13)]


def test_brief_epochs_do_not_flood_a_terminal_and_the_last_has_a_line() -> None:
    found = re.findall(r"epoch +(\d+) of 12", shown_on_a_terminal(0.11))
    assert found == ["3", "6", "9", "12"]


def test_quiet_leaves_a_terminal_empty() -> None:
    assert shown_on_a_terminal(1.0, quiet=True) == ""


@pytest.mark.parametrize(("quiet", "verbose", "lines"), [(False, False, 0), (False, True, 1), (True, False, 0)])
def test_a_pipe_gets_plain_lines(quiet: bool, verbose: bool, lines: int) -> None:
    console = Console(record=True, force_terminal=False, quiet=False, width=80)
    with console.capture() as captured:
        progress = RichProgress(console, quiet, verbose)
        progress.begin(2, 0)
        progress.batch(1, 1, 1)
        progress.epoch({"epoch": 1, "best": True})
        progress.end()
        progress.tell("a network was found")
        progress.warn("beware")
    found = captured.get().splitlines()
    assert found[lines:] == ["note: a network was found"] * (not quiet) + ["warning: beware"]


@pytest.mark.parametrize(("speed", "text"), [(123.4, "123 batches/s"), (2.34, "2.3 batches/s"), (0.04, "25.0 s/batch")])
def test_a_slow_rate_is_never_zero(speed: float, text: str) -> None:
    assert rate_of(speed) == text


@pytest.mark.filterwarnings("ignore::semimetric.GuardWarning")
@pytest.mark.parametrize(("most", "told"), [(13, 1), (14, 0)])
def test_a_metric_of_many_features_is_told_at_once(
    most: int, told: int, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """On a pipe, too, where a step has a line only after ten seconds."""
    features, classes = load_wine(return_X_y=True)
    monkeypatch.setattr(linear, "MANY_FEATURES", most)
    with caplog.at_level(logging.INFO, "semimetric"):
        sm.LRML().fit(features, np.where(np.arange(178) % 4 == 0, classes, -1))
    found = [record.message for record in caplog.records]
    assert found == ["the metric of 13 features needs matrices of 13 x 13, which may take minutes."] * told


def test_the_estimator_prints_and_logs(capsys: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture) -> None:
    features, classes = load_wine(return_X_y=True)
    labels = np.where(np.arange(178) % 4 == 0, classes, -1)
    with caplog.at_level(logging.INFO, "semimetric"):
        sm.SemiMetric(epochs=2, random_state=0, verbose=2).fit(features, labels)
    lines = capsys.readouterr().out.splitlines()
    after = ["class probabilities of the examples", "comparing examples with the known classes"]
    assert [line.partition("  ")[0] for line in lines] == ["epoch 1 of 2", "epoch 2 of 2", *after]
    assert [record.message for record in caplog.records if record.name == "semimetric"] == lines
    sm.SemiMetric(epochs=2, random_state=0).fit(features, labels)
    assert capsys.readouterr().out == ""
