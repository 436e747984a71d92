"""Class predictions for new examples of a run; an example that looks like no known class gets no name."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from semimetric.core.files import check_output
from semimetric.data import Collection
from semimetric.data.readers.folder import IMAGE_SUFFIXES
from semimetric.model.fitted import FittedModel
from semimetric.model.folder import LoadedRun
from semimetric.model.unknown import RISK
from semimetric.serve.csv_file import write_table
from semimetric.serve.embed import Embedded, check_any, check_suffix, embed_chunks, together, writing
from semimetric.training.progress import Progress

COLUMNS = ("name", "label", "probability", "second", "second_probability", "unknown", "reason")
UNLIKE_ALL = "looks like no known class"
Row = dict[str, Any]


@dataclass(frozen=True)
class Predictions:
    """Predictions for a collection.

    Attributes
    ----------
    rows : a row for each example, with the keys ``COLUMNS``; ``label`` is "" with a ``reason`` where there is no name
    named : number of examples with a name
    unlike : names of the examples that look like no known class
    groups : those of them that look like one more class, group by group
    skipped : reasons for the examples that cannot be used
    judged : whether the run can tell examples of no known class
    threshold : score of being of no known class above which an example has no name; None where all have one
    """

    rows: list[Row]
    named: int
    unlike: tuple[str, ...]
    groups: tuple[tuple[str, ...], ...]
    skipped: dict[str, str]
    judged: bool
    threshold: float | None = None


def check_prediction(out: Path, inputs: Sequence[Path] = (), replace: bool = False) -> None:
    """Refuse a file that is no CSV file or is in the way; one of ``inputs`` is never replaced."""
    check_suffix(out, (".csv",))
    check_output(out, inputs, replace)


def predict_collection(
    loaded: LoadedRun, collection: Collection, risk: float = RISK, progress: Progress | None = None
) -> Predictions:
    """Predict the classes of a collection. Every row of a table has a row, in the same order, and every photograph.

    ``risk`` is the share of the examples of known classes that may lose their name so that others get none. With 0 all
    have a name.
    """
    fitted = loaded.fitted
    fitted.check_predicts()
    threshold = None if fitted.unknown is None else fitted.unknown.threshold(risk)
    rows = {name: _row(name, reason=reason) for name, reason in collection.skipped.items()}
    pieces, unlike, far = [], [], []
    for piece in embed_chunks(loaded, collection, progress):
        rows |= {name: _row(name, reason=reason) for name, reason in piece.skipped.items()}
        scores = None if fitted.unknown is None or piece.inputs is None else fitted.unknown.scores(piece.inputs)
        if piece.names:
            rows |= {row["name"]: row for row in _named(fitted, piece, scores)}
        if scores is not None and threshold is not None and piece.inputs is not None:
            beyond = (scores > threshold).nonzero().flatten().tolist()
            unlike += [piece.names[place] for place in beyond]
            far.append(piece.inputs[beyond])
        pieces.append(piece)
    embedded = together(pieces, collection.skipped)
    check_any(embedded)
    for name in unlike:
        rows[name] |= {"label": "", "reason": UNLIKE_ALL}
    groups: tuple[tuple[str, ...], ...] = ()
    if fitted.unknown is not None and unlike:
        found = fitted.unknown.groups(torch.cat(far))
        groups = tuple(tuple(unlike[place] for place in group.tolist()) for group in found)
    unread = [name for name in collection.skipped if Path(name).suffix.lower() in IMAGE_SUFFIXES]
    ordered = [rows[name] for name in collection.order or (*collection.names, *unread)]
    counts = len(embedded.names) - len(unlike)
    shown = threshold if risk > 0 else None
    return Predictions(ordered, counts, tuple(unlike), groups, embedded.skipped, fitted.unknown is not None, shown)


def write_predictions(found: Predictions, out: Path, raw: bool = False) -> None:
    """Write the rows to a CSV file; for ``raw`` see ``write_table``."""
    with writing(out):
        write_table(out, list(COLUMNS), ([row[column] for column in COLUMNS] for row in found.rows), raw)


def _row(name: str, **values: object) -> Row:
    return dict.fromkeys(COLUMNS, "") | {"name": name} | values


def _named(fitted: FittedModel, piece: Embedded, unknown: Tensor | None) -> list[Row]:
    """A row for each example, with the two likeliest classes and the score of being of no known class."""
    classes = fitted.examples.classes
    best = fitted.probabilities(piece.embeddings).topk(min(2, len(classes)), dim=1)
    scores: Sequence[object] = [""] * len(piece.names)
    if unknown is not None:
        scores = [round(score, 6) for score in unknown.tolist()]
    rows = []
    for name, numbers, values, score in zip(
        piece.names, best.indices.tolist(), best.values.tolist(), scores, strict=True
    ):
        row = _row(name, label=classes[numbers[0]], probability=round(values[0], 6), unknown=score)
        if len(numbers) > 1:
            row |= {"second": classes[numbers[1]], "second_probability": round(values[1], 6)}
        rows.append(row)
    return rows
