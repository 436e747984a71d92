"""Milvus inside this process, on a folder: Milvus Lite, and what a killed process leaves in it."""

from __future__ import annotations

import logging
import shutil
from pathlib import Path

from semimetric.core.errors import InputError, RunError
from semimetric.search.extras import import_extra


class LiteServer:
    """Milvus Lite on one folder, for one user at a time.

    ``MilvusClient`` would start it by itself, but not stop it, and the folder would stay locked until the process
    ends.
    """

    def __init__(self, folder: Path) -> None:
        if not folder.parent.is_dir():
            raise InputError(
                f"uri {str(folder)!r} cannot be opened: there is no folder {str(folder.parent)!r}. Make it."
            )
        if folder.is_file():
            raise InputError(
                f"uri {str(folder)!r} is a file, and Milvus Lite keeps its data in a folder since version 3. "
                "Name another one, and load the embeddings into it."
            )
        self._folder = folder
        self._manager = import_extra("milvus_lite.server_manager", "milvus").ServerManager()
        _keep_quiet()
        address = self._manager.start_and_get_uri(str(folder))
        if address is None:
            raise RunError(
                f"{folder} cannot be opened by Milvus Lite: another process, or another MilvusIndex of this one, has "
                "it open, or it is no folder of Milvus Lite. Close the other one, or name another folder."
            )
        self.address: str = address

    def stop(self) -> None:
        """Write what is in memory, and unlock the folder."""
        self._manager.release_server(str(self._folder))

    def clear_half_made(self, name: str) -> None:
        """Remove a collection without a schema, which can be neither read nor made again nor dropped.

        Milvus Lite leaves one if it is killed while it makes a collection, or drops one.
        """
        collection = self._folder / "collections" / name
        if collection.is_dir() and not (collection / "schema.json").exists():
            shutil.rmtree(collection)


def _keep_quiet() -> None:
    """Let the log of Milvus Lite go where the program sends logs, and nowhere if it sends them nowhere.

    It would otherwise print a traceback for each error that is told in a sentence here.
    """
    logger = logging.getLogger("milvus_lite")
    if not logger.handlers:
        logger.addHandler(logging.NullHandler())
