"""One collection of Milvus: connecting, creating, checking whose it is, and repairing what a killed process left."""

from __future__ import annotations

import logging
import os
import re
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import numpy as np
from numpy.typing import NDArray

from semimetric.core.errors import InputError, RunError
from semimetric.core.extras import import_extra
from semimetric.search.index import HnswSettings
from semimetric.search.milvus_lite_server import LiteServer

MOST_HITS = 16_384  # limit of Milvus on the hits of a query, and on the row numbers of an answer

NAME_BYTES = 4096
SCHEMES = ("http", "https", "tcp")
FIELDS = ("row", "embedding", "name", "run")
_CONNECT_SECONDS = 10.0


@contextmanager
def _unlogged(name: str) -> Iterator[None]:
    """Keep a logger quiet: it prints tracebacks of errors that are reported here."""
    logger = logging.getLogger(name)
    before = logger.level
    logger.setLevel(logging.CRITICAL + 1)
    try:
        yield
    finally:
        logger.setLevel(before)


class MilvusCollection:
    """A connection to a collection for embeddings of one width; the parameters are those of ``MilvusIndex``."""

    def __init__(self, uri: str, name: str, width: int, token: str | None, settings: HnswSettings) -> None:
        if not re.fullmatch(r"[A-Za-z_]\w{0,254}", name, flags=re.ASCII):
            expected = "letters, digits and underscores, at most 255, not beginning with a digit"
            raise InputError(f"name must be {expected}, got {name!r}.")
        self.uri, self.name, self.width, self.settings = check_uri(uri), name, width, settings
        self._milvus = import_extra("pymilvus", "milvus", "this search")
        self._lite: LiteServer | None = None
        self._readable = self._closed = False
        server = {"uri": self.uri, "token": token or os.environ.get("MILVUS_TOKEN", ""), "timeout": _CONNECT_SECONDS}
        with self.asked_to("connect"), ExitStack() as opened:
            if uri.endswith(".db"):
                self._lite = LiteServer(Path(uri))
                opened.callback(self._lite.stop)
                server = {"uri": self._lite.address}
            self.client = self._milvus.MilvusClient(**server)
            opened.callback(self.client.close)
            self._opened = opened.pop_all()

    def close(self) -> None:
        """Disconnect, and stop Milvus Lite; a second call does nothing more."""
        self._closed = True
        self._opened.close()

    @contextmanager
    def asked_to(self, what: str) -> Iterator[None]:
        """Turn errors of Milvus into a RunError that says what failed."""
        if self._closed:
            raise RunError(f"the index of {self.uri} is closed and cannot {what}. Open another one.")
        try:
            with _unlogged("pymilvus"):
                yield
        except self._milvus.MilvusException as error:
            reason = " ".join(str(error.message).split()).rstrip(".")
            raise RunError(
                f"Milvus at {self.uri} could not {what}: {reason}. Check that it runs, and MILVUS_TOKEN if it needs "
                "one. Loading again continues an interrupted load."
            ) from error

    def make_room(self, run: str, replace: bool) -> None:
        """Open a collection that holds only rows of this run; refuse or drop one of another run."""
        if self.client.has_collection(self.name) and self._holds_another(run):
            if not replace:
                raise InputError(
                    f"name {self.name!r} is a collection at {self.uri} that holds the embeddings of another run. "
                    "Name another collection, or replace that one with replace=True."
                )
            self._readable = False
            if self._lite is not None:
                self._lite.check_own(self.name)
            self.client.drop_collection(self.name)
        self._open()

    def find(self) -> None:
        """Open a collection that must exist."""
        if self._readable:
            return
        if not self.client.has_collection(self.name):
            raise InputError(f"name {self.name!r} is no collection at {self.uri}. Load embeddings into it first.")
        width = self._stored_width()
        if width != self.width:
            raise InputError(f"width must be {width}, the width of collection {self.name!r}, got {self.width}.")
        if self._lite is not None:
            self.client.flush(self.name)  # rows that a killed load left in the log would not be indexed
        self._open()

    def release(self) -> None:
        """Before rows are written: Milvus Lite then indexes all of them at once in ``read_in``."""
        self._readable = False
        self.client.release_collection(self.name)

    def read_in(self) -> None:
        """Load the collection; Milvus Lite builds its index files now, again if a kill left them incomplete."""
        try:
            self.client.load_collection(self.name)
        except self._milvus.MilvusException:
            if self._lite is None:
                raise
            self.client.drop_index(self.name, "embedding")
            self._make_index()
            self.client.load_collection(self.name)
        self._readable = True

    def missing(self, run: str, count: int) -> NDArray[np.int64]:
        """Numbers of the rows that are not stored exactly once.

        Milvus Lite shows a row twice if it was killed after writing it to a file. Writing it again leaves one.
        """
        times = np.zeros(count, dtype=np.int64)
        for start in range(0, count if self.count() else 0, MOST_HITS):
            within = f"row >= {start} and row < {start + MOST_HITS}"
            np.add.at(times, [found["row"] for found in self._query(f'{within} and run == "{run}"', "row")], 1)
        return np.flatnonzero(times != 1)

    def nearest(self, queries: NDArray[np.float32], k: int) -> Any:
        """Hits of each query in the graph."""
        options = {"metric_type": "L2", "params": {"ef": max(self.settings.ef_search, k)}}
        found = {"limit": k, "output_fields": ["row"], "search_params": options, "consistency_level": "Strong"}
        return self.client.search(self.name, data=list(queries), anns_field="embedding", **found)

    def count(self) -> int:
        """Number of stored rows."""
        return int(self._query("", "count(*)")[0]["count(*)"])

    def _query(self, condition: str, field: str, **limit: int) -> Any:
        fields = [field]
        return self.client.query(self.name, filter=condition, output_fields=fields, consistency_level="Strong", **limit)

    def _holds_another(self, run: str) -> bool:
        if self._stored_width() != self.width:
            return True
        self._open()
        return bool(self._query(f'run != "{run}"', "row", limit=1))

    def _stored_width(self) -> int:
        """Width of the stored embeddings; a collection with other fields is refused."""
        fields = self.client.describe_collection(self.name)["fields"]
        widths = {field["name"]: field["params"].get("dim") for field in fields}
        if set(widths) != set(FIELDS):
            raise InputError(
                f"name {self.name!r} is a collection at {self.uri} with the fields {', '.join(sorted(widths))}, which "
                "semimetric did not make. Name another collection."
            )
        return int(widths["embedding"])

    def _open(self) -> None:
        """Create the collection and its index if needed, and load it."""
        if not self.client.has_collection(self.name):
            if self._lite is not None:
                self._lite.clear_half_made(self.name)
            self.client.create_collection(self.name, schema=self._schema(), consistency_level="Strong")
        if not self.client.list_indexes(self.name):
            self._make_index()
        self.read_in()

    def _schema(self) -> Any:
        kinds = self._milvus.DataType
        schema = self._milvus.MilvusClient.create_schema(auto_id=False, enable_dynamic_field=False)
        schema.add_field("row", kinds.INT64, is_primary=True)
        schema.add_field("embedding", kinds.FLOAT_VECTOR, dim=self.width)
        schema.add_field("name", kinds.VARCHAR, max_length=NAME_BYTES)
        schema.add_field("run", kinds.VARCHAR, max_length=64)
        return schema

    def _make_index(self) -> None:
        links = {"M": self.settings.m, "efConstruction": self.settings.ef_construction}
        index = self.client.prepare_index_params()
        index.add_index("embedding", index_name="embedding", index_type="HNSW", metric_type="L2", params=links)
        self.client.create_index(self.name, index, sync=False)  # loading the collection waits for it


def check_uri(uri: str) -> str:
    """A path that ends in .db or the URL of a server, without a password."""
    parts = urlsplit(uri)
    if parts.username or parts.password:
        raise InputError("uri must not hold a user or password. Put user:password, or a token, into MILVUS_TOKEN.")
    served, on_disk = parts.scheme in SCHEMES, uri.endswith(".db")
    if served == on_disk or ("://" in uri and not served):
        expected = "be a path that ends in .db, for Milvus Lite, or begin with http://, https:// or tcp://"
        raise InputError(f"uri must {expected}, got {uri!r}.")
    return uri
