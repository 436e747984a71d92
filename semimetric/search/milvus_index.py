"""Search in Milvus: embedded in this process on a folder, or on a server, by the same code."""

from __future__ import annotations

import hashlib
import itertools
import os
import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from semimetric.core.errors import InputError, RunError
from semimetric.search.exact import ExactIndex
from semimetric.search.extras import import_extra
from semimetric.search.hits import Hits, check_k, joined, nearest_first, single_precision
from semimetric.search.hnsw import HnswSettings
from semimetric.search.milvus_lite_server import LiteServer

QUERIES_AT_ONCE = 32
"""Milvus Lite subtracts all queries of a call from all vectors that it has not indexed yet, in one array."""

MOST_HITS = 16_384
"""Milvus returns no more hits of a query, and no more row numbers, at a time."""

ROWS_AT_ONCE = 1000
"""Vectors sent or read at a time; a message of Milvus holds 64 MiB."""

_SCHEMES = ("http", "https", "tcp")
_FIELDS = ("row", "embedding", "name", "run")
_NAME_BYTES = 4096
_CONNECT_SECONDS = 10.0


class MilvusIndex:
    """Embeddings in a collection of Milvus, one row each.

    A collection has the fields ``row``, the number of the example and the primary key, ``embedding``, ``name``, and
    ``run``, a fingerprint of all embeddings and names that were loaded together.

    Parameters
    ----------
    uri : str or Path
        A path that ends in .db opens Milvus Lite on that folder, which is made if it is not there; http://,
        https:// and tcp:// name a server.
    name : of the collection
    width : of the embeddings
    token : str, optional
        For the server; without it, what the environment variable MILVUS_TOKEN holds. It is handed to the client of
        Milvus and kept nowhere else.
    settings : of the graph, for a collection that is made
    """

    def __init__(
        self,
        uri: Path | str,
        name: str,
        width: int,
        token: str | None = None,
        settings: HnswSettings | None = None,
    ) -> None:
        self.uri, self.name, self.width = _checked_uri(str(uri)), _checked_name(name), width
        self._settings = settings or HnswSettings()
        self._milvus = import_extra("pymilvus", "milvus")
        self._lite = LiteServer(Path(uri)) if self.uri.endswith(".db") else None
        self._readable = self._closed = False
        try:
            self._client = self._connected(token or os.environ.get("MILVUS_TOKEN", ""))
        except BaseException:
            self._stop_lite()
            raise

    def _connected(self, token: str) -> Any:
        with self._asked_to("connect"):
            if self._lite is not None:
                return self._milvus.MilvusClient(uri=self._lite.address)
            return self._milvus.MilvusClient(uri=self.uri, token=token, timeout=_CONNECT_SECONDS)

    def __enter__(self) -> MilvusIndex:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Hang up, and stop Milvus Lite; closing twice does no harm."""
        self._closed = True
        self._client.close()
        self._stop_lite()

    def _stop_lite(self) -> None:
        if self._lite is not None:
            self._lite.stop()

    def __len__(self) -> int:
        with self._asked_to("count the rows"):
            self._find_collection()
            return self._count()

    def load(
        self,
        embeddings: Any,
        names: Sequence[str] | None = None,
        batch_size: int = ROWS_AT_ONCE,
        progress: Callable[[int, int], object] | None = None,
        replace: bool = False,
    ) -> None:
        """Store embeddings (N, width), each once; what is there of them already is left as it is.

        The same call after a kill, or a failure, goes on where that one ended.

        Parameters
        ----------
        names : what the field ``name`` says of each example; its number if there are none
        batch_size : rows sent at a time
        progress : called with the number of rows stored so far, and N
        replace : drop the embeddings of another run that are there; without it they are refused
        """
        stored = single_precision(embeddings, "embeddings", self.width).numpy()
        names = _checked_names(names, len(stored))
        if batch_size < 1:
            raise InputError(f"batch_size must be a whole number of at least 1, got {batch_size}.")
        run = _fingerprint(stored, names)
        with self._asked_to("load embeddings"):
            self._make_room(run, replace)
            missing = self._missing(run, len(stored))
            if len(missing):
                self._readable = False
                self._client.release_collection(self.name)  # Milvus Lite indexes all at once when it is read in again
                for start in range(0, len(missing), batch_size):
                    rows = missing[start : start + batch_size]
                    self._client.upsert(self.name, _records(rows, stored, names, run))
                    if progress is not None:
                        progress(len(stored) - len(missing) + start + len(rows), len(stored))
                self._client.flush(self.name)
                self._read_in()
            self._check_complete(len(stored))

    def search(self, queries: Any, k: int) -> Hits:
        """The ``k`` stored vectors nearest to each query (Q, width), or all where fewer are stored.

        Milvus follows a graph and may miss some. Its distances are of single precision.
        """
        asked = single_precision(queries, "queries", self.width)
        if check_k(k) > MOST_HITS:
            raise InputError(
                f"k must be at most {MOST_HITS} in Milvus, got {k}. Use ExactIndex or FaissIndex for more."
            )
        with self._asked_to("search"):
            self._find_collection()
            pieces = [self._of_block(block, k) for block in asked.split(QUERIES_AT_ONCE)]
        return joined(pieces)

    def _of_block(self, queries: Tensor, k: int) -> Hits:
        found = self._ask(queries, k)
        if min(map(len, found)) < k:
            k = min(k, self._count())
        if min(map(len, found)) < k:  # parts of a graph may be out of reach: of many copies, or where most are wanted
            return self._exactly(queries, k)
        rows = torch.tensor([[hit["row"] for hit in hits] for hits in found])
        squares = torch.tensor([[hit["distance"] for hit in hits] for hits in found], dtype=torch.float64)
        return nearest_first(squares.clamp(min=0).sqrt(), rows)

    def _exactly(self, queries: Tensor, k: int) -> Hits:
        """Hits among all vectors, read from Milvus."""
        pages = self._client.query_iterator(
            self.name, batch_size=ROWS_AT_ONCE, output_fields=["row", "embedding"], consistency_level="Strong"
        )
        stored = list(itertools.chain.from_iterable(iter(pages.next, [])))
        pages.close()
        hits = ExactIndex([found["embedding"] for found in stored]).search(queries, k)
        return nearest_first(hits.distances, torch.tensor([found["row"] for found in stored])[hits.rows])

    def _ask(self, queries: Tensor, k: int) -> Any:
        return self._client.search(
            self.name,
            data=list(queries.numpy()),
            anns_field="embedding",
            limit=k,
            output_fields=["row"],
            search_params={"metric_type": "L2", "params": {"ef": max(self._settings.ef_search, k)}},
            consistency_level="Strong",
        )

    def _make_room(self, run: str, replace: bool) -> None:
        """An open collection that holds nothing but rows of this run; one of another is refused, or dropped."""
        if self._client.has_collection(self.name) and self._holds_another(run):
            if not replace:
                raise InputError(
                    f"name {self.name!r} is a collection at {self.uri} that holds the embeddings of another run. "
                    "Name another collection, or replace that one with replace=True."
                )
            self._readable = False
            self._client.drop_collection(self.name)
        self._open_collection()

    def _holds_another(self, run: str) -> bool:
        if self._width_of_collection() != self.width:
            return True
        self._open_collection()
        return bool(self._rows(f'run != "{run}"', limit=1))

    def _width_of_collection(self) -> int:
        """Width of what is there; a collection with other fields is not ours to touch."""
        fields = self._client.describe_collection(self.name)["fields"]
        widths = {field["name"]: field["params"].get("dim") for field in fields}
        if set(widths) != set(_FIELDS):
            raise InputError(
                f"name {self.name!r} is a collection at {self.uri} with the fields {', '.join(sorted(widths))}, which "
                "semimetric did not make. Name another collection."
            )
        return int(widths["embedding"])

    def _open_collection(self) -> None:
        """Make the collection and its index where they are not there yet, and have Milvus read it."""
        if not self._client.has_collection(self.name):
            if self._lite is not None:
                self._lite.clear_half_made(self.name)
            self._client.create_collection(self.name, schema=self._schema(), consistency_level="Strong")
        if not self._client.list_indexes(self.name):
            self._make_index()
        self._read_in()

    def _find_collection(self) -> None:
        """Have Milvus read a collection that must be there."""
        if self._readable:
            return
        if not self._client.has_collection(self.name):
            raise InputError(f"name {self.name!r} is no collection at {self.uri}. Load embeddings into it first.")
        width = self._width_of_collection()
        if width != self.width:
            raise InputError(f"width must be {width}, as collection {self.name!r} has it, got {self.width}.")
        if self._lite is not None:
            self._client.flush(self.name)  # what a killed load left in the log would not be indexed
        self._open_collection()

    def _read_in(self) -> None:
        """Have Milvus read the collection; Milvus Lite builds its indexes then, and writes them in place.

        If it is killed meanwhile, half an index remains, which it can never read: it is built again.
        """
        try:
            self._client.load_collection(self.name)
        except self._milvus.MilvusException:
            if self._lite is None:
                raise
            self._client.drop_index(self.name, "embedding")
            self._make_index()
            self._client.load_collection(self.name)
        self._readable = True

    def _schema(self) -> Any:
        kinds = self._milvus.DataType
        schema = self._milvus.MilvusClient.create_schema(auto_id=False, enable_dynamic_field=False)
        schema.add_field("row", kinds.INT64, is_primary=True)
        schema.add_field("embedding", kinds.FLOAT_VECTOR, dim=self.width)
        schema.add_field("name", kinds.VARCHAR, max_length=_NAME_BYTES)
        schema.add_field("run", kinds.VARCHAR, max_length=64)
        return schema

    def _make_index(self) -> None:
        links = {"M": self._settings.m, "efConstruction": self._settings.ef_construction}
        index = self._client.prepare_index_params()
        index.add_index("embedding", index_name="embedding", index_type="HNSW", metric_type="L2", params=links)
        self._client.create_index(self.name, index, sync=False)  # reading the collection waits for it

    def _missing(self, run: str, count: int) -> NDArray[np.int64]:
        """Numbers of the rows that are not there exactly once.

        Milvus Lite shows a row twice if it was killed after it had written the row to a file and before it had
        removed it from its log; writing it again leaves one.
        """
        times = np.zeros(count, dtype=np.int64)
        for start in range(0, count if self._count() else 0, MOST_HITS):
            within = f"row >= {start} and row < {start + MOST_HITS}"
            np.add.at(times, [found["row"] for found in self._rows(f'{within} and run == "{run}"')], 1)
        return np.flatnonzero(times != 1)

    def _rows(self, condition: str, **limit: int) -> Any:
        return self._client.query(
            self.name, filter=condition, output_fields=["row"], consistency_level="Strong", **limit
        )

    def _count(self) -> int:
        counted = self._client.query(self.name, filter="", output_fields=["count(*)"], consistency_level="Strong")
        return int(counted[0]["count(*)"])

    def _check_complete(self, count: int) -> None:
        found = self._count()
        if found != count:
            raise RunError(
                f"collection {self.name!r} at {self.uri} holds {found} rows after {count} were loaded, so something "
                "else writes to it. Load into a collection of its own."
            )

    @contextmanager
    def _asked_to(self, what: str) -> Iterator[None]:
        """Tell in a sentence what Milvus could not do."""
        if self._closed:
            raise RunError(f"the index of {self.uri} is closed and cannot {what}. Open another one.")
        try:
            yield
        except self._milvus.MilvusException as error:
            reason = " ".join(str(error.message).split()).rstrip(".")
            raise RunError(
                f"Milvus at {self.uri} could not {what}: {reason}. Check that it runs, and that MILVUS_TOKEN is right "
                "if it needs one; loading again goes on where it ended."
            ) from error


def _checked_uri(uri: str) -> str:
    parts = urlsplit(uri)
    if parts.username or parts.password:
        raise InputError("uri must not hold a user or password. Put user:password, or a token, into MILVUS_TOKEN.")
    served, on_disk = parts.scheme in _SCHEMES, uri.endswith(".db")
    if served == on_disk or ("://" in uri and not served):
        raise InputError(
            "uri must be a path that ends in .db, for Milvus Lite, or begin with http://, https:// or tcp://, "
            f"got {uri!r}."
        )
    return uri


def _checked_name(name: str) -> str:
    if not re.fullmatch(r"[A-Za-z_]\w{0,254}", name, flags=re.ASCII):
        raise InputError(
            f"name must be letters, digits and underscores, at most 255, not beginning with a digit, got {name!r}."
        )
    return name


def _checked_names(names: Sequence[str] | None, count: int) -> list[str]:
    chosen = [str(row) for row in range(count)] if names is None else [str(name) for name in names]
    if len(chosen) != count:
        raise InputError(f"names must have one entry for each of the {count} embeddings, got {len(chosen)}.")
    long = next((row for row, name in enumerate(chosen) if len(name.encode()) > _NAME_BYTES), None)
    if long is not None:
        raise InputError(f"names must have at most {_NAME_BYTES} bytes each; number {long} has more. Shorten it.")
    return chosen


def _fingerprint(stored: NDArray[np.float32], names: list[str]) -> str:
    """Of all numbers and names in their order."""
    digest = hashlib.sha256(str(stored.shape).encode())
    digest.update(stored.data)
    for name in names:
        digest.update(name.encode() + b"\0")
    return digest.hexdigest()[:32]


def _records(
    rows: NDArray[np.int64], stored: NDArray[np.float32], names: list[str], run: str
) -> list[dict[str, object]]:
    return [{"row": row, "embedding": stored[row], "name": names[row], "run": run} for row in rows.tolist()]
