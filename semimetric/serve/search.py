"""The training examples of a run that are nearest to queries: photographs, folders, tables, or examples of the run."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from semimetric.core.errors import InputError
from semimetric.data import Collection
from semimetric.model.fitted import FittedModel
from semimetric.model.folder import LoadedRun
from semimetric.search import Hits, search_run_index
from semimetric.serve.csv_file import write_table
from semimetric.serve.embed import Embedded, embed_chunks, examples_of, together
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
    queries : photographs, folders of them, tables, or names of examples of the run, which do not find themselves
    index : place of an index of the run; without one all examples are compared
    collection : name of the collection in Milvus
    columns : columns of labels and of names in a table
    """
    sources = list(dict.fromkeys(queries))
    own = _own_rows(loaded.fitted, sources)
    _check_queries(loaded.fitted, [source for source in sources if source not in own])
    read = [(source, examples_of(loaded, source, *columns, progress)) for source in sources if source not in own]
    pieces = [piece for pair in read for piece in _embedded(loaded, *pair, len(sources) > 1, progress)]
    known = [Embedded((str(name),), loaded.fitted.embeddings[[row]], {}) for name, row in own.items()]
    asked = together([*known, *pieces], {})
    if not asked.names:
        reasons = "; ".join(f"{name}: {reason}" for name, reason in list(asked.skipped.items())[:REASONS])
        raise InputError(f"no query can be read. {reasons}.")
    hits = search_run_index(index, loaded.fitted.embeddings, asked.embeddings, k + bool(own), collection)
    listed = (_listed(loaded.fitted, hits, row) for row in range(len(asked.names)))
    themselves = {str(name) for name in own}
    others = (
        [line for line in lines if name not in themselves or line["name"] != name]
        for name, lines in zip(asked.names, listed, strict=True)
    )
    return {name: lines[:k] for name, lines in zip(asked.names, others, strict=True)}, asked.skipped


def _own_rows(fitted: FittedModel, queries: Sequence[Path]) -> dict[Path, int]:
    """Rows of the queries that are no files but names of examples of the run."""
    rows = {name: row for row, name in enumerate(fitted.examples.names)}
    return {query: rows[str(query)] for query in queries if str(query) in rows and not query.exists()}


def _check_queries(fitted: FittedModel, queries: Sequence[Path]) -> None:
    """Refuse the number of a row where the run has an example "row 17" and there is no file 17."""
    names = {*fitted.examples.names}
    for query in queries:
        if f"row {query}" in names and not query.exists():
            raise InputError(f"there is no file {query}. For the example of the run, say: 'row {query}'.")


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


def write_hits(out: Path, found: Mapping[str, Sequence[Mapping[str, Any]]], raw: bool = False) -> None:
    """Write the hits of all queries to a CSV file, one row each; ``raw`` as in ``write_table``."""
    columns = ("name", "distance", "label", "labelled", "confidence")
    rows = (
        [query, rank, *("" if line[column] is None else line[column] for column in columns)]
        for query, lines in found.items()
        for rank, line in enumerate(lines, 1)
    )
    write_table(out, ["query", "rank", *columns], rows, raw)
