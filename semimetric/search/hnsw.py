"""Settings of the graph that FAISS and Milvus search instead of looking at every vector."""

from __future__ import annotations

from dataclasses import dataclass

from semimetric.core.errors import InputError


@dataclass(frozen=True)
class HnswSettings:
    """Hierarchical navigable small world graph (Malkov, Yashunin, IEEE TPAMI 2020).

    Attributes
    ----------
    m : int
        Links of a vector in each layer; the lowest layer has twice as many. More find more and take more memory.
    ef_construction : int
        Candidates looked at for the links of a new vector. More make a better graph, more slowly.
    ef_search : int
        Candidates looked at for a query, at least k. More find more, more slowly.
    """

    m: int = 32
    ef_construction: int = 100
    ef_search: int = 256

    def __post_init__(self) -> None:
        for name, least in (("m", 2), ("ef_construction", 1), ("ef_search", 1)):
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int) or value < least:
                raise InputError(f"{name} must be a whole number of at least {least}, got {value!r}.")
