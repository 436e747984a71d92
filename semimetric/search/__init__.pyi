from semimetric.search.exact import ExactIndex
from semimetric.search.faiss_index import FaissIndex
from semimetric.search.hits import Hits
from semimetric.search.hnsw import HnswSettings
from semimetric.search.index import (
    Index,
    IndexBackend,
    build_index,
    check_place,
    open_index,
    register_index,
    search_run_index,
)
from semimetric.search.milvus_index import MilvusIndex

__all__ = [
    "ExactIndex",
    "FaissIndex",
    "Hits",
    "HnswSettings",
    "Index",
    "IndexBackend",
    "MilvusIndex",
    "build_index",
    "check_place",
    "open_index",
    "register_index",
    "search_run_index",
]
