"""Search in Milvus: Milvus Lite in this process on a folder, or a server, by the same code."""

from __future__ import annotations

import hashlib
import itertools
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from semimetric.core.checks import check_whole
from semimetric.core.errors import InputError
from semimetric.graph.nearest import nearest_first
from semimetric.search.exact import ExactIndex
from semimetric.search.hits import Hits, check_k, joined, single_precision
from semimetric.search.index import HnswSettings, Index, IndexBackend
from semimetric.search.milvus_collection import FIELDS, MOST_HITS, NAME_BYTES, SCHEMES, MilvusCollection, check_uri
from semimetric.search.milvus_lite_server import check_folder

QUERIES_AT_ONCE = 32
"""Milvus Lite compares all queries of a call with all vectors that are not indexed yet, in one array."""

ROWS_AT_ONCE = 1000  # vectors sent or read in one message; Milvus limits a message to 64 MiB


class MilvusIndex(Index):
    """Embeddings in a collection of Milvus, one row each.

    A collection has the fields ``row`` (number of the example, primary key), ``embedding``, ``name``, and ``run``, a
    fingerprint of all embeddings and names that were loaded together.

    Parameters
    ----------
    uri : folder ending in .db for Milvus Lite, created if needed, or http://, https:// or tcp:// URL of a server
    name : of the collection
    width : of the embeddings
    token : of the server, by default the environment variable MILVUS_TOKEN; only passed to the Milvus client
    settings : of the graph, for a new collection
    """

    most = MOST_HITS

    def __init__(
        self, uri: Path | str, name: str, width: int, token: str | None = None, settings: HnswSettings | None = None
    ) -> None:
        self._collection = MilvusCollection(str(uri), name, width, token, settings or HnswSettings())
        self.uri, self.name, self.width = str(uri), name, width

    def close(self) -> None:
        """Disconnect, and stop Milvus Lite; a second call does nothing more."""
        self._collection.close()

    def __len__(self) -> int:
        with self._collection.asked_to("count the rows"):
            self._collection.find()
            return self._collection.count()

    def load(
        self,
        embeddings: Any,
        names: Sequence[str] | None = None,
        batch_size: int = ROWS_AT_ONCE,
        progress: Callable[[int, int], object] | None = None,
        replace: bool = False,
    ) -> None:
        """Store each embedding once; after a kill or a failure, the same call begins anew.

        Each message has ``batch_size`` rows; the other parameters are those of ``build_index``.
        """
        stored = single_precision(embeddings, "embeddings", self.width).numpy()
        names = _checked_names(names, len(stored))
        check_whole(batch_size, "batch_size")
        run, collection = _fingerprint(stored, names), self._collection
        with collection.asked_to("load embeddings"):
            if collection.is_loaded(run, len(stored), replace):
                return
            with collection.empty() as empty:
                for start in range(0, len(stored), batch_size):
                    rows = range(start, min(start + batch_size, len(stored)))
                    values = ((row, stored[row], names[row], run) for row in rows)
                    empty.client.upsert(self.name, [dict(zip(FIELDS, value, strict=True)) for value in values])
                    if progress is not None:
                        progress(rows.stop, len(stored))

    def search(self, queries: Any, k: int) -> Hits:
        """Find the ``k`` <= 16384 nearest stored vectors of each query; some may be missed. Distances are float32."""
        asked = single_precision(queries, "queries", self.width)
        if check_k(k) > MOST_HITS:
            hint = "Use ExactIndex or FaissIndex for more."
            raise InputError(f"k must be at most {MOST_HITS} in Milvus, got {k}. {hint}")
        with self._collection.asked_to("search"):
            self._collection.find()
            return joined([self._of_block(block, k) for block in asked.split(QUERIES_AT_ONCE)])

    def _of_block(self, queries: Tensor, k: int) -> Hits:
        found = self._collection.nearest(queries.numpy(), k)
        if min(map(len, found)) < k:
            k = min(k, self._collection.count())
        if min(map(len, found)) < k:  # the graph may be disconnected: with many copies, or if k is near N
            return self._exactly(queries, k)
        rows = torch.tensor([[hit["row"] for hit in hits] for hits in found])
        squares = torch.tensor([[hit["distance"] for hit in hits] for hits in found], dtype=torch.float64)
        return Hits(*nearest_first(squares.clamp(min=0).sqrt(), rows))

    def _exactly(self, queries: Tensor, k: int) -> Hits:
        """Hits among all vectors, read from Milvus."""
        what = {"output_fields": ["row", "embedding"], "consistency_level": "Strong"}
        pages = self._collection.client.query_iterator(self.name, batch_size=ROWS_AT_ONCE, **what)
        stored = list(itertools.chain.from_iterable(iter(pages.next, [])))
        pages.close()
        hits = ExactIndex([found["embedding"] for found in stored]).search(queries, k)
        rows = torch.tensor([found["row"] for found in stored])[hits.rows]
        return Hits(*nearest_first(hits.distances, rows))


def _checked_names(names: Sequence[str] | None, count: int) -> list[str]:
    chosen = [str(row) for row in range(count)] if names is None else [str(name) for name in names]
    if len(chosen) != count:
        raise InputError(f"names must have one entry for each of the {count} embeddings, got {len(chosen)}.")
    long = next((row for row, name in enumerate(chosen) if len(name.encode()) > NAME_BYTES), None)
    if long is not None:
        raise InputError(f"names must have at most {NAME_BYTES} bytes each; number {long} has more. Shorten it.")
    return chosen


def _fingerprint(stored: NDArray[np.float32], names: list[str]) -> str:
    """Hash of all numbers and names in their order."""
    digest = hashlib.sha256(str(stored.shape).encode())
    digest.update(stored.data)
    for name in names:
        digest.update(name.encode() + b"\0")
    return digest.hexdigest()[:32]


def _build(place: str, embeddings: Any, names: Any, collection: str, replace: bool, progress: Any) -> None:
    stored = single_precision(embeddings, "embeddings")
    with MilvusIndex(place, collection, stored.shape[1]) as index:
        index.load(stored, names, progress=progress, replace=replace)


def _check_new(place: str, inputs: object, replace: bool, option: str, allow: str) -> None:
    """Collections of the place are checked by ``load``: that of the same run is continued."""
    if "://" not in check_uri(place):
        check_folder(Path(place), option)


BACKEND = IndexBackend(
    name="milvus",
    places="a folder ending in .db (Milvus Lite), or the URL of a Milvus server",
    open=lambda place, width, collection: MilvusIndex(place, collection, width),
    build=_build,
    suffixes=(".db",),
    schemes=SCHEMES,
    check_new=_check_new,
)
