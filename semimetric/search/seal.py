"""The end of a saved index, which its own library ignores: a mark and the SHA-256 of all bytes before it."""

from __future__ import annotations

import hashlib
from pathlib import Path

from semimetric.core.errors import RunError

REMEDY = "Build the index again and save it."


def add_seal(path: Path, mark: bytes) -> None:
    """Append the seal to a file that is whole."""
    seal = _seal(path, mark, path.stat().st_size)
    with path.open("ab") as file:
        file.write(seal)


def is_sealed(path: Path, mark: bytes) -> bool:
    """Return True if a file ends in a seal; refuse one that is damaged."""
    length = max(0, path.stat().st_size - len(mark) - hashlib.sha256().digest_size)
    with path.open("rb") as file:
        file.seek(length)
        found = file.read()
    if not (length and found.startswith(mark)):
        return False
    if found != _seal(path, mark, length):
        raise RunError(f"{path} is damaged: its contents do not fit their checksum. {REMEDY}")
    return True


def _seal(path: Path, mark: bytes, length: int) -> bytes:
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while piece := file.read(min(length, 1 << 20)):
            digest.update(piece)
            length -= len(piece)
    return mark + digest.digest()
