"""What a run holds of its own examples, and what to label next, as CSV files that ``fit --labels`` reads."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from semimetric.core.files import check_output
from semimetric.data.labels import SUGGESTED
from semimetric.model.fitted import FittedModel
from semimetric.serve.csv_file import write_table
from semimetric.serve.embed import check_suffix, writing
from semimetric.serve.suggest import Suggestions

COLUMNS = ["name", "label", "source", "predicted", "confidence"]
TO_LABEL = ["name", "label", "source", "uncertainty", "stands_for", "gain"]


def check_list(out: Path, replace: bool = False) -> None:
    """Refuse a file that is no CSV file or is in the way."""
    check_suffix(out, (".csv",))
    check_output(out, (), replace)


def suggestions_to(fitted: FittedModel, chosen: Suggestions, out: Path, raw: bool = False) -> None:
    """Write suggested examples with an empty label, then all labels of the run; for ``raw`` see ``write_table``."""
    names = fitted.examples.names
    numbers = zip(*(part.tolist() for part in chosen), strict=True)
    rows = [
        [names[row], "", SUGGESTED, round(uncertainty, 4), near, round(gain, 6)]
        for row, gain, uncertainty, _, near in numbers
    ]
    given = zip(names, given_labels(fitted), _sources(fitted), strict=True)
    rows += [[name, label, source, "", "", ""] for name, label, source in given if label is not None]
    _write(out, TO_LABEL, rows, raw)


def labels_to(out: Path, rows: list[list[Any]], raw: bool = False) -> None:
    """Write ``labels_of`` each example as CSV; for ``raw`` see ``write_table``."""
    _write(out, COLUMNS, rows, raw)


def labels_of(
    fitted: FittedModel, labels: Sequence[str | None] | None = None, sources: Sequence[str] | None = None
) -> list[list[Any]]:
    """Name, given label, its source, predicted label and confidence of each example of a run, as in ``COLUMNS``.

    ``fit --labels`` reads the given labels and their source, which is "suggested" where ``suggest`` had chosen the
    example. A label is empty where none was given, and what is predicted is empty in a run without labels. ``labels``
    and ``sources`` (N,) are those of a label book, in place of the run's.
    """
    names, found = fitted.examples, fitted.posteriors
    best = found.shares.argmax(1).tolist() if names.classes else [None] * len(fitted.labels)
    return [
        [
            name,
            "" if label is None else label,
            source if label is not None else "",
            "" if place is None else names.classes[place],
            "" if place is None else round(confidence, 6),
        ]
        for name, label, source, place, confidence in zip(
            names.names,
            labels or given_labels(fitted),
            sources or _sources(fitted),
            best,
            found.confidence.tolist(),
            strict=True,
        )
    ]


def given_labels(fitted: FittedModel) -> list[Any]:
    """The label of each example, None for none."""
    classes = dict(zip(fitted.posteriors.classes.tolist(), fitted.examples.classes, strict=True))
    return [None if label < 0 else classes[label] for label in fitted.labels.tolist()]


def _sources(fitted: FittedModel) -> list[str]:
    """For each example "suggested" or ""."""
    suggested = {*fitted.examples.suggested}
    return [SUGGESTED if row in suggested else "" for row in range(len(fitted.labels))]


def _write(out: Path, columns: list[str], rows: list[list[Any]], raw: bool) -> None:
    with writing(out):
        write_table(out, columns, rows, raw)
