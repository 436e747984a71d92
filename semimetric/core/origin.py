"""Keys that only this user on this machine has: files of 32 random bytes in the user's state folder.

One makes seals, an HMAC under something. Files that a run names are opened unasked only where such a seal says that the
run was made here. Each run that is served has a key of its page.
"""

from __future__ import annotations

import hmac
import json
import os
import secrets
from contextlib import suppress
from hashlib import sha256
from pathlib import Path

from semimetric.core.files import clear_leftovers, write_new

KEY = "origin.key"
KEY_BYTES = 32


def key_file(name: str = KEY) -> Path | None:
    """The file of a key, in XDG_STATE_HOME or ~/.local/state; None for a user without a home."""
    state = os.environ.get("XDG_STATE_HOME", "")
    try:
        return (Path(state) if state else Path.home() / ".local" / "state") / "semimetric" / name
    except RuntimeError:
        return None


def seal_of(said: object) -> str | None:
    """The seal under a JSON value; None where no key can be kept."""
    key = _kept(key_file())
    return None if key is None else _seal(key, said)


def page_key(run: Path, new: bool = False) -> str:
    """Return the key of the page of a run, kept for its place on this machine; nothing where no key can be kept.

    ``new`` forgets the one before.
    """
    path = key_file(f"page-{sha256(os.fsencode(run.resolve())).hexdigest()[:32]}.key")
    if new and path is not None:
        path.unlink(missing_ok=True)
    return (_kept(path) or b"").hex()


def was_sealed_here(seal: object, said: object) -> bool:
    """Whether ``seal`` was made here, under this value. No key is made for that."""
    path = key_file()
    key = None if path is None else _read(path)
    return key is not None and isinstance(seal, str) and seal.isascii() and hmac.compare_digest(seal, _seal(key, said))


def _seal(key: bytes, said: object) -> str:
    return hmac.digest(key, json.dumps(said, sort_keys=True).encode(), "sha256").hex()


def _kept(path: Path | None) -> bytes | None:
    return None if path is None else _read(path) or _make(path)


def _read(path: Path) -> bytes | None:
    with suppress(OSError):
        key = path.read_bytes() if path.is_file() else b""
        return key if len(key) == KEY_BYTES else None
    return None


def _make(path: Path) -> bytes | None:
    """A new key, unless another process has just made one; a file that is no key is left alone."""
    with suppress(OSError):
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        clear_leftovers(path.parent, path.name)
        with suppress(FileExistsError):
            write_new(path, secrets.token_bytes(KEY_BYTES), 0o600)
    return _read(path)
