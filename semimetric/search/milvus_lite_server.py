"""Milvus Lite: Milvus inside this process, on a folder."""

from __future__ import annotations

import logging
import re
import shutil
from pathlib import Path

from semimetric.core.errors import InputError, RunError
from semimetric.core.extras import import_extra

OWN = re.compile(
    r"(schema|manifest)\.json(\.tmp|\.prev)?|wal/wal_\w+\.arrow|(partitions|metadata|snapshots)/.*\.(parquet|idx|json|tmp)"
)
"""Files of a collection that Milvus Lite makes."""


class LiteServer:
    """Milvus Lite on one folder, for one user at a time; ``MilvusClient`` would start but never stop it."""

    def __init__(self, folder: Path) -> None:
        check_folder(folder, "uri")
        self._folder = folder
        self._manager = import_extra("milvus_lite.server_manager", "milvus", "this search").ServerManager()
        if not (logger := logging.getLogger("milvus_lite")).handlers:
            logger.addHandler(logging.NullHandler())  # or it prints tracebacks of errors that are reported here
        address = self._manager.start_and_get_uri(str(folder))
        if address is None:
            raise RunError(
                f"{folder} cannot be opened by Milvus Lite: another process, or another MilvusIndex of this one, has "
                "it open. Close the other one, or name another folder."
            )
        self.address: str = address

    def stop(self) -> None:
        """Write what is in memory, and unlock the folder."""
        self._manager.release_server(str(self._folder))

    def clear_half_made(self, name: str) -> None:
        """Remove a collection without schema, left by a killed process: Milvus Lite can neither create nor drop it."""
        collection = self._folder / "collections" / name
        if collection.is_dir() and not (collection / "schema.json").exists():
            self.check_own(name)
            shutil.rmtree(collection)

    def check_own(self, name: str) -> None:
        """Refuse to remove a collection whose folder holds files of another program."""
        collection = self._folder / "collections" / name
        files = (path for path in collection.rglob("*") if not path.is_dir() or path.is_symlink())
        foreign = next((path for path in files if not OWN.fullmatch(path.relative_to(collection).as_posix())), None)
        if foreign is not None:
            raise InputError(
                f"{foreign} is no file of Milvus, and would be removed with the collection. Move it, or name another "
                "collection."
            )


def check_folder(folder: Path, option: str) -> None:
    """Refuse a folder that Milvus Lite cannot create, or that holds files of another program."""
    if not folder.parent.is_dir():
        missing = str(folder.parent)
        raise InputError(f"{option} {str(folder)!r} cannot be opened: there is no folder {missing!r}. Make it.")
    if folder.is_file():
        raise InputError(f"{option} {str(folder)!r} is a file, and Milvus Lite needs a folder. Name another one.")
    made_by_lite = (folder / "LOCK").is_file() and (folder / "collections").is_dir()
    if not made_by_lite and any(path.is_file() for path in folder.rglob("*")):
        raise InputError(f"{option} {str(folder)!r} holds files that are not of Milvus Lite. Name another folder.")
