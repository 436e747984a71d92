"""What is tuned: spaces, validation data, and the command."""

from __future__ import annotations

import dataclasses
import io
import json
import os
import shlex
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import torch
from helpers.command import semimetric as in_process
from helpers.own_photos import write_folder
from hypothesis import given as drawn
from hypothesis import strategies as st
from rich.console import Console
from torch import Tensor
from typer.testing import CliRunner

from semimetric.cli import tune as command
from semimetric.cli.main import app
from semimetric.core.errors import InputError, RunError
from semimetric.core.settings import build_settings
from semimetric.core.space import Range
from semimetric.data import Dataset, Examples, dataset_names, load_dataset, read_collection
from semimetric.methods import METHODS, method_names
from semimetric.pipeline import tuning
from semimetric.pipeline.data import FitData
from semimetric.pipeline.linear import GuardWarning, learn_metric
from semimetric.pipeline.own import OwnData, OwnRequest, read_own
from semimetric.pipeline.resolve import resolve_benchmark, resolve_own
from semimetric.pipeline.study import Problem
from semimetric.pipeline.study import run_study as tune
from semimetric.pipeline.tuning import benchmark_problem, hidden_rows, own_problem, score_of, space_for
from semimetric.training import Trainer, TrainingSettings

CPU = torch.device("cpu")
QUICK = {"epochs": 2, "passes": 1}


def silent(epoch: int, score: float) -> None:
    pass


def table(rows: int = 90, labelled: int = 24) -> tuple[Tensor, Tensor]:
    """Vectors (rows, 6) of three classes, with the labels (rows,) of the first ones."""
    generator = torch.Generator().manual_seed(1)
    classes = torch.arange(rows) % 3
    vectors = torch.randn(3, 6, generator=generator)[classes] * 2 + torch.randn(rows, 6, generator=generator)
    return vectors.double(), torch.where(torch.arange(rows) < labelled, classes, -1)


SHAPES: dict[Any, tuple[int, ...]] = {"vectors": (6,), "images": (3, 16, 16)}
VECTORS = FitData("vectors", (6,), *table())


def problem_of(
    method: str, encoder: str = "mlp", given: dict[str, Any] | None = None, data: FitData = VECTORS
) -> Problem:
    """What is tuned of a method on vectors; the encoder is no setting of the study."""
    request = OwnRequest(method, settings={"encoder": encoder} | (given or {}))
    plan = resolve_own(data.kind, data.shape, data.labels, CPU, method, **request.settings)
    return own_problem(request, OwnData(plan, data, None, None, None), CPU)


@pytest.mark.parametrize("method", method_names())
def test_every_bound_is_a_value_that_the_settings_take(method: str) -> None:
    kinds = (METHODS[method].Settings, TrainingSettings)
    for name, values in METHODS[method].space.items():
        kind = next(kind for kind in kinds if name in {field.name for field in dataclasses.fields(kind)})
        for value in (values.low, values.high) if isinstance(values, Range) else values:
            assert getattr(build_settings(kind, {name: value}, method), name) == value


@pytest.mark.parametrize("method", method_names())
def test_the_settings_in_force_are_tried_first_on_all_data(method: str) -> None:
    plans = {dataset: resolve_benchmark(dataset, method) for dataset in dataset_names()}
    plans |= {kind: resolve_own(kind, shape, table()[1], CPU, method) for kind, shape in SHAPES.items()}
    for where, plan in plans.items():
        space, start = tuning._around(METHODS[method].space, plan)
        assert set(METHODS[method].space) - set(space) == ({"lr"} if plan.training.lr == 0 else set())
        for name, value in start.items():
            assert value in space[name], (where, name)
            assert getattr(plan.training if name == "lr" else plan.method_settings, name) == value


