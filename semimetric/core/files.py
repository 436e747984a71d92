"""Atomic file output: a file is either complete or not there."""

from __future__ import annotations

import glob
import hashlib
import json
import os
import tempfile
from collections.abc import Callable, Iterable
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from semimetric.core.errors import InputError, RunError

if TYPE_CHECKING:
    from torch import Tensor


Piece = bytes | memoryview
"""A part of the content of a file."""

DIGEST_BLOCK = 1 << 22

SAFETENSORS_TYPES = {
    "torch.float64": "F64",
    "torch.float32": "F32",
    "torch.float16": "F16",
    "torch.bfloat16": "BF16",
    "torch.float8_e4m3fn": "F8_E4M3",
    "torch.float8_e5m2": "F8_E5M2",
    "torch.complex64": "C64",
    "torch.int64": "I64",
    "torch.int32": "I32",
    "torch.int16": "I16",
    "torch.int8": "I8",
    "torch.uint64": "U64",
    "torch.uint32": "U32",
    "torch.uint16": "U16",
    "torch.uint8": "U8",
    "torch.bool": "BOOL",
}
"""How the format names the types of torch."""

TEMPORARY = ".semimetric-tmp"
"""End of the name of every temporary file; no other program has such files."""


def write_atomically(path: Path, write: Callable[[Path], object]) -> None:
    """Let ``write`` fill a temporary file beside ``path``, flush it to disk, then move it into place.

    On failure the temporary file is deleted and an existing file at ``path`` is unchanged.
    """
    handle, temporary = new_temporary(path)
    try:
        write(temporary)
        with temporary.open("rb") as written:
            os.fsync(written.fileno())
        temporary.chmod(0o666 & ~_umask())
        temporary.replace(path)
        sync_folder(path.parent)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
    finally:
        os.close(handle)


def new_temporary(path: Path) -> tuple[int, Path]:
    """A new file beside ``path``, locked while its handle is open: ``clear_leftovers`` spares files in use."""
    while True:
        handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.", suffix=TEMPORARY)
        try_lock(handle)
        if os.path.exists(name):  # not cleared before it was locked
            return handle, Path(name)
        os.close(handle)


def write_new(path: Path, content: bytes, mode: int = 0o666) -> None:
    """Write a file that is not there yet, whole or not at all; FileExistsError if something is there."""
    handle, temporary = new_temporary(path)
    try:
        temporary.write_bytes(content)
        os.fchmod(handle, mode & ~_umask())
        os.fsync(handle)
        try:
            os.link(temporary, path)
        except FileExistsError:
            raise
        except OSError:  # a file system without links
            if os.path.lexists(path):
                raise FileExistsError(path) from None
            temporary.rename(path)
        sync_folder(path.parent)
    finally:
        os.close(handle)
        temporary.unlink(missing_ok=True)


def try_lock(handle: int) -> bool | None:
    """Lock an open file for this process; False if another holds it, None where the system has no such locks."""
    try:
        import fcntl

        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except (ImportError, OSError):
        return None
    return True


def sync_folder(folder: Path) -> None:
    """Flush the names in a folder to disk, after a rename, where the system can."""
    with suppress(OSError):
        handle = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)


def clear_leftovers(folder: Path, name: str = "*") -> None:
    """Delete temporary files of killed processes; ``name`` is a pattern for the final file name."""
    for leftover in folder.glob(f".{name}.????????{TEMPORARY}"):
        with suppress(OSError):
            handle = os.open(leftover, os.O_RDWR | os.O_NOFOLLOW)
            try:
                if try_lock(handle):
                    leftover.unlink(missing_ok=True)
            finally:
                os.close(handle)


def check_input(path: Path, expected: str) -> None:
    """Refuse what is not a plain file: nobody may ever write to a pipe, and some devices never end."""
    if not path.is_file():
        found = "is a folder" if path.is_dir() else "is a pipe or device" if path.exists() else "does not exist"
        raise InputError(f"{path} {found}. Pass {expected}.")


def check_output(
    out: Path,
    inputs: Iterable[Path] = (),
    replace: bool = False,
    option: str = "--out",
    allow: str = "--replace",
    in_run: bool = False,
) -> None:
    """Refuse an output that could destroy something; every command calls this before any work.

    Refused are one of ``inputs``, a file in a run folder (unless ``in_run``), an existing file (unless ``replace``),
    and what cannot be written. ``option`` and ``allow`` are the option names for the message. Temporary files that a
    killed process left of the same output are removed.
    """
    if not out.parent.is_dir():
        raise InputError(f"{option} {str(out)!r} cannot be written: there is no folder {str(out.parent)!r}. Make it.")
    if out.is_dir():
        raise InputError(f"{option} {str(out)!r} is a folder. Name a file.")
    clear_leftovers(out.parent, glob.escape(out.name))
    if any(_same_file(out, path) for path in inputs):
        raise InputError(f"{option} {str(out)!r} is an input of this command. Name another file.")
    if not in_run:
        refuse_in_run(out, option)
    if os.path.lexists(out) and not replace:
        raise InputError(f"{option} {str(out)!r} exists. Name another file, or replace it with {allow}.")
    if out.exists() and not out.is_file():
        raise InputError(f"{option} {str(out)!r} is no plain file. Name another file.")


