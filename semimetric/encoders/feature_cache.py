"""Features of photographs by a frozen network, kept between commands.

The cache is one SQLite file. A feature is found by the network and by the content of the photograph, so a photograph
that was moved or renamed is not described again, and one that was changed is. A file whose path, size and times are
unchanged is not read for that. The cache may be deleted at any moment: whatever is not in it, or damaged, is computed.
"""

from __future__ import annotations

import hashlib
import os
import sqlite3
import time
import warnings
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from semimetric.core.files import sha256_of
from semimetric.core.sizes import bytes_from_environment

FOLDER, SIZE, OFF = "SEMIMETRIC_CACHE", "SEMIMETRIC_CACHE_SIZE", "off"
"""Environment variables: the folder of the cache, or "off", and its largest size, such as 500MB or 2GiB."""

FILE = "features.sqlite"
MOST_BYTES = 2 << 30

PREPROCESSING = 1
"""Version of decoding and scaling; a change to either needs another number, as old features are then others."""

SETTLED = 2.0  # seconds: a file that was changed just now may change again without a new time
USE_NOTED = 3600.0  # seconds after which the use of a feature is noted again
WAIT = 30.0  # seconds for another process that writes
SHARE_EVICTED = 10  # one in so many entries leaves at a time

TABLES = """
CREATE TABLE IF NOT EXISTS files (path TEXT PRIMARY KEY, stamp TEXT, content BLOB, used REAL);
CREATE TABLE IF NOT EXISTS features (key BLOB PRIMARY KEY, row BLOB, digest BLOB, used REAL);
CREATE INDEX IF NOT EXISTS files_by_use ON files (used);
CREATE INDEX IF NOT EXISTS features_by_use ON features (used);
"""


class CacheWarning(UserWarning):
    """The feature cache cannot be used; features are computed without it."""


class Photo(NamedTuple):
    """A photograph as it was when its content was looked at; ``key`` is of the content and the network."""

    path: Path
    stamp: str
    key: bytes


def identity_of(name: str, network: nn.Module, side: int, fit: str) -> str:
    """What decides the features of a photograph: the network with its weights and pooling, and the preprocessing."""
    digest = hashlib.sha256(repr((PREPROCESSING, name, side, fit, str(network))).encode())
    for key, tensor in network.state_dict().items():
        values = tensor.detach().cpu().contiguous()
        digest.update(repr((key, str(values.dtype), tuple(values.shape))).encode())
        digest.update(values.flatten().view(torch.uint8).numpy().data)
    return digest.hexdigest()


def open_cache(identity: str) -> FeatureCache | None:
    """The cache for the features of one network; None if there shall be none."""
    folder = cache_folder()
    return None if folder is None else FeatureCache(folder / FILE, identity, bytes_from_environment(SIZE, MOST_BYTES))


def cache_folder() -> Path | None:
    """The folder that the environment names, or ``semimetric`` in the user's cache folder; None if it is "off"."""
    named = os.environ.get(FOLDER, "")
    if named:
        return None if named.lower() == OFF else Path(named)
    home = os.environ.get("XDG_CACHE_HOME", "")
    try:
        return (Path(home) if home else Path.home() / ".cache") / "semimetric"
    except RuntimeError:  # a user without a home
        return None


