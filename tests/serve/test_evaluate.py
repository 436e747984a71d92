"""Scores of a run on labelled examples: from Python, and the same numbers from the command line."""

from __future__ import annotations

import csv
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from helpers.command import semimetric
from helpers.own_photos import COLOURS, write_folder, write_photo
from sklearn.datasets import load_wine
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import balanced_accuracy_score, confusion_matrix, roc_auc_score
from sklearn.neighbors import KNeighborsClassifier
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

import semimetric as sm
from semimetric.core.errors import InputError

pytestmark = [
    pytest.mark.filterwarnings("ignore::semimetric.pipeline.linear.GuardWarning"),
    pytest.mark.filterwarnings("ignore:X does not have valid feature names"),
]
NAMES = np.array(["barolo", "grignolino", "barbera"])


def wine() -> tuple[Any, Any]:
    """Standardised wines and the names of their grapes, in a random order."""
    features, classes = load_wine(return_X_y=True)
    order = np.random.default_rng(0).permutation(len(classes))
    return StandardScaler().fit_transform(features)[order].astype(np.float32), NAMES[classes[order]]


@pytest.fixture(scope="module")
def model() -> sm.LRML:
    """Fitted to 100 wines, 20 of them with a label; the other 78 are for the test."""
    features, grapes = wine()
    return sm.LRML(random_state=0).fit(features[:100], [*grapes[:20], *[""] * 80])


