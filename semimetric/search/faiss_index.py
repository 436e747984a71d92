"""Search with FAISS on the CPU: exhaustive, or approximate with a graph. An index can be saved to a file."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from semimetric.core.checks import check_choice
from semimetric.core.errors import InputError, RunError
from semimetric.core.extras import import_extra
from semimetric.core.files import check_input, check_output, write_atomically
from semimetric.graph.nearest import nearest_first
from semimetric.search.hits import Hits, check_k, joined, single_precision
from semimetric.search.index import HnswSettings, Index, IndexBackend
from semimetric.search.seal import REMEDY, add_seal, is_sealed

BLOCK_ENTRIES = 1 << 23  # entries of the largest array of a search: 64 MiB in float64
_MARK = b"semimetric faiss"
_KINDS = (b"IxF2", b"IHNf")
"""First bytes of the two kinds of index that ``build`` makes; FAISS gets no other to read."""


class FaissIndex(Index):
    """Vectors (N, d) in single precision in a faiss.IndexFlatL2 or IndexHNSWFlat; made by ``build`` or ``load``."""

    def __init__(self, index: Any) -> None:
        self._index = index
        self.width: int = index.d

    @classmethod
    def build(cls, embeddings: Any, kind: str = "flat", settings: HnswSettings | None = None) -> FaissIndex:
        """Build an index of ``embeddings`` (N, d).

        "flat" compares each query with all vectors; "hnsw" searches a graph with these ``settings`` and may miss some.
        FAISS uses OMP_NUM_THREADS threads. The graph is reproducible only with one thread.
        """
        check_choice(kind, ("flat", "hnsw"), "kind")
        stored = single_precision(embeddings, "embeddings").numpy()
        faiss, settings = _faiss(), settings or HnswSettings()
        if kind == "flat":
            index = faiss.IndexFlatL2(stored.shape[1])
        else:
            index = faiss.IndexHNSWFlat(stored.shape[1], settings.m)
            index.hnsw.efConstruction, index.hnsw.efSearch = settings.ef_construction, settings.ef_search
        index.add(stored)
        return cls(index)

    @classmethod
    def load(cls, path: Path | str) -> FaissIndex:
        """Load what ``save`` wrote. A damaged or foreign file is refused before FAISS reads it."""
        path = Path(path)
        check_input(path, "an index that FaissIndex.save wrote")
        with path.open("rb") as file:
            known = file.read(4) in _KINDS
        if not (known and is_sealed(path, _MARK)):
            raise RunError(f"{path} is not an index that semimetric saved, or its end is missing. {REMEDY}")
        faiss = _faiss()
        try:
            index = faiss.read_index(str(path))
        except RuntimeError as error:
            reason = str(error).strip().rpartition("\n")[2]
            raise RunError(f"{path} is damaged: FAISS cannot read it ({reason}). Build the index again.") from error
        _check_links(faiss, index, path)
        return cls(index)

    def save(self, path: Path | str, replace: bool = False) -> None:
        """Write the index to a file, which FAISS itself can read, too; one that exists only with ``replace``."""
        path = Path(path)
        check_output(path, replace=replace, option="path", allow="replace=True")
        try:
            write_atomically(path, self._write)
        except OSError as error:
            raise InputError(f"{path} cannot be written: {error}. Choose another place.") from error

    def _write(self, path: Path) -> None:
        """The index and its seal. FAISS itself would end in errors of its own where the disk is full."""
        faiss, failed = _faiss(), list[OSError]()
        with path.open("wb") as file:

            def put(block: bytes) -> None:
                try:
                    file.write(b"" if failed else block)
                except OSError as error:  # FAISS would not stop for it
                    failed.append(error)

            faiss.write_index(self._index, faiss.PyCallbackIOWriter(put, 1 << 20))
        if failed:
            raise failed[0]
        add_seal(path, _MARK)

    def __len__(self) -> int:
        return int(self._index.ntotal)

    @property
    def kind(self) -> str:
        """Either "flat" or "hnsw"."""
        return "hnsw" if hasattr(self._index, "hnsw") else "flat"

    def search(self, queries: Any, k: int) -> Hits:
        """Find the ``k`` nearest stored vectors of each query in single precision, then sort them in float64."""
        asked = single_precision(queries, "queries", self.width)
        k = min(check_k(k), len(self))
        few = max(1, BLOCK_ENTRIES // (k * asked.shape[1]))
        return joined([self._of_block(block, k) for block in asked.split(few)])

    def _of_block(self, queries: Tensor, k: int) -> Hits:
        rows = self._index.search(queries.numpy(), k)[1]
        stranded = (rows < 0).any(1)
        if stranded.any():  # the graph may be disconnected: with many copies, or if k is near N
            rows[stranded] = self._index.storage.search(queries.numpy()[stranded], k)[1]
        found = torch.from_numpy(self._index.reconstruct_batch(rows.ravel())).view(*rows.shape, -1)
        distances = (found.double() - queries.double()[:, None, :]).square().sum(2).sqrt()
        return Hits(*nearest_first(distances, torch.from_numpy(rows)))


def _faiss() -> Any:
    return import_extra("faiss", "faiss", "this search")


def _check_links(faiss: Any, index: Any, path: Path) -> None:
    """Refuse an index of another kind, or with links that lead nowhere: FAISS would crash on them."""
    whole = type(index).__name__ in ("IndexFlatL2", "IndexHNSWFlat") and index.d > 0 and index.ntotal > 0
    if whole and hasattr(index, "hnsw"):
        graph, storage = index.hnsw, faiss.downcast_index(index.storage)
        links, levels = faiss.vector_to_array(graph.neighbors), faiss.vector_to_array(graph.levels)
        offsets = faiss.vector_to_array(graph.offsets)
        whole = (
            (storage.ntotal, storage.d, len(levels), len(offsets))
            == (index.ntotal, index.d, index.ntotal, index.ntotal + 1)
            and 0 <= graph.entry_point < index.ntotal
            and bool(((links >= -1) & (links < index.ntotal)).all())
            and bool((offsets[1:] >= offsets[:-1]).all())
            and offsets[0] == 0
            and offsets[-1] == len(links)
            and bool((levels >= 1).all())
            and graph.max_level < int(levels.max())
        )
    if not whole:
        raise RunError(f"{path} is damaged: its links lead nowhere. Build the index again.")


BACKEND = IndexBackend(
    name="faiss",
    places="a file ending in .faiss (FAISS)",
    open=lambda place, *_: FaissIndex.load(place),
    build=lambda place, embeddings, *_: FaissIndex.build(embeddings, "hnsw").save(place, replace=True),
    suffixes=(".faiss",),
)
