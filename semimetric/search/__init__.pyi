from semimetric.search.exact import ExactIndex
from semimetric.search.faiss_index import FaissIndex
from semimetric.search.hits import Hits
from semimetric.search.hnsw import HnswSettings
from semimetric.search.milvus_index import MilvusIndex

__all__ = ["ExactIndex", "FaissIndex", "Hits", "HnswSettings", "MilvusIndex"]
