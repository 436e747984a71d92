"""Milvus Lite: Milvus inside this process, on a folder."""

from __future__ import annotations

import logging
import re
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from semimetric.core.errors import InputError, RunError
from semimetric.core.extras import import_extra
from semimetric.core.files import sha256_of, sync_folder

ASIDE = "semimetric-loading.db"
"""Folder within that of Milvus Lite in which a collection is built; what a killed process left there is removed."""

SEAL = "semimetric.sha256"
"""File of a loaded collection with the digests of all its other files."""

OWN = re.compile(
    r"LOCK|(collections/\w+/)?(semimetric\.sha256|(schema|manifest)\.json(\.tmp|\.prev)?|wal/wal_\w+\.arrow|"
    r"(partitions|metadata|snapshots)/.*\.(parquet|idx|json|tmp))"
)
"""Files of a collection, or of the folder in which it is built."""


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

    def is_whole(self, name: str) -> bool | None:
        """Return True if the files of a collection are as ``adopt`` sealed them, None if it has no seal."""
        collection = self._folder / "collections" / name
        seal = collection / SEAL
        return seal.read_bytes() == _digests(collection) if seal.is_file() else None

    @contextmanager
    def aside(self, name: str) -> Iterator[Path]:
        """Lend a folder for Milvus Lite to build a collection in, and remove it in the end."""
        _check_own(self._folder / "collections" / name)
        _remove(self._folder / ASIDE)
        try:
            yield self._folder / ASIDE
        finally:
            _remove(self._folder / ASIDE)

    def adopt(self, name: str) -> None:
        """Seal a collection that was built ``aside``, and move it to where none is any more."""
        built, place = (folder / "collections" / name for folder in (self._folder / ASIDE, self._folder))
        (built / SEAL).write_bytes(_digests(built))
        _remove(place)
        built.rename(place)
        sync_folder(place.parent)


def _digests(collection: Path) -> bytes:
    """SHA-256 and names of the files of a collection except its seal, as ``sha256sum`` prints them."""
    files = sorted(path for path in collection.rglob("*") if path.is_file() and path.name != SEAL)
    return b"".join(f"{sha256_of(path)}  {path.relative_to(collection)}\n".encode() for path in files)


def _remove(folder: Path) -> None:
    """Remove a folder that Milvus Lite made, if it is there."""
    _check_own(folder)
    if folder.exists():
        shutil.rmtree(folder)


def _check_own(folder: Path) -> None:
    """Refuse to remove a folder that holds files of another program."""
    files = (path for path in folder.rglob("*") if not path.is_dir() or path.is_symlink())
    foreign = next((path for path in files if not OWN.fullmatch(path.relative_to(folder).as_posix())), None)
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
    odd = (path for path in folder.rglob("*") if path.is_symlink() or not (path.is_file() or path.is_dir()))
    if (first := next(odd, None)) is not None:
        raise InputError(f"{first} is a link or a pipe, and Milvus Lite makes none. Move it, or name another folder.")
    made_by_lite = (folder / "LOCK").is_file() and (folder / "collections").is_dir()
    if not made_by_lite and any(path.is_file() for path in folder.rglob("*")):
        raise InputError(f"{option} {str(folder)!r} holds files that are not of Milvus Lite. Name another folder.")
