"""What a run holds of its own examples, as a CSV file that ``fit --labels`` reads."""

from __future__ import annotations

import glob
from collections.abc import Sequence
from pathlib import Path

from semimetric.core.files import check_output, clear_leftovers
from semimetric.model.folder import LoadedRun
from semimetric.serve.embed import check_suffix, write_table, writing

COLUMNS = ["name", "label", "predicted", "confidence"]


def labels_to(
    loaded: LoadedRun, out: Path, inputs: Sequence[Path] = (), replace: bool = False, raw: bool = False
) -> tuple[int, int]:
    """Write name, given label, predicted label and confidence of each example of a run; the counts of rows and labels.

    ``fit --labels`` reads the given labels. A label is empty where none was given, and what is predicted is empty in a
    run without labels. A file that is there is replaced with ``replace`` alone. For ``raw`` see ``write_table``.
    """
    check_suffix(out, (".csv",))
    check_output(out, inputs, replace)
    fitted = loaded.fitted
    names, found = fitted.examples, fitted.posteriors
    classes = dict(zip(found.classes.tolist(), names.classes, strict=True))
    best = found.shares.argmax(1).tolist() if classes else [None] * len(fitted.labels)
    rows = [
        [
            name,
            "" if label < 0 else classes[label],
            "" if place is None else names.classes[place],
            "" if place is None else round(confidence, 6),
        ]
        for name, label, place, confidence in zip(
            names.names, fitted.labels.tolist(), best, found.confidence.tolist(), strict=True
        )
    ]
    with writing(out):
        write_table(out, COLUMNS, rows, raw)
        clear_leftovers(out.parent, glob.escape(out.name))
    return len(rows), int((fitted.labels >= 0).sum())
