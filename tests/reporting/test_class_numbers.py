"""Reports and pages of a benchmark whose classes with labels are not numbered from 0: whole classes are withheld."""

from __future__ import annotations

from pathlib import Path

import pytest
from helpers.command import semimetric

from semimetric.model.folder import load_run
from semimetric.reporting.facts import read_facts
from semimetric.serve.page.desk import Desk


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Digits with two classes withheld."""
    path = tmp_path_factory.mktemp("gaps") / "run"
    asked = ("--dataset", "digits", "--withheld", "classes", "--validation-share", 0.2, "--epochs", 1)
    done = semimetric("fit", *asked, "-o", path, "--device", "cpu")
    assert done.code == 0, done.err
    return path


def test_classes_keep_their_names(run: Path) -> None:
    fitted = load_run(run, "cpu").fitted
    numbers = fitted.posteriors.classes.tolist()
    assert numbers != list(range(len(numbers)))
    names = dict(zip(numbers, map(str, fitted.examples.classes), strict=True))
    wanted = [None if label < 0 else names[label] for label in fitted.labels.tolist()]
    facts, desk = read_facts(run), Desk(run)
    assert desk.book.labels == wanted
    best = [names[numbers[place]] for place in fitted.posteriors.shares.argmax(1).tolist()]
    assert [entry["predicted"] for entry in desk.examples(list(range(50)))] == best[:50]
    labelled = [row for row, label in enumerate(wanted) if label is not None]
    assert [facts.label(row) for row in labelled] == [wanted[row] for row in labelled]
    assert facts.judgement is not None
    assert int(facts.judgement.truth.max()) < len(facts.classes)
    assert facts.judgement.accuracy > 0.5