def test_settings_that_are_given_are_not_tried() -> None:
    assert list(space_for("triplet", [], 100)) == ["lr", "margin"]
    assert list(space_for("triplet", ["lr", "epochs"], 100)) == ["margin"]
    with pytest.raises(
        InputError, match=r"nothing is left to choose: .*lr, margin are tried, and all of them are given"
    ):
        space_for("triplet", ["lr", "margin"], 100)


def test_the_space_fits_the_data_and_what_is_trained() -> None:
    assert space_for("lrml", [], 100)["k"] == Range(3, 20)
    assert space_for("lrml", [], 12)["k"] == Range(3, 11)
    assert "lr" in space_for("lrml", [], 100)
    assert list(space_for("lrml", [], 100, network=False)) == ["k", "graph_weight", "ridge"]


@drawn(st.lists(st.integers(-1, 3), min_size=1, max_size=60), st.integers(0, 9))
def test_a_third_of_the_labels_of_each_class_is_hidden(labels: list[int], seed: int) -> None:
    known = torch.tensor(labels)
    sizes = {name: labels.count(name) for name in set(labels) - {-1}}
    able = {name for name, size in sizes.items() if size >= 4}
    generator = torch.Generator().manual_seed(seed)
    if len(able) < 2:
        with pytest.raises(InputError, match="needs at least 4 labels in each of two classes"):
            hidden_rows(known, generator)
        return
    rows = hidden_rows(known, generator)
    assert rows.tolist() == sorted(set(rows.tolist()))
    for name, size in sizes.items():
        hidden = int((known[rows] == name).sum())
        assert hidden == (max(2, round(size / 3)) if name in able else 0)
        assert size - hidden >= min(2, size)
    assert set(known[rows].tolist()) == able


def test_a_linear_metric_learns_without_the_hidden_labels_and_is_scored_once() -> None:
    task = VECTORS
    problem = problem_of("lrml", "none", {"k": 4})
    assert problem.start == {"graph_weight": 3.0, "ridge": 0.3}
    reported: list[int] = []
    score = problem.run({"graph_weight": 1.0, "ridge": 0.1}, lambda epoch, _: reported.append(epoch))
    rows = hidden_rows(task.labels, torch.Generator().manual_seed(0))
    scaled = (task.inputs - task.inputs.mean(0)) / task.inputs.std(0, correction=0)
    seen = task.labels.index_fill(0, rows, -1)
    with pytest.warns(GuardWarning):
        fit = learn_metric(scaled.float().double(), seen, "lrml", k=4, graph_weight=1.0, ridge=0.1)
    assert score.score == pytest.approx(score_of(fit.metric.transform(scaled)[rows], task.labels[rows]))
    assert reported == []
    assert (task.labels[rows] >= 0).all()


def test_the_width_that_is_given_is_that_of_every_trial(monkeypatch: pytest.MonkeyPatch) -> None:
    widths: list[int] = []
    real = tuning.score_of
    monkeypatch.setattr(tuning, "score_of", lambda rows, labels: widths.append(rows.shape[1]) or real(rows, labels))
    for encoder, method in (("none", "lrml"), ("mlp", "triplet")):
        quick = {"epochs": 1, "passes": 1} if encoder == "mlp" else {}
        problem = problem_of(method, encoder, quick | {"components": 2})
        problem.run(problem.start, silent)
    assert set(widths) == {2}


def trained_on(monkeypatch: pytest.MonkeyPatch) -> list[Trainer]:
    """The trainers of all trials to come."""
    trainers: list[Trainer] = []
    real = Trainer.fit

    def fit(self: Trainer) -> Any:
        trainers.append(self)
        return real(self)

    monkeypatch.setattr(Trainer, "fit", fit)
    return trainers


