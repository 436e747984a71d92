"""Exact search in bounded memory, on the CPU or the GPU, without further packages."""

from __future__ import annotations

from pathlib import Path
from tokenize import TokenError
from typing import Any

import numpy as np
import torch

from semimetric.core.errors import InputError, RunError
from semimetric.core.files import check_input, write_atomically
from semimetric.graph.nearest import NearestVectors
from semimetric.search.hits import Hits, check_k, check_rows
from semimetric.search.index import Index, IndexBackend
from semimetric.search.seal import add_seal, is_sealed

_MARK = b"semimetric exact"


class ExactIndex(Index):
    """Compares each query with all ``embeddings`` (N, d), on their device; differences in float64 decide."""

    def __init__(self, embeddings: Any) -> None:
        stored = check_rows(embeddings, "embeddings")
        self.width = stored.shape[1]
        self._count, self._device = len(stored), stored.device
        self._vectors = NearestVectors(stored)

    def __len__(self) -> int:
        return self._count

    def search(self, queries: Any, k: int) -> Hits:
        """Find the ``k`` nearest stored vectors of each query; hits at equal distances are sorted by row."""
        asked = check_rows(queries, "queries", self.width).to(self._device)
        hits = Hits(*self._vectors.search(asked, min(check_k(k), len(self))))
        if not bool(torch.isfinite(hits.distances).all()):
            raise InputError(
                "queries are so far from the stored vectors that their distances are no numbers. Look for marks of "
                "missing data in them, such as -3.4e38."
            )
        return hits


def _open(place: str, *_: object) -> ExactIndex:
    """Open what ``_build`` wrote, or any other array, which has no seal."""
    check_input(Path(place), "an index in .npy")
    try:
        is_sealed(Path(place), _MARK)
        return ExactIndex(np.load(place, allow_pickle=False))
    except (OSError, EOFError, ValueError, SyntaxError, TokenError, ArithmeticError, MemoryError) as error:
        raise RunError(f"{place} cannot be read: {error}. Build the index again.") from error


def _build(place: str, embeddings: Any, *_: object) -> None:
    stored = check_rows(embeddings, "embeddings")
    array = stored.to("cpu", torch.promote_types(stored.dtype, torch.float32)).numpy()

    def write(temporary: Path) -> None:
        with temporary.open("wb") as file:
            np.save(file, array)
        add_seal(temporary, _MARK)

    write_atomically(Path(place), write)


BACKEND = IndexBackend("exact", "a file ending in .npy (exact search)", _open, _build, suffixes=(".npy",))