def check_outputs(folder: Path, names: Iterable[str], replace: bool = False) -> None:
    """Refuse a folder that cannot be made, or in which a file of these names cannot be written or exists."""
    if not folder.is_dir():
        check_output(folder)
        return
    for path in (folder / name for name in names):
        if path.parent != folder and path.parent.is_symlink():
            raise InputError(f"{path.parent} is a link, and what it leads to would be changed. Name another --out.")
        if os.path.lexists(path.parent):
            check_output(path, replace=replace)


def refuse_in_run(out: Path, option: str = "--out") -> None:
    """Refuse a place inside of a run folder."""
    marks = ("config.json", "model.safetensors")
    run = next((folder for folder in out.resolve().parents if all((folder / name).is_file() for name in marks)), None)
    if run is not None:
        raise InputError(f"{option} {str(out)!r} lies inside the run {str(run)!r}. Name a place elsewhere.")


def _same_file(one: Path, other: Path) -> bool:
    return one.resolve() == other.resolve() or (one.exists() and other.exists() and one.samefile(other))


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask


def sha256_of(path: Path) -> str:
    """SHA-256 of a file's content; in large blocks, between which a thread that digests waits for others."""
    digest = hashlib.sha256()
    if path.exists() and not path.is_file():  # nobody may ever write to a pipe
        raise OSError(f"{path} is not a plain file")
    with path.open("rb", buffering=0) as file:
        while block := file.read(DIGEST_BLOCK):
            digest.update(block)
    return digest.hexdigest()


def write_text(path: Path, text: str) -> None:
    """Write ``text`` to ``path`` atomically."""
    write_atomically(path, lambda temporary: temporary.write_text(text, "utf-8", "backslashreplace"))


def write_json(path: Path, value: object) -> None:
    """Write ``value`` as indented JSON to ``path`` atomically."""
    write_text(path, json_text(value))


def json_text(value: object) -> str:
    """``value`` as indented JSON."""
    return json.dumps(value, indent=2, allow_nan=False) + "\n"


def read_json(path: Path) -> Any:
    """Read JSON from ``path``; the error for a damaged file names it."""
    try:
        return parse_json(path.read_text(encoding="utf-8"))
    except RecursionError:
        raise RunError(f"{path} cannot be read: it is nested too deeply. It is damaged; use another one.") from None
    except (OSError, ValueError) as error:
        raise RunError(f"{path} cannot be read: {error}. It is damaged; start again with another --out.") from error


def parse_json(text: str) -> Any:
    """Return the value of a JSON text; ValueError if it is none.

    Text with half a character is none either, as it can be neither written nor shown; bytes of a file name that are not
    UTF-8 can.
    """
    value = json.loads(text)
    if "\\ud" in text.lower():
        json.dumps(value, ensure_ascii=False).encode("utf-8", "surrogateescape")
    return value


def shown(name: str) -> str:
    """Write out the bytes of a file name that are not UTF-8."""
    return name if name.isascii() else os.fsencode(name).decode("utf-8", "backslashreplace")


def write_tensors(path: Path, tensors: dict[str, Tensor], state: object = None) -> None:
    """Write tensors and a JSON-serialisable ``state`` as one safetensors file, atomically."""
    pieces = tensor_pieces(tensors, state)
    write_atomically(path, lambda temporary: write_pieces(temporary, pieces))


def tensor_pieces(tensors: dict[str, Tensor], state: object = None) -> list[Piece]:
    """Tensors and a JSON-serialisable ``state`` as the content of one safetensors file, in pieces.

    Tensors on the CPU are not copied. The writer of the library takes three times the memory of what it writes.
    """
    own = {name: tensor.detach().cpu().resolve_conj().resolve_neg().contiguous() for name, tensor in tensors.items()}
    order = sorted(own, key=lambda name: (-own[name].itemsize, name))  # each begins at a multiple of its item
    header: dict[str, Any] = {"__metadata__": {"state": json.dumps(state)}}
    end = 0
    for name in order:
        start, end = end, end + own[name].nbytes
        kind = SAFETENSORS_TYPES.get(str(own[name].dtype))
        if kind is None:
            known = ", ".join(word.removeprefix("torch.") for word in SAFETENSORS_TYPES)
            raise InputError(f"{name} has the type {own[name].dtype}, which no file can hold. Use one of {known}.")
        header[name] = {"dtype": kind, "shape": list(own[name].shape), "data_offsets": [start, end]}
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    return [len(text).to_bytes(8, "little"), text, *(memory_of(own[name]) for name in order)]


def memory_of(tensor: Tensor) -> memoryview:
    """The bytes of a tensor; those of a contiguous one on the CPU are not copied."""
    import torch

    return tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().data


def write_pieces(path: Path, pieces: Iterable[Piece]) -> None:
    """Write a file whose content is all pieces, one after the other."""
    with path.open("wb") as file:
        for piece in pieces:
            file.write(piece)


def read_tensors(path: Path, only: Iterable[str] | None = None) -> tuple[dict[str, Tensor], Any]:
    """Read the tensors (on the CPU), or ``only`` some by name, and the state that ``write_tensors`` wrote."""
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(path, framework="pt", device="cpu") as file:
            tensors = {name: file.get_tensor(name) for name in (file.keys() if only is None else only)}
            state = parse_json((file.metadata() or {}).get("state", "null"))
    except (OSError, ValueError, RecursionError, SafetensorError) as error:
        raise RunError(f"{path} cannot be read: {error}. It is damaged; start again with another --out.") from error
    return tensors, state
