"""Class predictions for new examples of a run, as a CSV file."""

from __future__ import annotations

import glob
from collections.abc import Sequence
from pathlib import Path

from semimetric.core.files import check_output, clear_leftovers
from semimetric.data import Collection
from semimetric.model.folder import LoadedRun
from semimetric.serve.embed import Embedded, check_any, check_suffix, embed_chunks, together, write_table, writing
from semimetric.training.progress import Progress


def predict_to(
    loaded: LoadedRun,
    collection: Collection,
    out: Path,
    progress: Progress | None = None,
    inputs: Sequence[Path] = (),
    replace: bool = False,
    raw: bool = False,
) -> Embedded:
    """Predict the classes of a collection and write name, label and probability of each example to a CSV file.

    An example that cannot be used has no label and a reason. Every row of a table has a row, in the same order.

    A file that is there is replaced with ``replace`` alone, one of ``inputs`` never. For ``raw`` see ``write_table``.
    """
    check_suffix(out, (".csv",))
    check_output(out, inputs, replace)
    fitted, classes = loaded.fitted, loaded.fitted.examples.classes
    fitted.check_predicts()
    rows: dict[str, list[object]] = {}
    pieces = []
    for piece in embed_chunks(loaded, collection, progress):
        if piece.names:
            best = fitted.probabilities(piece.embeddings).max(1)
            named = zip(piece.names, best.indices.tolist(), best.values.tolist(), strict=True)
            rows |= {name: [classes[number], round(value, 6), ""] for name, number, value in named}
        rows |= {name: ["", "", reason] for name, reason in piece.skipped.items()}
        pieces.append(piece)
    embedded = together(pieces, collection.skipped)
    check_any(embedded)
    with writing(out):
        write_table(out, ["name", "label", "probability", "reason"], _in_order(collection, rows), raw)
        clear_leftovers(out.parent, glob.escape(out.name))
    return embedded


def _in_order(collection: Collection, rows: dict[str, list[object]]) -> list[list[object]]:
    """Rows with their names: of a table as there, with those that were left out; of a folder in natural order."""
    unused: dict[str, list[object]] = {name: ["", "", reason] for name, reason in collection.skipped.items()}
    found = unused | rows
    return [[name, *found[name]] for name in collection.order or collection.names]
