"""One collection of Milvus: connecting, creating, filling and checking it."""

from __future__ import annotations

import logging
import os
import re
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager
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
                "one. Then load again."
            ) from error

    def is_loaded(self, run: str, count: int, replace: bool) -> bool:
        """Return True if the collection holds the ``count`` rows of ``run``; refuse another one without ``replace``.

        On a server, what an interrupted load of the same run left may be replaced, too.
        """
        whole, width = self._is_whole(), 0
        if whole is not False:
            if not self.client.has_collection(self.name):
                return False
            width = self._stored_width()
        same = bool(whole) and width == self.width and self._holds_only(run)
        if not (same or replace):
            raise InputError(
                f"name {self.name!r} is a collection at {self.uri} that is damaged, or holds the embeddings of another "
                "run. Name another collection, or replace that one with replace=True."
            )
        return same and self.count() == count

    @contextmanager
    def empty(self) -> Iterator[MilvusCollection]:
        """Lend an empty collection to fill: on a server this one, in a folder one that replaces it when it is whole."""
        self._readable = False
        if self._lite is None:
            with self._filled():
                yield self
            return
        with self._lite.aside(self.name) as folder:
            new = MilvusCollection(str(folder), self.name, self.width, None, self.settings)
            with closing(new), new._filled():
                yield new
            self.client.drop_collection(self.name)
            self._lite.adopt(self.name)

    def find(self) -> None:
        """Open a collection that must exist; its files must be those that were there after it was loaded."""
        if self._readable:
            return
        whole = self._is_whole()
        if whole is not False and not self.client.has_collection(self.name):
            raise InputError(f"name {self.name!r} is no collection at {self.uri}. Load embeddings into it first.")
        if not whole:
            raise RunError(
                f"collection {self.name!r} at {self.uri} is damaged, or not as semimetric loaded it: its "
                "files do not fit their checksums. Build the index again, with replace=True (--replace)."
            )
        width = self._stored_width()
        if width != self.width:
            raise InputError(f"width must be {width}, the width of collection {self.name!r}, got {self.width}.")
        self._open()

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

    def _is_whole(self) -> bool | None:
        """Return False if files are not as they were loaded, None if that is unknown; Milvus must not read the former.

        ``has_collection`` reads them, too. What a server has is not known to be damaged.
        """
        return self._lite is None or self._lite.is_whole(self.name)

    def _holds_only(self, run: str) -> bool:
        self._open()
        return not self._query(f'run != "{run}"', "row", limit=1)

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

    @contextmanager
    def _filled(self) -> Iterator[None]:
        """Begin with an empty collection, and make its index in the end."""
        if self.client.has_collection(self.name):
            self.client.drop_collection(self.name)
        self.client.create_collection(self.name, schema=self._schema(), consistency_level="Strong")
        yield
        self.client.flush(self.name)
        self._open()

    def _open(self) -> None:
        """Read the collection in; an interrupted load has left it without an index."""
        if not self.client.list_indexes(self.name):
            links = {"M": self.settings.m, "efConstruction": self.settings.ef_construction}
            index = self.client.prepare_index_params()
            index.add_index("embedding", index_name="embedding", index_type="HNSW", metric_type="L2", params=links)
            self.client.create_index(self.name, index, sync=False)  # loading the collection waits for it
        self.client.load_collection(self.name)
        self._readable = True

    def _schema(self) -> Any:
        kinds = self._milvus.DataType
        schema = self._milvus.MilvusClient.create_schema(auto_id=False, enable_dynamic_field=False)
        schema.add_field("row", kinds.INT64, is_primary=True)
        schema.add_field("embedding", kinds.FLOAT_VECTOR, dim=self.width)
        schema.add_field("name", kinds.VARCHAR, max_length=NAME_BYTES)
        schema.add_field("run", kinds.VARCHAR, max_length=64)
        return schema


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
