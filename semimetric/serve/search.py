"""The training examples of a run that are nearest to queries: photographs, folders of them, or tables."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from semimetric.core.errors import InputError
from semimetric.data import Collection
from semimetric.data.readers.folder import IMAGE_SUFFIXES
from semimetric.data.readers.tables import TABLE_SUFFIXES
from semimetric.model.fitted import FittedModel
from semimetric.model.folder import LoadedRun
from semimetric.search import Hits, search_run_index
from semimetric.serve.embed import Embedded, check_fits, embed_chunks, new_examples, together
from semimetric.training.progress import Progress

REASONS = 3
"""Reasons in the error when no query can be read."""


def search_run(
    loaded: LoadedRun,
    queries: Sequence[Path],
    k: int,
    index: str | None = None,
    collection: str = "semimetric",
    columns: tuple[str | None, str | None] = (None, None),
    progress: Progress | None = None,
) -> tuple[dict[str, list[dict[str, Any]]], dict[str, str]]:
    """The ``k`` nearest training examples of each query, nearest first, and the queries that cannot be read.

    Parameters
    ----------
    queries : photographs, folders of them, or tables
    index : place of an index of the run; without one all examples are compared
    collection : name of the collection in Milvus
    columns : columns of labels and of names in a table
    """
    sources = list(dict.fromkeys(queries))
    read = [(source, _examples_of(loaded, source, *columns, progress)) for source in sources]
    asked = together([piece for pair in read for piece in _embedded(loaded, *pair, len(read) > 1, progress)], {})
    if not asked.names:
        reasons = "; ".join(f"{name}: {reason}" for name, reason in list(asked.skipped.items())[:REASONS])
        raise InputError(f"no query can be read. {reasons}.")
    hits = search_run_index(index, loaded.fitted.embeddings, asked.embeddings, k, collection)
    return {name: _listed(loaded.fitted, hits, row) for row, name in enumerate(asked.names)}, asked.skipped


def _examples_of(
    loaded: LoadedRun, query: Path, label_column: str | None, id_column: str | None, progress: Progress | None
) -> Collection:
    """The examples of a query: one photograph, or those of a folder or table."""
    suffix, kind = query.suffix.lower(), loaded.fitted.spec.kind
    photograph = suffix in IMAGE_SUFFIXES or (kind == "photographs" and suffix not in TABLE_SUFFIXES)
    if photograph and not query.is_dir():
        return check_fits(loaded, Collection((str(query),), (None,), (query,), None, (), {}))
    return new_examples(loaded, query, label_column, id_column, progress)


def _embedded(
    loaded: LoadedRun, query: Path, found: Collection, one_of_many: bool, progress: Progress | None
) -> Iterator[Embedded]:
    """The embeddings of a query; in one of many folders or tables, names of examples begin with that of the source."""
    several = one_of_many and found.names != (str(query),)
    before = f"{query}{'/' if found.paths is not None else ': '}" if several else ""
    for piece in embed_chunks(loaded, found, progress):
        skipped = {before + name: reason for name, reason in (found.skipped | piece.skipped).items()}
        yield Embedded(tuple(before + name for name in piece.names), piece.embeddings, skipped)


def _listed(fitted: FittedModel, hits: Hits, row: int) -> list[dict[str, Any]]:
    """The hits of one query as JSON values."""
    found, examples = fitted.posteriors, fitted.examples
    return [
        {
            "name": examples.names[number],
            "distance": distance,
            "label": examples.classes[int(found.shares[number].argmax())] if examples.classes else None,
            "labelled": bool(fitted.labels[number] >= 0),
            "confidence": float(found.confidence[number]) if examples.classes else None,
        }
        for number, distance in zip(hits.rows[row].tolist(), hits.distances[row].tolist(), strict=True)
    ]
