"""Datasets in official files: where a file is, whether its content is as published, and where to download it."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from semimetric.core.errors import DataError
from semimetric.data.benchmarks.spec import DatasetSpec

if TYPE_CHECKING:
    from semimetric.data.examples import Examples


def find_file(folder: Path, name: str, variants: Iterable[str]) -> Path:
    """Return the first of ``variants`` (relative paths) of the official file ``name`` that is in ``folder``."""
    for variant in variants:
        if (folder / variant).is_file():
            return folder / variant
    raise DataError(f"{folder} lacks {name}.")


def check_content(content: bytes, sha256: str, path: Path) -> None:
    """Refuse content that differs from what was published."""
    found = hashlib.sha256(content).hexdigest()
    if found != sha256:
        raise DataError(
            f"{path} does not hold the official content: its SHA-256 is {found}, the official one is {sha256}."
        )


@dataclass(frozen=True)
class Archive:
    """A published tar archive; the wanted files are in its folder ``folder``."""

    name: str
    sha256: str
    folder: str


@dataclass(frozen=True, kw_only=True)
class FileSpec(DatasetSpec):
    """A dataset in a few official files.

    Parameters
    ----------
    read : callable
        Reads a folder: called with the folder and ``checksums``.
    checksums : mapping of str to str
        The SHA-256 of the uncompressed content of each official file.
    variants : callable
        The relative paths under which an official file may be; the first is the published name.
    content : callable
        The uncompressed content of a file.
    mirrors : tuple of str
        Addresses to download from, in order.
    archive : Archive, optional
        The archive that holds the files, if they are published as one.
    """

    checksums: Mapping[str, str]
    variants: Callable[[str], tuple[str, ...]]
    content: Callable[[Path], bytes]
    mirrors: tuple[str, ...] = ()
    archive: Archive | None = None
    origin: str | None = None

    @property
    def remedy(self) -> str:
        """How to get the dataset."""
        return f"Get it with `semimetric datasets fetch {self.name}`"

    def missing_from(self, folder: Path) -> tuple[str, ...] | None:
        """Official files that ``folder`` lacks; None if it has none of them."""
        there = {name: any((folder / path).is_file() for path in self.variants(name)) for name in self.checksums}
        return tuple(name for name in there if not there[name]) if any(there.values()) else None

    def is_whole(self, folder: Path, name: str) -> bool:
        """Whether ``folder`` has an official file with the published content."""
        try:
            path = find_file(folder, name, self.variants(name))
            check_content(self.content(path), self.checksums[name], path)
        except DataError:
            return False
        return True

    def examples(self, folder: Path) -> tuple[Examples, Examples]:
        """The training and the test examples; files that are not as published are refused."""
        try:
            return self.read(folder, self.checksums)
        except DataError as error:
            raise DataError(
                f"{error} Remove that copy and get a good one with `semimetric datasets fetch {self.name}`."
            ) from error
