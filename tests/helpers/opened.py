"""Which files this process opens, as the interpreter's own audit events say."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

_heard: list[list[str]] = []
_hooked: list[bool] = []


def _hear(event: str, arguments: tuple[Any, ...]) -> None:
    if _heard and event == "open" and isinstance(arguments[0], str | bytes | os.PathLike):
        _heard[-1].append(os.fsdecode(arguments[0]))


@contextmanager
def opened_below(folder: Path) -> Iterator[set[Path]]:
    """Collect the files below a folder that are opened meanwhile; the set is filled at the end."""
    if not _hooked:
        sys.addaudithook(_hear)  # it cannot be removed
        _hooked.append(True)
    found: set[Path] = set()
    _heard.append([])
    try:
        yield found
    finally:
        found |= {path for path in map(Path, _heard.pop()) if path.is_relative_to(folder)}
