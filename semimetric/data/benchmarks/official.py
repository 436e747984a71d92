"""Official files of a dataset: where one is in a folder, and whether its content is the published one."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from pathlib import Path

from semimetric.core.errors import DataError


def find_file(folder: Path, name: str, variants: Iterable[str]) -> Path:
    """Return the first of ``variants`` (relative paths) of the official file ``name`` that is in ``folder``."""
    for variant in variants:
        if (folder / variant).is_file():
            return folder / variant
    raise DataError(f"{folder} lacks {name}.")


def check_content(content: bytes, sha256: str, path: Path) -> None:
    """Refuse content that is not, byte for byte, what was published."""
    found = hashlib.sha256(content).hexdigest()
    if found != sha256:
        raise DataError(
            f"{path} does not hold the official content: its SHA-256 is {found}, the official one is {sha256}."
        )
