"""What was made here: a seal that only this user on this machine can put under something.

It is an HMAC with a key of 32 random bytes in the user's state folder. Files that a run names are opened unasked only
where such a seal says that the run was made here.
"""

from __future__ import annotations

import hmac
import json
import os
import secrets
from contextlib import suppress
from pathlib import Path

from semimetric.core.files import clear_leftovers, new_temporary

KEY = "origin.key"
KEY_BYTES = 32


def key_file() -> Path | None:
    """The file of the key, in XDG_STATE_HOME or ~/.local/state; None for a user without a home."""
    state = os.environ.get("XDG_STATE_HOME", "")
    try:
        return (Path(state) if state else Path.home() / ".local" / "state") / "semimetric" / KEY
    except RuntimeError:
        return None


def seal_of(said: object) -> str | None:
    """The seal under a JSON value; None where no key can be kept."""
    path = key_file()
    key = None if path is None else _read(path) or _make(path)
    return None if key is None else _seal(key, said)


def was_sealed_here(seal: object, said: object) -> bool:
    """Whether ``seal`` was made here, under this value. No key is made for that."""
    path = key_file()
    key = None if path is None else _read(path)
    return key is not None and isinstance(seal, str) and seal.isascii() and hmac.compare_digest(seal, _seal(key, said))


def _seal(key: bytes, said: object) -> str:
    return hmac.digest(key, json.dumps(said, sort_keys=True).encode(), "sha256").hex()


def _read(path: Path) -> bytes | None:
    with suppress(OSError):
        key = path.read_bytes()
        return key if len(key) == KEY_BYTES else None
    return None


def _make(path: Path) -> bytes | None:
    """A new key, unless another process has just made one; a file that is no key is left alone."""
    with suppress(OSError):
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        clear_leftovers(path.parent, KEY)
        handle, temporary = new_temporary(path)
        try:
            os.write(handle, secrets.token_bytes(KEY_BYTES))
            os.fsync(handle)
            with suppress(FileExistsError):
                os.link(temporary, path)
        finally:
            os.close(handle)
            temporary.unlink()
    return _read(path)