def test_a_network_trains_without_the_hidden_labels_as_fit_would_choose(monkeypatch: pytest.MonkeyPatch) -> None:
    trainers = trained_on(monkeypatch)
    problem = problem_of("affinity-triplets", given={"epochs": 3, "components": 4})
    scores: dict[int, float] = {}
    kept = problem.run(problem.start | {"k": 5}, scores.__setitem__)
    (trainer,) = trainers
    rows = hidden_rows(VECTORS.labels, torch.Generator().manual_seed(0))
    assert torch.equal(trainer.data.labels, VECTORS.labels.index_fill(0, rows, -1))
    assert trainer.data.validation_inputs is None
    assert trainer.settings.selection == "labels"
    assert trainer.method.settings.k == 5
    assert list(scores) == [1, 2, 3]
    assert trainer.best is not None
    if trainer.best.epoch:
        assert kept.score == scores[trainer.best.epoch]


@pytest.mark.parametrize("method", [name for name in method_names() if name != "rotation"])
def test_every_method_is_tuned_on_vectors(method: str, tmp_path: Path) -> None:
    linear = METHODS[method].learns_without_network
    problem = problem_of(method, "none" if linear else "mlp", {} if linear else QUICK)
    found = tune(problem, tmp_path / "study", 2)
    assert found["trials"] == 2
    assert found["refused"] == 0
    assert 0.0 < found["score"] <= 1.0


def test_a_method_of_images_is_tuned_on_images(tmp_path: Path) -> None:
    images = torch.randint(0, 255, (40, 1, 8, 8), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))
    labels = torch.where(torch.arange(40) < 16, torch.arange(40) % 2, -1)
    data = FitData("images", (1, 8, 8), images, labels)
    problem = problem_of("rotation", "small-cnn", {"epochs": 1, "passes": 1}, data)
    assert tune(problem, tmp_path / "study", 2)["complete"] == 2


def test_what_fit_refuses_is_refused() -> None:
    full = dataclasses.replace(VECTORS, labels=torch.arange(len(VECTORS.labels)) % 3)
    with pytest.raises(InputError, match="learns from unlabelled examples and there is none"):
        problem_of("lrml", data=full)


