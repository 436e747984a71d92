"""Settings of the HNSW graph of FAISS and Milvus."""

from __future__ import annotations

from dataclasses import dataclass

from semimetric.core.errors import InputError


@dataclass(frozen=True)
class HnswSettings:
    """Hierarchical navigable small world graph (Malkov, Yashunin, IEEE TPAMI 2020).

    Attributes
    ----------
    m : int
        Links per vector and layer, twice as many in the lowest layer. More raise recall and memory.
    ef_construction : int
        Candidates considered for the links of a new vector. More raise recall and build time.
    ef_search : int
        Candidates considered for a query, at least k. More raise recall and search time.
    """

    m: int = 32
    ef_construction: int = 100
    ef_search: int = 256

    def __post_init__(self) -> None:
        for name, least in (("m", 2), ("ef_construction", 1), ("ef_search", 1)):
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int) or value < least:
                raise InputError(f"{name} must be a whole number of at least {least}, got {value!r}.")
