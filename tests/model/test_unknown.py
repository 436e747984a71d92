"""The score of being of no known class, from Python and in the predictions of the command line."""

from __future__ import annotations

import csv
import json
import re
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from helpers.command import semimetric
from helpers.own_photos import COLOURS, write_photo
from helpers.sealed import reseal
from sklearn.datasets import load_digits
from sklearn.metrics import roc_auc_score

import semimetric as sm
from semimetric.core.errors import InputError
from semimetric.graph import Posteriors
from semimetric.model.unknown import Unknown, fit_unknown, judged_rows

pytestmark = [
    pytest.mark.filterwarnings("ignore::semimetric.pipeline.linear.GuardWarning"),
    pytest.mark.filterwarnings("ignore:X does not have valid feature names"),
]
KNOWN = 7


def digits() -> tuple[Any, Any]:
    """All digits in a random order: they come writer by writer."""
    images, classes = load_digits(return_X_y=True)
    order = np.random.default_rng(0).permutation(len(classes))
    return (images[order] / 16).astype(np.float32), classes[order]


def fitted_rows() -> tuple[Any, Any]:
    """The first 500 digits of the known classes, 10 labels each."""
    images, classes = digits()
    rows = np.flatnonzero(classes[:900] < KNOWN)[:500]
    labels = np.full(len(rows), -1)
    for number in range(KNOWN):
        labels[np.flatnonzero(classes[rows] == number)[:10]] = number
    return images[rows], labels


@pytest.fixture(scope="module")
def model() -> sm.LRML:
    return sm.LRML(random_state=0).fit(*fitted_rows())


def test_digits_of_no_known_class_are_told_from_new_ones_of_known_classes(model: sm.LRML) -> None:
    images, classes = digits()
    scores = model.unknown_score(images[900:])
    unknown = classes[900:] >= KNOWN
    assert ((scores >= 0) & (scores <= 1)).all()
    assert roc_auc_score(unknown, scores) > 0.9
    assert roc_auc_score(unknown, scores) > roc_auc_score(unknown, -model.predict_proba(images[900:]).max(1))


@pytest.mark.parametrize("risk", [0.05, 0.2])
def test_about_the_risk_of_names_is_lost_and_more_of_the_others(model: sm.LRML, risk: float) -> None:
    images, classes = digits()
    named, known = model.predict(images[900:], risk=risk), classes[900:] < KNOWN
    assert risk / 4 < (named[known] == -1).mean() < 2 * risk
    assert (named[~known] == -1).mean() > 0.5
    sure = named != -1
    assert (named[sure] == model.predict(images[900:])[sure]).all()


def test_without_a_risk_everything_is_named(model: sm.LRML) -> None:
    images, _ = digits()
    assert (model.predict(images[900:950]) == model.predict(images[900:950], risk=0)).all()
    assert (model.predict(images[900:950]) >= 0).all()


@pytest.mark.parametrize("risk", [-0.1, 1.0, 2])
def test_a_risk_outside_of_its_range_is_refused(model: sm.LRML, risk: float) -> None:
    with pytest.raises(InputError, match="risk"):
        model.predict(digits()[0][:3], risk=risk)


def test_a_run_keeps_the_score(model: sm.LRML, tmp_path: Path) -> None:
    sm.save(model, tmp_path / "run")
    images, _ = digits()
    assert (sm.load(tmp_path / "run").unknown_score(images[900:950]) == model.unknown_score(images[900:950])).all()
    (tmp_path / "run" / "inputs.safetensors").unlink()
    reseal(tmp_path / "run")
    bare = sm.load(tmp_path / "run")
    assert (bare.predict(images[:5]) == model.predict(images[:5])).all()
    with pytest.raises(InputError, match="no score of being of no known class"):
        bare.unknown_score(images[:5])


def made(points: torch.Tensor, classes: torch.Tensor) -> Unknown | None:
    shares = torch.nn.functional.one_hot(classes).double()
    found = Posteriors(classes.unique(), shares, torch.ones(len(classes)).double())
    return fit_unknown(points, found, classes)


