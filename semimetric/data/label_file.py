"""The file of a label book, as it is seen before SQLite opens it: what is not ours stays as it is."""

from __future__ import annotations

import os
import stat
from contextlib import suppress
from pathlib import Path

from semimetric.core.errors import InputError

APPLICATION, FORMAT = 0x534D4C42, 1
"""What ``application_id`` and ``user_version`` of a label book are."""

_MAGIC, _JOURNAL = b"SQLite format 3\0", bytes.fromhex("d9d505f920a163d7")
_BESIDE = {"-journal": _JOURNAL, "-wal": bytes.fromhex("377f06")}
"""How the files begin that SQLite reads with a database, and then removes; zeros until a journal is on disk."""


def place_of(path: Path) -> tuple[int, int] | None:
    """Device and inode of a file; None if it is gone."""
    with suppress(OSError):
        found = os.lstat(path)
        return found.st_dev, found.st_ino
    return None


def recognised(path: Path) -> tuple[int, int]:
    """Device and inode of the file of a label book; anything else is refused, and only its head is read."""
    try:
        handle = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
        try:
            found = os.fstat(handle)
            head = os.read(handle, 100) if stat.S_ISREG(found.st_mode) else b""
        finally:
            os.close(handle)
    except OSError as error:
        what = "is a link" if path.is_symlink() else f"cannot be opened ({error.strerror})"
        raise InputError(f"{path} {what}, so labels are not kept there. Move it, or put a label book there.") from error
    numbers = [int.from_bytes(head[start : start + 4], "big") for start in (68, 60)]
    if not head.startswith(_MAGIC) or numbers[0] != APPLICATION:
        raise InputError(
            f"{path} is not a label book of semimetric. Move it to another place; it is unchanged. If it was one, try "
            "'semimetric labels RUN --recover COPY'."
        )
    if numbers[1] != FORMAT:
        raise InputError(f"{path} has format {numbers[1]}; this version reads {FORMAT}. Use the version that wrote it.")
    check_beside(path)
    return found.st_dev, found.st_ino


def check_beside(path: Path, is_there: bool = True) -> None:
    """Refuse a journal that SQLite did not write, and any journal where there is no book: it belongs to another one."""
    for suffix, begins in _BESIDE.items():
        beside = Path(f"{path}{suffix}")
        if os.path.lexists(beside) and not (is_there and _is_own(beside, begins)):
            raise InputError(
                f"{beside} is not a journal of that label book. Move it to another place; it is unchanged."
            )


def _is_own(journal: Path, begins: bytes) -> bool:
    """Return False for what SQLite did not write, and for a journal that names another file, which it would remove."""
    with suppress(FileNotFoundError):  # its writer has just ended
        content = journal.read_bytes() if stat.S_ISREG(os.lstat(journal).st_mode) else b"a link or a pipe"
        return not content or (content.startswith((begins, bytes(8))) and not content.endswith(_JOURNAL))
    return True


def is_database(path: Path) -> bool:
    """Return True for a plain file that SQLite wrote."""
    if not path.is_file():
        return False
    with path.open("rb") as file:
        return file.read(len(_MAGIC)) == _MAGIC