def write_table(path: Path, features: Any, labels: Any) -> Path:
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        writer.writerow([*(f"f{column}" for column in range(features.shape[1])), "grape"])
        writer.writerows([*map(repr, row.tolist()), label] for row, label in zip(features, labels, strict=True))
    return path


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run on a table, and a table of labelled wines that are new to it."""
    folder, (features, grapes) = tmp_path_factory.mktemp("home"), wine()
    train = write_table(folder / "train.csv", features[:100], [*grapes[:20], *[""] * 80])
    done = semimetric("fit", train, "--label-column", "grape", "--method", "lrml", "--out", folder / "run")
    assert done.code == 0, done.err
    write_table(folder / "test.csv", features[100:], grapes[100:])
    return folder


def test_scores_are_those_of_scikit_learn(model: sm.LRML) -> None:
    features, grapes = wine()
    found = model.evaluate(features[100:], grapes[100:])
    named = model.predict(features[100:])
    assert found.examples == 78
    assert found.classes == found.predicted == tuple(sorted(NAMES))
    assert (found.confusion == confusion_matrix(grapes[100:], named)).all()
    run = found.scores["run"]
    assert run["accuracy"] == pytest.approx(model.score(features[100:], grapes[100:]))
    assert run["balanced_accuracy"] == pytest.approx(balanced_accuracy_score(grapes[100:], named))
    numbers = np.unique(grapes[100:], return_inverse=True)[1]
    assert run["recall@1"] == sm.recall_at_k(model.transform(features[100:]), numbers)[1]
    nearest = KNeighborsClassifier(1).fit(features[:20], grapes[:20])
    assert found.scores["inputs"]["accuracy"] == pytest.approx(nearest.score(features[100:], grapes[100:]))
    regression = make_pipeline(StandardScaler(), LogisticRegression(max_iter=2000)).fit(features[:20], grapes[:20])
    assert found.scores["logistic"]["accuracy"] == pytest.approx(regression.score(features[100:], grapes[100:]))
    assert found.notes == ()


def test_mistakes_are_named_with_the_most_confident_first(model: sm.LRML) -> None:
    features, grapes = wine()
    names = [f"wine {row}" for row in range(100, 178)]
    wrong = np.where(grapes == "barolo", "barbera", grapes)  # a wrong truth makes sure of mistakes
    found = model.evaluate(features[100:], wrong[100:], names)
    shares = model.predict_proba(features[100:])
    assert len(found.mistakes) == (model.predict(features[100:]) != wrong[100:]).sum() > 10
    assert [line.probability for line in found.mistakes] == sorted(
        (m.probability for m in found.mistakes), reverse=True
    )
    worst = found.mistakes[0]
    row = names.index(worst.name)
    assert (worst.label, worst.predicted) == (wrong[100 + row], model.predict(features[100 + row : 101 + row])[0])
    assert worst.probability == pytest.approx(shares[row].max())
    assert found.confusions()[0] == ("barbera", "barolo", found.confusion[0, 1])


def test_classes_without_a_label_in_the_run_count_for_search_alone(model: sm.LRML) -> None:
    features, grapes = wine()
    truth = [*grapes[100:140], *["merlot"] * 38]
    found = model.evaluate(features[100:], truth)
    assert found.unknown == ("merlot",)
    assert found.classes[-1] == "merlot"
    assert "38 examples are of classes for which the run has no label (merlot)" in found.notes[0]
    alone = model.evaluate(features[100:140], grapes[100:140])
    assert found.scores["run"]["accuracy"] == alone.scores["run"]["accuracy"]
    assert found.scores["run"]["recall@1"] != alone.scores["run"]["recall@1"]
    unknown = model.unknown_score(features[100:])
    assert found.scores["run"]["unknown_auroc"] == roc_auc_score(np.arange(78) >= 40, unknown)
    assert alone.scores["run"]["unknown_auroc"] is None


@pytest.mark.parametrize(
    ("rows", "undefined"),
    [(slice(100, 101), ("recall@1", "map@r", "nmi")), (slice(100, 103), ("recall@4", "recall@8"))],
)
def test_scores_that_are_not_defined_are_none(model: sm.LRML, rows: slice, undefined: tuple[str, ...]) -> None:
    features, grapes = wine()
    scores = model.evaluate(features[rows], grapes[rows]).scores["run"]
    assert scores["accuracy"] is not None
    assert all(scores[name] is None for name in undefined)


def test_training_examples_and_unlabelled_ones_are_told(model: sm.LRML) -> None:
    features, grapes = wine()
    found = model.evaluate(features[10:30], [*grapes[10:28], None, ""])
    assert found.notes[0] == "2 examples without a label are not scored."
    assert found.notes[1].startswith("18 examples are among those that the run was trained on, 10 of them with a label")
    with pytest.raises(InputError, match="no example has a label"):
        model.evaluate(features[:3], ["", None, "nan"])


def test_the_command_prints_what_python_returns(home: Path, tmp_path: Path) -> None:
    features, grapes = wine()
    done = semimetric("evaluate", home / "run", home / "test.csv", "--out", tmp_path / "scores", "--json").json()
    names = [f"row {row}" for row in range(2, 80)]
    want = sm.load(home / "run").evaluate(features[100:], grapes[100:], names).as_dict()
    files = done.pop("files")
    assert done == json.loads(json.dumps(want))
    assert [Path(name).name for name in files] == [
        "scores.json",
        "confusion.csv",
        "mistakes.csv",
        "confusion.png",
        "confusion.svg",
    ]
    assert all(Path(name).stat().st_size for name in files)
    assert json.loads((tmp_path / "scores" / "scores.json").read_text())["scores"] == done["scores"]
    rows = list(csv.reader((tmp_path / "scores" / "confusion.csv").read_text().splitlines()))
    assert rows[0] == ["class", *done["predicted"]]
    assert [list(map(int, row[1:])) for row in rows[1:]] == done["confusion"]


def test_outputs_that_are_there_are_refused(home: Path, tmp_path: Path) -> None:
    (tmp_path / "confusion.csv").write_text("mine")
    command = ["evaluate", home / "run", home / "test.csv", "--out", tmp_path]
    assert "confusion.csv' exists" in semimetric(*command).sentence()
    assert [path.name for path in tmp_path.iterdir()] == ["confusion.csv"]
    shown = semimetric(*command, "--replace").out
    assert (tmp_path / "confusion.csv").read_text().startswith("class,")
    for line in ("accuracy", "logistic regression", "columns alone", "78 labelled examples of 3 classes", "NMI"):
        assert line in shown


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["run"], "Name labelled examples to score it on"),
        (["run", "--label-column", "grape"], "need DATA"),
        (["run", "test.csv", "--components", 2], "are for the test set of a benchmark"),
        (["run", "test.csv", "--label-column", "nowhere"], "nowhere"),
        (["run", "bare.csv"], "no example has a label"),
    ],
)
def test_mistaken_commands_say_what_to_give(home: Path, arguments: list[Any], sentence: str) -> None:
    lines = (home / "test.csv").read_text().splitlines()
    (home / "bare.csv").write_text("\n".join(line.rpartition(",")[0] for line in lines) + "\n")
    paths = [home / word if str(word) in ("run", "test.csv", "bare.csv") else word for word in arguments]
    assert sentence in semimetric("evaluate", *paths).sentence()


def test_a_folder_of_classes_is_scored(tmp_path: Path) -> None:
    write_folder(tmp_path / "photos", labelled=4, unlabelled=3)
    fit = ["--encoder", "small-cnn", "--side", 16, "--epochs", 1, "--passes", 1]
    assert semimetric("fit", tmp_path / "photos", "--out", tmp_path / "run", *fit).code == 0
    for number, name in enumerate([*COLOURS, *COLOURS]):
        write_photo(tmp_path / "new" / name / f"{number}.png", COLOURS[name], 500 + number)
    (tmp_path / "new" / "red" / "broken.jpg").write_bytes(b"no photograph")
    found = semimetric("evaluate", tmp_path / "run", tmp_path / "new", "--json").json()
    assert found["examples"] == 6
    assert found["scores"]["logistic"]["accuracy"] == 1.0
    assert "1 examples cannot be read and are not scored." in found["notes"]


@pytest.fixture(scope="module")
def bare(home: Path) -> Path:
    """A run that was fitted without labels."""
    features, _ = wine()
    train = write_table(home / "bare-train.csv", features[:100], [""] * 100)
    fit = ["--label-column", "grape", "--method", "instance", "--epochs", 1, "--out", home / "bare-run"]
    assert semimetric("fit", train, *fit).code == 0
    return home / "bare-run"


def test_a_run_without_labels_is_scored_by_search_and_clusters(bare: Path, home: Path, tmp_path: Path) -> None:
    features, grapes = wine()
    some = np.array([row % 5 > 0 for row in range(78)])
    test = write_table(tmp_path / "test.csv", features[100:], np.where(some, grapes[100:], ""))
    command = ("evaluate", bare, test, "--label-column", "grape")
    found = semimetric(*command, "--json").json()
    shown = semimetric(*command).out
    numbers = np.searchsorted(np.unique(NAMES), grapes[100:])[some]
    scaled = StandardScaler().fit(features[:100]).transform(features[100:])
    model = sm.load(bare)
    for judge, points in (("run", model.transform(features[100:])), ("inputs", scaled)):
        scores, kept = found["scores"][judge], np.asarray(points)[some]
        assert scores["recall@1"] == pytest.approx(sm.recall_at_k(kept, numbers, (1,))[1])
        assert scores["map@r"] == pytest.approx(sm.map_at_r(kept, numbers))
        assert scores["nmi"] == pytest.approx(sm.evaluate(kept, numbers)["nmi"])
    own = model.evaluate(features[100:], np.where(some, grapes[100:], ""))
    assert own.scores["run"] == pytest.approx(found["scores"]["run"])
    assert found["scores"]["run"]["accuracy"] is None
    assert "logistic" not in found["scores"]
    assert (found["predicted"], found["confusion"], found["mistakes"]) == ([], [[], [], []], [])
    assert found["notes"][0] == "16 examples without a label are not scored."
    assert found["notes"][1].startswith("The run was fitted without labels, so it names no classes.")
    for line in ("recall@1", "columns alone", "62 labelled examples of 3 classes", "fitted without labels"):
        assert line in shown.lower()
    report = semimetric("report", bare, home / "test.csv", "--label-column", "grape", "-o", tmp_path / "report")
    assert report.code == 0, report.err
    assert "fitted without labels" in (tmp_path / "report" / "report.html").read_text()


def test_outputs_of_a_run_without_labels_leave_none_of_another(bare: Path, home: Path, tmp_path: Path) -> None:
    options = (home / "test.csv", "--label-column", "grape", "--out", tmp_path / "out")
    assert semimetric("evaluate", home / "run", *options).code == 0
    assert "exists" in semimetric("evaluate", bare, *options).sentence()
    assert (tmp_path / "out" / "mistakes.csv").exists()
    assert semimetric("evaluate", bare, *options, "--replace").code == 0
    assert [path.name for path in (tmp_path / "out").iterdir()] == ["scores.json"]


def test_one_class_leaves_a_run_without_labels_nothing_to_score(bare: Path, tmp_path: Path) -> None:
    features, _ = wine()
    test = write_table(tmp_path / "test.csv", features[100:110], ["barolo"] * 10)
    shown = semimetric("evaluate", bare, test, "--label-column", "grape").out
    assert "need examples of two classes" in shown
    assert "per cent" not in shown
