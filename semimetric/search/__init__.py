"""Searching the embeddings of a run: exactly, with FAISS, or in Milvus."""

from semimetric.core.lazy import attach

__getattr__, __dir__, __all__ = attach(__name__, __file__)
