"""Milvus Lite seen from outside of the package."""

from __future__ import annotations

from multiprocessing.synchronize import Event
from pathlib import Path
from typing import Any

from numpy.typing import NDArray
from pymilvus import MilvusClient

from semimetric.search import MilvusIndex
from semimetric.search.milvus_lite_server import LiteServer


def contents(folder: Path, name: str) -> list[dict[str, Any]]:
    """All rows of a collection with all fields, by row number; a row that is there twice is listed twice."""
    server = LiteServer(folder)
    client = MilvusClient(server.address)
    client.load_collection(name)
    rows = client.query(name, filter="row >= 0", output_fields=["row", "embedding", "name", "run"])
    client.close()
    server.stop()
    return sorted((dict(row) for row in rows), key=lambda row: row["row"])


def load(folder: Path, points: NDArray[Any], names: list[str], begun: Event) -> None:
    """What the processes do that are killed."""
    begun.set()
    with MilvusIndex(folder, "run", points.shape[1]) as index:
        index.load(points, names, batch_size=50)
