"""The index protocol, the registry of backends, and functions that open, build and search an index by its place.

A place is a URL if it contains "://", and a path otherwise. Its scheme or its ending selects the backend.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, Self

from semimetric.core.checks import check_whole
from semimetric.core.errors import InputError, RunError
from semimetric.core.files import check_output
from semimetric.core.registry import Registry

if TYPE_CHECKING:
    from torch import Tensor

    from semimetric.search.hits import Hits

SPARE = 8  # candidates that an index is asked for beyond twice those wanted
ANSWER_ENTRIES = 1 << 23  # entries of the vectors that are ranked again at once: 64 MiB in float64
ROUNDING = 1e-4  # tolerance of squared distances in single precision, relative to the squared lengths


class Index(Protocol):
    """N stored vectors of ``width`` columns. Subclasses inherit ``most``, ``close`` and the context manager."""

    width: int
    most: int = sys.maxsize  # hits of a query

    def __len__(self) -> int: ...

    def search(self, queries: Any, k: int) -> Hits:
        """Find the ``k`` nearest stored vectors of each of the queries (Q, width), or all if fewer are stored."""

    def close(self) -> None:
        """Release files and connections."""
        return

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


@dataclass(frozen=True)
class HnswSettings:
    """Hierarchical navigable small world graph (Malkov, Yashunin, IEEE TPAMI 2020) of FAISS and Milvus.

    Attributes
    ----------
    m : int, links per vector and layer, twice as many in the lowest layer; more raise recall and memory
    ef_construction : int, candidates considered for the links of a new vector; more raise recall and build time
    ef_search : int, candidates considered for a query, at least k; more raise recall and search time
    """

    m: int = 32
    ef_construction: int = 100
    ef_search: int = 256

    def __post_init__(self) -> None:
        for name, least in (("m", 2), ("ef_construction", 1), ("ef_search", 1)):
            check_whole(getattr(self, name), name, least)


@dataclass(frozen=True)
class IndexBackend:
    """One kind of index.

    Attributes
    ----------
    name : str, in the registry
    places : str, description for messages, such as "a file ending in .faiss (FAISS)"
    open : callable(place, width, collection) that returns an existing ``Index``
    build : callable(place, embeddings, names, collection, replace, progress) that stores a new index
    suffixes : tuple of str, endings of its paths
    schemes : tuple of str, schemes of its URLs
    check_new : callable(place, inputs, replace, option, allow) that refuses a place before any work
        ``inputs`` are never replaced; ``option`` and ``allow`` name ``place`` and ``replace`` in messages.
    """

    name: str
    places: str
    open: Callable[[str, int, str], Index]
    build: Callable[[str, Any, Sequence[str] | None, str, bool, Callable[[int, int], object] | None], None]
    suffixes: tuple[str, ...] = ()
    schemes: tuple[str, ...] = ()
    check_new: Callable[[str, Iterable[Path], bool, str, str], None] = lambda at, *how: check_output(Path(at), *how)

    def takes(self, place: str) -> bool:
        """Whether this backend has such places."""
        scheme, is_url, _ = place.partition("://")
        return scheme in self.schemes if is_url else place.endswith(self.suffixes)


INDEXES: Registry[IndexBackend] = Registry(
    "search backend",
    "semimetric.indexes",
    {
        "exact": "semimetric.search.exact:BACKEND",
        "faiss": "semimetric.search.faiss_index:BACKEND",
        "milvus": "semimetric.search.milvus_index:BACKEND",
    },
)


def register_index(backend: IndexBackend) -> IndexBackend:
    """Make a search backend known to ``open_index`` and the command line, and return it.

    Parameters
    ----------
    backend : IndexBackend
        Its name must not be taken.
    """
    return INDEXES.register(backend.name, backend)


def check_place(place: Path | str, option: str = "place", existing: bool = False) -> IndexBackend:
    """Return the backend of a path or URL, called ``option`` in messages; ``existing`` refuses a missing path."""
    place = str(place)
    backend = next((backend for backend in INDEXES.values() if backend.takes(place)), None)
    if backend is None:
        known = "; ".join(backend.places for backend in INDEXES.values())
        raise InputError(f"{option} must be one of: {known}. Got {place!r}.")
    if existing and "://" not in place and not Path(place).exists():
        raise InputError(f"{option} {place!r} is not there. Make it with: semimetric index RUN --to {place}")
    return backend


def open_index(place: Path | str, width: int, *, collection: str = "semimetric") -> Index:
    """Open an index that ``build_index`` or ``semimetric index`` made.

    Parameters
    ----------
    place : path or URL
    width : number of columns of the stored vectors
    collection : name of the collection in a database

    Returns
    -------
    Index, a context manager that closes it
    """
    index = check_place(place, existing=True).open(str(place), width, collection)
    if index.width != width:
        index.close()
        raise InputError(f"width must be {index.width}, the width of the index {str(place)!r}, got {width}.")
    return index


def build_index(
    place: Path | str,
    embeddings: Any,
    names: Sequence[str] | None = None,
    *,
    collection: str = "semimetric",
    replace: bool = False,
    progress: Callable[[int, int], object] | None = None,
) -> None:
    """Store embeddings in a new index.

    Parameters
    ----------
    place : path or URL
    embeddings : (N, d) array
    names : N names, stored by databases; row numbers unless given
    collection : name of the collection in a database
    replace : replace an existing index
    progress : called with the number of stored rows and N after each batch, by databases
    """
    backend = check_place(place)
    backend.check_new(str(place), (), replace, "place", "replace=True")
    backend.build(str(place), embeddings, names, collection, replace, progress)


_HOW_TO_BUILD = "Make one of this run with: semimetric index RUN --to PLACE (--replace where there is one)."


def search_run_index(place: str | None, stored: Tensor, queries: Tensor, k: int, collection: str) -> Hits:
    """Search the embeddings ``stored`` (N, d) of a run, exactly if ``place`` is None; refuse one of another run.

    An index only proposes rows: distances and their order are those of ``stored``.
    """
    from semimetric.search.hits import joined

    if place is None:
        from semimetric.search.exact import ExactIndex

        return ExactIndex(stored).search(queries, k)
    with open_index(place, stored.shape[1], collection=collection) as index:
        if len(index) != len(stored):
            raise RunError(
                f"index {place} holds {len(index)} examples and the run {len(stored)}: it is of another run, or its "
                f"build was interrupted. {_HOW_TO_BUILD}"
            )
        asked = min(len(stored), max(k, min(2 * k + SPARE, index.most)))
        blocks = queries.split(max(1, ANSWER_ENTRIES // (asked * stored.shape[1])))
        return joined([_ranked_again(stored, block, index.search(block, asked), k, place) for block in blocks])


def _ranked_again(stored: Tensor, queries: Tensor, found: Hits, k: int, place: str) -> Hits:
    """The ``k`` nearest of what an index found, by the embeddings of the run; refuse hits that do not fit them."""
    from semimetric.graph.nearest import nearest_first
    from semimetric.search.hits import Hits

    rows, asked = found.rows, queries.double()[:, None, :]
    candidates = stored[rows.clamp(0, len(stored) - 1)].double()
    squares = (candidates - asked).square().sum(2)
    allowed = ROUNDING * (candidates.square().sum(2) + asked.square().sum(2))
    fits = ((found.distances.square() - squares).abs() <= allowed) & (rows >= 0) & (rows < len(stored))
    if not (bool(fits.all()) and bool(rows.sort(dim=1).values.diff(dim=1).all())):
        raise RunError(f"index {place} is of another run. {_HOW_TO_BUILD}")
    return Hits(*nearest_first(squares.sqrt(), rows, k))
