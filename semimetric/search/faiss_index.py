"""Search with FAISS on the CPU: exhaustive, or approximate with a graph. An index can be saved to a file."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from semimetric.core.checks import check_choice
from semimetric.core.errors import InputError, RunError
from semimetric.core.files import check_output, write_atomically
from semimetric.search.exact import BLOCK_ENTRIES
from semimetric.search.extras import import_extra
from semimetric.search.hits import Hits, check_k, joined, nearest_first, single_precision
from semimetric.search.hnsw import HnswSettings
from semimetric.search.index import Index, IndexBackend

KINDS = ("flat", "hnsw")
_MARK = b"semimetric faiss"


class FaissIndex(Index):
    """Vectors (N, d) in single precision in a FAISS index; made by ``build`` or ``load``.

    Parameters
    ----------
    index : faiss.IndexFlatL2 or faiss.IndexHNSWFlat
    """

    def __init__(self, index: Any) -> None:
        self._index = index
        self.width: int = index.d

    @classmethod
    def build(cls, embeddings: Any, kind: str = "flat", settings: HnswSettings | None = None) -> FaissIndex:
        """Build an index.

        FAISS uses OMP_NUM_THREADS threads. The graph is reproducible only with one thread.

        Parameters
        ----------
        embeddings : (N, d) array
        kind : "flat" compares each query with all vectors; "hnsw" searches a graph and may miss some
        settings : of the graph
        """
        check_choice(kind, KINDS, "kind")
        stored = single_precision(embeddings, "embeddings").numpy()
        faiss = import_extra("faiss", "faiss")
        index = faiss.IndexFlatL2(stored.shape[1]) if kind == "flat" else _graph(faiss, stored.shape[1], settings)
        index.add(stored)
        return cls(index)

    @classmethod
    def load(cls, path: Path | str) -> FaissIndex:
        """Load what ``save`` wrote. A damaged or foreign file is refused before FAISS reads it."""
        path = Path(path)
        if not path.is_file():
            raise InputError(f"path names the file {path}, which is not there. Give the path of a saved index.")
        faiss = import_extra("faiss", "faiss")
        _check_seal(path)
        return cls(faiss.read_index(str(path)))

    def save(self, path: Path | str) -> None:
        """Write the index to a file, replacing one that exists. FAISS itself can read it, too."""
        path = Path(path)
        check_output(path, overwrite=True, option="path")
        faiss = import_extra("faiss", "faiss")

        def write(temporary: Path) -> None:
            faiss.write_index(self._index, str(temporary))
            seal = _seal(temporary, temporary.stat().st_size)
            with temporary.open("ab") as file:
                file.write(seal)

        try:
            write_atomically(path, write)
        except OSError as error:
            raise InputError(f"{path} cannot be written: {error}. Choose another place.") from error

    def __len__(self) -> int:
        return int(self._index.ntotal)

    @property
    def kind(self) -> str:
        """Either "flat" or "hnsw"."""
        return "hnsw" if hasattr(self._index, "hnsw") else "flat"

    def search(self, queries: Any, k: int) -> Hits:
        """Find the ``k`` nearest stored vectors of each query, or all if fewer are stored.

        FAISS finds them in single precision. Their distances and order are computed again in float64. Among vectors
        at the distance of the k-th, FAISS chooses.
        """
        asked = single_precision(queries, "queries", self.width)
        k = min(check_k(k), len(self))
        few = max(1, BLOCK_ENTRIES // (k * asked.shape[1]))
        pieces = [self._of_block(block, k) for block in asked.split(few)]
        return joined(pieces)

    def _of_block(self, queries: Tensor, k: int) -> Hits:
        rows = self._index.search(queries.numpy(), k)[1]
        stranded = (rows < 0).any(1)
        if stranded.any():  # the graph may be disconnected: with many copies, or if k is near N
            rows[stranded] = self._index.storage.search(queries.numpy()[stranded], k)[1]
        found = torch.from_numpy(self._index.reconstruct_batch(rows.ravel())).view(*rows.shape, -1)
        distances = (found.double() - queries.double()[:, None, :]).square().sum(2).sqrt()
        return nearest_first(distances, torch.from_numpy(rows))


def _graph(faiss: Any, width: int, settings: HnswSettings | None) -> Any:
    chosen = settings or HnswSettings()
    index = faiss.IndexHNSWFlat(width, chosen.m)
    index.hnsw.efConstruction = chosen.ef_construction
    index.hnsw.efSearch = chosen.ef_search
    return index


def _seal(path: Path, length: int) -> bytes:
    """End of a saved file: a mark and the SHA-256 of the ``length`` bytes before it.

    FAISS ignores what follows an index, and crashes on damaged links.
    """
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while piece := file.read(min(length, 1 << 20)):
            digest.update(piece)
            length -= len(piece)
    return _MARK + digest.digest()


def _check_seal(path: Path) -> None:
    size = len(_MARK) + hashlib.sha256().digest_size
    length = path.stat().st_size - size
    found = b""
    if length > 0:
        with path.open("rb") as file:
            file.seek(length)
            found = file.read(size)
    if not found.startswith(_MARK):
        raise RunError(
            f"{path} is not an index that semimetric saved, or its end is missing. Build the index again and save it."
        )
    if found != _seal(path, length):
        raise RunError(f"{path} is damaged: its contents do not fit their checksum. Build the index again and save it.")


BACKEND = IndexBackend(
    name="faiss",
    places="a file ending in .faiss (FAISS)",
    open=lambda place, *_: FaissIndex.load(place),
    build=lambda place, embeddings, *_: FaissIndex.build(embeddings, "hnsw").save(place),
    suffixes=(".faiss",),
)