def test_a_training_that_is_interrupted_interrupts_the_study(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real = Trainer._train_epoch
    monkeypatch.setattr(Trainer, "_train_epoch", lambda self: (_ for _ in ()).throw(KeyboardInterrupt))
    with pytest.raises(KeyboardInterrupt):
        tune(problem_of("triplet", given=QUICK), tmp_path / "study", 2)
    monkeypatch.setattr(Trainer, "_train_epoch", real)
    assert tune(problem_of("triplet", given=QUICK), tmp_path / "study", 2)["trials"] == 2


def test_other_data_is_another_study(tmp_path: Path) -> None:
    tune(problem_of("lrml", "none"), tmp_path / "study", 1)
    other = dataclasses.replace(VECTORS, inputs=VECTORS.inputs + 1)
    with pytest.raises(RunError, match="was made with other data or settings: the data differ"):
        tune(problem_of("lrml", "none", data=other), tmp_path / "study", 1)


def some_digits(monkeypatch: pytest.MonkeyPatch, spoil_test: bool = False) -> None:
    """A few of the digits in place of all of them; the test set may be spoiled."""
    digits = load_dataset("digits")
    test = Examples(torch.zeros_like(digits.test.inputs), digits.test.labels.flip(0)) if spoil_test else digits.test
    few: Dataset = dataclasses.replace(digits, train=digits.train.subset(range(300)), test=test)
    monkeypatch.setattr(tuning, "load_examples", lambda *_: few)


def test_the_test_set_of_a_benchmark_is_never_touched(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    given = {"epochs": 1, "batch_size": 100}
    found = []
    for spoiled in (False, True):
        some_digits(monkeypatch, spoiled)
        problem = benchmark_problem("digits", "lrml", 0, given, CPU)
        found.append(tune(problem, tmp_path / str(spoiled), 2))
    assert found[0] == found[1]
    assert found[0]["refused"] == 0


def test_a_benchmark_is_judged_by_training_data_that_is_withheld(monkeypatch: pytest.MonkeyPatch) -> None:
    some_digits(monkeypatch)
    trainers = trained_on(monkeypatch)
    given = {"epochs": 1, "passes": 1, "labels_per_class": 3}
    problem = benchmark_problem("digits", "triplet", 0, given, CPU)
    problem.run(problem.start, silent)
    (trainer,) = trainers
    assert trainer.settings.selection == "last"
    assert trainer.data.validation_inputs is None
    assert trainer.data.classes is None
    assert len(trainer.data.labels) == 30
    problem = benchmark_problem("digits", "triplet", 0, given | {"validation_share": 0.2}, CPU)
    problem.run(problem.start, silent)
    assert trainers[1].settings.selection == "validation"
    assert trainers[1].data.validation_labels is not None
    assert len(trainers[1].data.validation_labels) == pytest.approx(60, abs=6)


def test_the_softmax_training_of_a_benchmark_precedes_every_trial(monkeypatch: pytest.MonkeyPatch) -> None:
    some_digits(monkeypatch)
    began: list[int] = []
    monkeypatch.setattr(
        tuning, "pretrain_encoder", lambda experiment, _: began.append(experiment.pretraining.pretrain_epochs)
    )
    problem = benchmark_problem("digits", "triplet", 0, {"epochs": 0, "pretrain_epochs": 1}, CPU)
    problem.run(problem.start, silent)
    assert began == [1]


def test_photographs_are_tuned(tmp_path: Path) -> None:
    folder = write_folder(tmp_path / "photos", labelled=5, unlabelled=6)
    given = {"epochs": 1, "passes": 1, "side": 16, "encoder": "small-cnn", "lr": 1e-3}
    request = OwnRequest("triplet", 0, "cpu", settings=given)
    own = read_own(request, read_collection(folder), folder)
    assert own.data.inputs.shape == (21, 3, 16, 16)
    found = tune(own_problem(request, own, CPU), tmp_path / "study", 2)
    assert list(found["settings"]) == ["margin"]
    assert found["score"] > 0.5


def write_table(path: Path) -> Path:
    vectors, labels = table()
    lines = ["a,b,c,d,e,f,kind"]
    for row, label in zip(vectors.tolist(), labels.tolist(), strict=True):
        lines.append(",".join(map(str, row)) + "," + ("" if label < 0 else f"kind {label}"))
    path.write_text("\n".join(lines) + "\n")
    return path


def semimetric(*arguments: object) -> subprocess.CompletedProcess[str]:
    words = [sys.executable, "-m", "semimetric", *map(str, arguments)]
    return subprocess.run(words, capture_output=True, text=True, timeout=200)


def test_the_command_that_is_printed_fits_with_the_best_settings(tmp_path: Path) -> None:
    data = write_table(tmp_path / "my table.csv")
    study = tmp_path / "a study"
    words = ["tune", data, "--label-column", "kind", "--epochs", 2, "--trials", 3, "--quiet", "--out", study]
    done = semimetric(*words)
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    best = json.loads((study / "best.json").read_text())
    first, second = done.stdout.splitlines()[-2:]
    assert f"validation score {best['score']:.4f}" in first
    assert second.startswith("fit with: semimetric fit ")
    fitted = in_process(*shlex.split(second.removeprefix("fit with: semimetric ")), "--json")
    assert fitted.code == 0, fitted.err
    used = json.loads((study / "run" / "config.json").read_text())["plan"]
    assert used["method"] == "consensus"
    assert used["training"]["epochs"] == 2
    assert best["settings"].items() <= (used["training"] | used["method_settings"]).items()
    again = CliRunner().invoke(app, [*map(str, words), "--json"])
    told = json.loads(again.stdout.splitlines()[-1])
    assert told["settings"] == best["settings"]
    assert told["trials"] == 3
    assert told["command"] == second.removeprefix("fit with: ")


def test_ctrl_c_leaves_a_study_that_continues(tmp_path: Path) -> None:
    data = write_table(tmp_path / "table.csv")
    words = ["tune", data, "--label-column", "kind", "--method", "lrml", "--out", tmp_path / "study"]
    running = subprocess.Popen(
        [sys.executable, "-m", "semimetric", *map(str, words), "--trials", "100000"],
        stderr=subprocess.PIPE,
        text=True,
        env=os.environ,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),  # a background shell leaves it ignored
    )
    deadline = time.monotonic() + 200
    while not (tmp_path / "study" / "best.json").exists() and time.monotonic() < deadline:
        time.sleep(0.05)
    running.send_signal(signal.SIGINT)
    _, said = running.communicate(timeout=200)
    assert running.returncode == 130, said
    assert said == f"interrupted; finished trials are kept in {tmp_path / 'study'}. Continue with the same command.\n"
    done = json.loads((tmp_path / "study" / "best.json").read_text())["trials"]
    more = in_process(*words, "--trials", done + 2, "--json").json()
    assert more["trials"] in (done + 2, done + 3)  # one may have ended before it was written


def test_a_terminal_shows_which_trial_is_under_way(monkeypatch: pytest.MonkeyPatch) -> None:
    shown = io.StringIO()
    monkeypatch.setattr(command, "stderr", Console(file=shown, force_terminal=True, width=100))
    bar = command.TrialBar()
    bar.trial(3, 30, 0.8123)
    bar.epoch(4, 0.75)
    bar.end()
    assert "trial 3 of 30" in shown.getvalue()
    assert "epoch 4: 0.7500  best so far 0.8123" in shown.getvalue()
    piped = io.StringIO()
    monkeypatch.setattr(command, "stderr", Console(file=piped, width=100))
    bar = command.TrialBar()
    bar.trial(1, 30, None)
    bar.epoch(1, 0.5)
    bar.end()
    assert piped.getvalue() == ""


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        (
            {},
            "best of 5 trials: validation score 0.9000 ± 0.0200, with the default settings 0.8000: a gain of 0.1000 ± "
            "0.0300 (standard error)",
        ),
        (
            {"score": 0.8, "gain_error": 0.06},
            "the default settings are kept: validation score 0.8000 ± 0.0200. The best of 5 trials scores 0.9000, and "
            "a gain of 0.1000 ± 0.0600 is not beyond two standard errors. More labels would tell.",
        ),
        ({"start": 0.9, "error": None}, "no settings of 5 trials beat the default ones: validation score 0.9000"),
        (
            {"start": None, "error": None, "pruned": 1, "refused": 2},
            "best of 5 trials (1 cut short, 2 refused): validation score 0.9000",
        ),
    ],
)
def test_the_outcome_in_words(changes: dict[str, Any], sentence: str) -> None:
    found = {"trials": 5, "pruned": 0, "refused": 0, "score": 0.9, "error": 0.02, "start": 0.8, "best": 0.9}
    found |= {"gain": 0.1, "gain_error": 0.03}
    assert command._told(found | changes) == sentence


def test_settings_as_options() -> None:
    settings = {"graph_weight": 0.5, "k": 3, "selective": True, "veto": False, "weights": "a b", "labels": None}
    assert command.flags(settings) == [
        "--graph-weight",
        "0.5",
        "--k",
        "3",
        "--selective",
        "--no-veto",
        "--weights",
        "a b",
    ]


def test_options_of_the_other_kind_of_data_are_refused(tmp_path: Path) -> None:
    done = CliRunner().invoke(app, ["tune", "--label-column", "kind", "--out", str(tmp_path / "study")])
    assert isinstance(done.exception, InputError)
    assert "are for data of your own" in str(done.exception)
    own = ["tune", str(tmp_path), "--dataset", "digits", "--out", str(tmp_path / "study")]
    assert "--dataset is for benchmark" in str(CliRunner().invoke(app, own).exception)
    assert not (tmp_path / "study").exists()