class FeatureCache:
    """Features of photographs by one network, in a SQLite file that other processes and networks use, too.

    Parameters
    ----------
    path : file of the cache; it and its folder are made when the first feature is kept
    identity : what decides the features, see ``identity_of``
    most_bytes : largest size; above it the features that were not used for longest leave
    """

    def __init__(self, path: Path, identity: str, most_bytes: int = MOST_BYTES) -> None:
        self.path, self.identity, self.most_bytes = path, identity.encode(), most_bytes
        self._usable = True

    def find(self, paths: Sequence[Path]) -> tuple[list[Photo | None], dict[int, Tensor]]:
        """The photographs as they are now, None where one cannot be read, and the features known, by position."""
        photos: list[Photo | None] = [None] * len(paths)
        found: dict[int, Tensor] = {}
        stamps = [_stamp(path) for path in paths]
        contents = self._contents(paths, stamps)
        for row, (path, stamp, content) in enumerate(zip(paths, stamps, contents, strict=True)):
            if stamp and content:
                photos[row] = Photo(path, stamp, hashlib.sha256(self.identity + content).digest())
        with self._connected() as db:
            for row, photo in enumerate(photos):
                values = None if photo is None else _intact(photo.key, db.execute(READ, (photo.key,)).fetchone())
                if values is not None:
                    found[row] = values
            now = time.time()
            keys = ((now, photo.key, now - USE_NOTED) for row in found if (photo := photos[row]))
            db.executemany("UPDATE features SET used = ? WHERE key = ? AND used < ?", keys)
        return photos, found

    def keep(self, photos: Sequence[Photo | None], features: Tensor) -> None:
        """Keep the features (n, d) of photographs that have not changed since ``find``."""
        now, rows = time.time(), features.detach().cpu().float().numpy()
        entries = []
        for photo, row in zip(photos, rows, strict=True):
            if photo is not None and _stamp(photo.path) == photo.stamp:
                values = row.astype("<f4").tobytes()
                entries.append((photo.key, values, hashlib.sha256(photo.key + values).digest(), now))
        with self._connected() as db:
            db.executemany("INSERT OR REPLACE INTO features VALUES (?, ?, ?, ?)", entries)
            self._make_room(db)

    def _contents(self, paths: Sequence[Path], stamps: Sequence[str]) -> list[bytes]:
        """SHA-256 of each file, from the notes of earlier times where path, size and times are the same."""
        noted: dict[int, bytes] = {}
        with self._connected() as db:
            for row, (path, stamp) in enumerate(zip(paths, stamps, strict=True)):
                known = db.execute("SELECT stamp, content FROM files WHERE path = ?", (_place(path),)).fetchone()
                if known is not None and known[0] == stamp and isinstance(known[1], bytes):
                    noted[row] = known[1]
        contents = [noted[row] if row in noted else _content(path) for row, path in enumerate(paths)]
        now = time.time()
        entries = [
            (_place(paths[row]), stamps[row], content, now)
            for row, content in enumerate(contents)
            if content and row not in noted and now - _last_change(stamps[row]) > SETTLED
        ]
        with self._connected() as db:
            db.executemany("INSERT OR REPLACE INTO files VALUES (?, ?, ?, ?)", entries)
        return contents

    def _make_room(self, db: sqlite3.Connection) -> None:
        """Let the entries leave that were not used for longest, until the file is small enough."""
        tables = (("features", "key"), ("files", "path"))
        while _bytes_in(db) > self.most_bytes:
            gone = 0
            for table, key in tables:
                count = db.execute(f"SELECT count(*) FROM {table}").fetchone()[0]
                oldest = f"SELECT {key} FROM {table} ORDER BY used LIMIT {-(-count // SHARE_EVICTED)}"
                gone += db.execute(f"DELETE FROM {table} WHERE {key} IN ({oldest})").rowcount
            if not gone:
                return

    @contextmanager
    def _connected(self) -> Iterator[sqlite3.Connection]:
        """A transaction on the file, or on an empty one in memory if the file cannot be used.

        A damaged file is deleted. Any other trouble is told once, and the file is left alone from then on.
        """
        try:
            with closing(self._open()) as db, db:
                yield db
            return
        except sqlite3.Error as error:
            trouble = error
        if getattr(trouble, "sqlite_errorcode", 0) in (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB):
            self._remove()
        else:
            self._leave(trouble)

    def _open(self) -> sqlite3.Connection:
        if self._usable:
            try:
                self.path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
                return _connect(self.path)
            except (OSError, sqlite3.OperationalError) as error:
                self._leave(error)
            except sqlite3.DatabaseError:
                self._remove()
                return _connect(self.path if self._usable else ":memory:")
        return _connect(":memory:")

    def _remove(self) -> None:
        """Remove a damaged file, or do without the cache if that is not allowed."""
        try:
            self.path.unlink(missing_ok=True)
        except OSError as error:
            self._leave(error)

    def _leave(self, error: Exception) -> None:
        self._usable = False
        warnings.warn(
            f"the feature cache {self.path} cannot be used: {error}. Features are computed without it; {FOLDER} names "
            f"another folder, or {OFF!r} for none.",
            CacheWarning,
            stacklevel=2,
        )


READ = "SELECT row, digest FROM features WHERE key = ?"


def _connect(path: Path | str) -> sqlite3.Connection:
    db = sqlite3.connect(path, timeout=WAIT)
    try:
        db.execute("PRAGMA auto_vacuum = FULL")  # what leaves makes the file smaller; it counts in a new file only
        db.execute("PRAGMA synchronous = OFF")  # a kill loses nothing; after a power cut damage is found and computed
        db.executescript(TABLES)
    except BaseException:
        db.close()
        raise
    return db


def _bytes_in(db: sqlite3.Connection) -> int:
    pages, free, size = (
        int(db.execute(f"PRAGMA {name}").fetchone()[0]) for name in ("page_count", "freelist_count", "page_size")
    )
    return (pages - free) * size


def _intact(key: bytes, entry: tuple[object, object] | None) -> Tensor | None:
    """The feature in an entry; None if there is none, or a damaged one."""
    if entry is None or not isinstance(entry[0], bytes) or hashlib.sha256(key + entry[0]).digest() != entry[1]:
        return None
    return torch.from_numpy(np.frombuffer(entry[0], "<f4").astype(np.float32))


def _place(path: Path) -> str:
    return os.fsencode(os.path.abspath(path)).hex()  # a name may be no text


def _stamp(path: Path) -> str:
    """Size and times of a file; empty if it cannot be looked at."""
    try:
        status = path.stat()
    except OSError:
        return ""
    return f"{status.st_size} {status.st_mtime_ns} {status.st_ctime_ns}"


def _last_change(stamp: str) -> float:
    return max(map(int, stamp.split()[1:])) / 1e9


def _content(path: Path) -> bytes:
    """SHA-256 of a file; empty if it cannot be read."""
    try:
        return bytes.fromhex(sha256_of(path))
    except OSError:
        return b""