@pytest.mark.parametrize(
    ("points", "classes"),
    [
        (torch.zeros(40, 3), torch.arange(40) % 2),  # all alike
        (torch.randn(6, 3, generator=torch.Generator().manual_seed(0)), torch.arange(6) % 2),  # too few
        (
            torch.randn(40, 3, generator=torch.Generator().manual_seed(0)),
            torch.zeros(40, dtype=torch.int64),
        ),  # one class
    ],
)
def test_what_cannot_be_judged_has_no_score(points: torch.Tensor, classes: torch.Tensor) -> None:
    assert made(points, classes) is None


def test_far_points_score_higher_than_members() -> None:
    generator = torch.Generator().manual_seed(0)
    classes = torch.arange(60) % 3
    centres = torch.tensor([[5.0, 0, 0, 0], [0, 5, 0, 0], [0, 0, 5, 0]])
    score = made(centres[classes] + 0.3 * torch.randn(60, 4, generator=generator), classes)
    assert score is not None
    near, far = score.scores(centres), score.scores(torch.tensor([[0.0, 0, 0, 5], [0, 0, 0, -5]]))
    assert near.max() < 0.5 < far.min()
    assert near.max() < score.threshold(0.05) < far.min()


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run on a table of digits, and a table of new ones of all classes."""
    folder, (images, labels) = tmp_path_factory.mktemp("home"), fitted_rows()
    np.savez(folder / "train.npz", X=images, y=np.where(labels < 0, "", labels.astype(str)))
    done = semimetric("fit", folder / "train.npz", "--method", "lrml", "--out", folder / "run")
    assert done.code == 0, done.err
    images, classes = digits()
    np.savez(folder / "new.npz", X=images[900:1100])
    np.savez(folder / "labelled.npz", X=images[900:950], y=classes[900:950].astype(str))
    return folder


def test_predictions_are_printed_as_csv_with_second_class_and_reason(home: Path) -> None:
    done = semimetric("predict", home / "run", home / "new.npz")
    rows = list(csv.DictReader(done.out.splitlines()))
    assert list(rows[0]) == ["name", "label", "probability", "second", "second_probability", "unknown", "reason"]
    assert len(rows) == 200
    images, _ = digits()
    model = sm.load(home / "run")
    named = [row["label"] for row in rows]
    assert named == model.predict(images[900:1100], risk=0.05).tolist()
    assert {row["reason"] for row in rows if row["label"]} == {""}
    assert {row["reason"] for row in rows if not row["label"]} == {"looks like no known class"}
    shares = np.sort(model.predict_proba(images[900:1100]), axis=1)
    np.testing.assert_allclose([float(row["second_probability"]) for row in rows], shares[:, -2], atol=1e-5)
    lost = named.count("")
    assert f"{lost} examples look like no known class and got no name" in done.err
    threshold = float(re.search(r"unknown is above ([\d.]+) \(--risk 0.05", done.err)[1])
    assert all((float(row["unknown"]) > threshold) is not bool(row["label"]) for row in rows)


def test_examples_that_are_added_and_look_like_no_known_class_are_named(home: Path, tmp_path: Path) -> None:
    run = shutil.copytree(home / "run", tmp_path / "run")
    lost = semimetric("predict", home / "run", home / "new.npz", "--json").json()
    unlike = [row["name"] for row in lost["predictions"] if not row["label"]]
    done = semimetric("add", run, home / "new.npz")
    assert f"{len(unlike)} examples without a label look like no known class: " in done.out
    assert unlike[0] in done.out


@pytest.mark.parametrize("risk", ["0", "none"])
def test_all_are_named_if_asked_for(home: Path, risk: str) -> None:
    found = semimetric("predict", home / "run", home / "new.npz", "--risk", risk, "--json").json()
    assert found["named"] == found["examples"] == 200
    assert found["threshold"] is None
    assert all(row["label"] for row in found["predictions"])


def test_a_mistaken_risk_is_refused_and_files_are_kept(home: Path, tmp_path: Path) -> None:
    out = tmp_path / "labels.csv"
    command = ["predict", home / "run", home / "labelled.npz", "--out", out]
    assert "--risk must be a number from 0 to below 1" in semimetric(*command, "--risk", "many").sentence()
    first = semimetric(*command)
    assert "50 predictions written to" in first.out
    assert f"next: the table has labels; score the run on them with: semimetric evaluate {home / 'run'}" in first.out
    written = out.read_bytes()
    assert "exists" in semimetric(*command, "--risk", "0").sentence()
    assert out.read_bytes() == written


def test_examples_that_look_like_one_more_class_are_listed(tmp_path: Path) -> None:
    random, classes = np.random.default_rng(0), np.arange(90) % 3
    centres = 5 * np.eye(5)
    points = centres[classes] + 0.3 * random.normal(size=(90, 5))
    sm.save(sm.LRML(random_state=0).fit(points, classes), tmp_path / "run")
    more = np.repeat(centres[[0, 3, 4]], (6, 12, 8), axis=0) + 0.2 * random.normal(size=(26, 5))
    np.save(tmp_path / "new.npy", more)
    found = semimetric("predict", tmp_path / "run", tmp_path / "new.npy", "--json").json()
    assert found["named"] == 6
    assert found["new_groups"] == [[f"row {row}" for row in range(6, 18)], [f"row {row}" for row in range(18, 26)]]
    told = semimetric("predict", tmp_path / "run", tmp_path / "new.npy").err
    assert "about 12 examples look like one more class: row 6, row 7, row 8, ..." in told


def test_fit_tells_unlabelled_examples_that_look_like_one_more_class(tmp_path: Path) -> None:
    random, classes = np.random.default_rng(0), np.repeat(np.arange(5), (60, 60, 60, 12, 8))
    points = 5 * np.eye(5)[classes] + 0.3 * random.normal(size=(200, 5))
    labels = np.where((classes < 3) & (np.arange(200) % 3 < 2), classes, -1)
    np.savez(tmp_path / "data.npz", X=points, y=labels)
    done = semimetric("fit", tmp_path / "data.npz", "--method", "lrml", "-o", tmp_path / "run")
    assert "about 12 examples look like one more class: row 180, row 181, row 182, ..." in done.out
    groups = json.loads((tmp_path / "run" / "result.json").read_text())["new_groups"]
    assert groups[0] == [f"row {row}" for row in range(180, 192)]
    assert {f"row {row}" for row in range(192, 200)} <= {*groups[1]}
    assert len(groups[1]) <= 10, "few examples of known classes are taken for unknown ones"


def test_one_photograph_is_predicted(tmp_path: Path) -> None:
    for number in range(24):
        name = list(COLOURS)[number % 3]
        write_photo(tmp_path / "photos" / name / f"{number}.png", COLOURS[name], number)
    fit = ["--encoder", "small-cnn", "--side", 16, "--epochs", 1, "--passes", 1]
    assert semimetric("fit", tmp_path / "photos", "--out", tmp_path / "run", *fit).code == 0
    write_photo(tmp_path / "one.png", COLOURS["green"], 99)
    (row,) = semimetric("predict", tmp_path / "run", tmp_path / "one.png", "--risk", 0, "--json").json()["predictions"]
    assert row["name"] == str(tmp_path / "one.png")
    assert row["label"] in COLOURS
    done = semimetric("predict", tmp_path / "run", tmp_path / "photos", "--risk", 0)
    assert "next: the sub-folders name classes; score the run on them with: semimetric evaluate" in done.err


def test_of_very_many_examples_the_labelled_ones_and_some_others_are_judged(monkeypatch: pytest.MonkeyPatch) -> None:
    labels = torch.full((1000,), -1)
    labels[::100] = 1
    assert torch.equal(judged_rows(labels, 8), torch.arange(1000))
    monkeypatch.setattr("semimetric.model.unknown.MOST_NUMBERS", 8 * 60)
    rows = judged_rows(labels, 8)
    assert len(rows) == len(rows.unique()) == 60
    assert int((labels[rows] >= 0).sum()) == 10
    assert int(rows.max()) > 950
    by_class = torch.arange(4).repeat_interleave(torch.tensor([400, 300, 297, 3]))
    assert by_class[judged_rows(by_class, 8)].bincount().tolist() == [19, 19, 19, 3]
