"""Nearest-neighbour search in embeddings: exact, FAISS, Milvus, and backends that other packages add."""

from semimetric.core.lazy import attach

__getattr__, __dir__, __all__ = attach(__name__, __file__)
