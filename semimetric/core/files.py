"""Atomic file output: a file is either complete or not there."""

from __future__ import annotations

import hashlib
import json
import os
import tempfile
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from semimetric.core.errors import InputError, RunError

if TYPE_CHECKING:
    from torch import Tensor


def write_atomically(path: Path, write: Callable[[Path], object]) -> None:
    """Let ``write`` fill a temporary file beside ``path``, flush it to disk, then move it into place.

    On failure the temporary file is deleted and an existing file at ``path`` is unchanged.
    """
    handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.", suffix=".tmp")
    os.close(handle)
    temporary = Path(name)
    try:
        write(temporary)
        with temporary.open("rb") as written:
            os.fsync(written.fileno())
        temporary.chmod(0o666 & ~_umask())
        temporary.replace(path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise


def clear_leftovers(folder: Path, name: str = "*") -> None:
    """Delete temporary files of killed processes; ``name`` is a pattern for the final file name."""
    for leftover in folder.glob(f".{name}.????????.tmp"):
        leftover.unlink(missing_ok=True)


def check_output(
    out: Path, inputs: Iterable[Path] = (), overwrite: bool = False, option: str = "--out", allow: str = "--overwrite"
) -> None:
    """Refuse an output file that is one of ``inputs``, exists (unless ``overwrite``), or cannot be written.

    ``option`` and ``allow`` are the option names for the message.
    """
    if not out.parent.is_dir():
        raise InputError(f"{option} {str(out)!r} cannot be written: there is no folder {str(out.parent)!r}. Make it.")
    if out.is_dir():
        raise InputError(f"{option} {str(out)!r} is a folder. Name a file.")
    if any(out.resolve() == path.resolve() for path in inputs):
        raise InputError(f"{option} {str(out)!r} is an input of this command. Name another file.")
    if out.exists() and not overwrite:
        raise InputError(f"{option} {str(out)!r} exists. Name another file, or replace it with {allow}.")


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask


def sha256_of(path: Path) -> str:
    """SHA-256 of a file's content."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def write_text(path: Path, text: str) -> None:
    """Write ``text`` to ``path`` atomically."""
    write_atomically(path, lambda temporary: temporary.write_text(text, encoding="utf-8"))


def write_json(path: Path, value: object) -> None:
    """Write ``value`` as indented JSON to ``path`` atomically."""
    write_text(path, json.dumps(value, indent=2, allow_nan=False) + "\n")


def read_json(path: Path) -> Any:
    """Read JSON from ``path``; the error for a damaged file names it."""
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise RunError(f"{path} cannot be read: {error}. It is damaged; start again with another --out.") from error


def write_tensors(path: Path, tensors: dict[str, Tensor], state: object = None) -> None:
    """Write tensors and a JSON-serialisable ``state`` as one safetensors file, atomically."""
    from safetensors.torch import save

    own = {name: tensor.detach().cpu().contiguous().clone() for name, tensor in tensors.items()}
    content = save(own, metadata={"state": json.dumps(state)})
    write_atomically(path, lambda temporary: temporary.write_bytes(content))


def read_tensors(path: Path) -> tuple[dict[str, Tensor], Any]:
    """Read the tensors (on the CPU) and the state that ``write_tensors`` wrote."""
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(path, framework="pt", device="cpu") as file:
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
            state = json.loads((file.metadata() or {}).get("state", "null"))
    except (OSError, ValueError, SafetensorError) as error:
        raise RunError(f"{path} cannot be read: {error}. It is damaged; start again with another --out.") from error
    return tensors, state
