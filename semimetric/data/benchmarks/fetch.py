"""Downloads of the benchmark datasets: resumed where they stopped, checked before they count."""

from __future__ import annotations

import hashlib
import http.client
import tarfile
import urllib.error
import urllib.request
import zlib
from collections.abc import Callable, Mapping, Sequence
from operator import methodcaller
from pathlib import Path

from semimetric.core.errors import DataError, InputError
from semimetric.core.files import write_atomically
from semimetric.data.benchmarks.official import Archive, FileSpec, check_content
from semimetric.data.benchmarks.registry import DATASETS, base_folders

Progress = Callable[[str, int, int | None], None]
"""Called with the file's name, the bytes so far, and the bytes in all (None if the server does not say)."""

_TIMEOUT, _BLOCK = 30.0, 1 << 18  # seconds, bytes


def fetch_dataset(
    name: str,
    data_dir: Path | str | None = None,
    progress: Progress | None = None,
    *,
    mirrors: Sequence[str] | None = None,
) -> Path:
    """Download a dataset and return its folder, the first place where ``load_dataset`` looks.

    Files that are there and whole are kept. An interrupted download leaves a ``.part`` file, which the next call
    continues. A file gets its final name only after its SHA-256 is found to be the published one.

    Parameters
    ----------
    name : str
        One of ``dataset_names()``.
    data_dir : path, optional
        The dataset goes to ``data_dir/name``; without it, into the folder that SEMIMETRIC_DATA names, or
        else into the user cache.
    progress : callable, optional
        Called after each block with file name, bytes so far and bytes in all.
    mirrors : sequence of str, optional
        Addresses to try, in order, instead of the official ones.
    """
    spec = DATASETS.find(name)
    folder = base_folders(data_dir)[0] / name
    if not isinstance(spec, FileSpec):
        raise InputError(spec.not_fetched(folder))
    addresses = mirrors or spec.mirrors
    _check_mirrors(name, addresses)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        _fetch_into(folder, spec, addresses, progress or (lambda name, done, total: None))
    except OSError as error:
        raise DataError(f"{name} cannot be stored in {folder}: {error}; choose another data_dir.") from error
    return folder


def _check_mirrors(name: str, mirrors: Sequence[str]) -> None:
    if not mirrors:
        raise InputError(f"{name!r} has no address to fetch from. Give one as mirrors.")
    for mirror in mirrors:
        if not mirror.startswith(("http://", "https://")):
            raise InputError(f"mirrors must be http:// or https:// addresses, but one is {mirror!r}.")


def _fetch_into(folder: Path, spec: FileSpec, mirrors: Sequence[str], progress: Progress) -> None:
    wanted = [name for name in spec.checksums if not spec.is_whole(folder, name)]
    if spec.archive is not None and wanted:
        fetch_archive(folder, spec.archive, spec.checksums, mirrors, progress)
        return
    for name in wanted:
        fetch_file(folder / spec.variants(name)[0], spec.checksums[name], spec.content, mirrors, progress)


def fetch_file(
    target: Path, sha256: str, content: Callable[[Path], bytes], mirrors: Sequence[str], progress: Progress
) -> None:
    """Download a file to ``target``; ``sha256`` is that of its uncompressed content."""
    part = download(target, mirrors, lambda part: check_content(content(part), sha256, part), progress)
    write_atomically(target, part.replace)


def fetch_archive(
    folder: Path, archive: Archive, checksums: Mapping[str, str], mirrors: Sequence[str], progress: Progress
) -> None:
    """Download a tar archive, put the files in ``checksums`` into ``folder`` and delete the archive."""

    def check(part: Path) -> None:
        with part.open("rb") as file:
            found = hashlib.file_digest(file, "sha256").hexdigest()
        if found != archive.sha256:
            raise DataError(f"{part} has SHA-256 {found}, the official {archive.name} has {archive.sha256}.")

    part = download(folder / archive.name, mirrors, check, progress)
    unpack(part, folder, archive.folder, checksums)
    part.unlink()


def unpack(archive: Path, folder: Path, inside: str, checksums: Mapping[str, str]) -> None:
    """Write the members ``inside/name``, once all are checked, to ``folder/name``; no other name becomes a path."""
    try:
        with tarfile.open(archive, "r:gz") as tar:
            contents = {name: _member(tar, f"{inside}/{name}") for name in checksums}
    except (tarfile.TarError, EOFError, zlib.error, KeyError) as error:
        raise DataError(f"{archive} cannot be unpacked: {error}; fetch it again.") from error
    for name, content in contents.items():
        check_content(content, checksums[name], archive / inside / name)
    for name, content in contents.items():
        write_atomically(folder / name, methodcaller("write_bytes", content))


def _member(tar: tarfile.TarFile, name: str) -> bytes:
    member = tar.getmember(name)
    file = tar.extractfile(member) if member.isreg() else None
    if file is None:
        raise tarfile.ExtractError(f"{name} is not a plain file")
    with file:
        return file.read()


def download(
    target: Path, mirrors: Sequence[str], check: Callable[[Path], None], progress: Progress, timeout: float = _TIMEOUT
) -> Path:
    """Download ``target.name`` from the first mirror whose file passes ``check``; return the part beside it."""
    part = target.with_name(f".{target.name}.semimetric-part")
    problems = []
    for mirror in mirrors:
        url = f"{mirror.rstrip('/')}/{target.name}"
        try:
            _download_checked(url, part, check, lambda done, total: progress(target.name, done, total), timeout)
        except (DataError, OSError, http.client.HTTPException) as error:
            problems.append(f"{url}: {error}")
        else:
            return part
    raise DataError(f"{target.name} could not be fetched; try again later. What happened: {' | '.join(problems)}")


def _download_checked(
    url: str, part: Path, check: Callable[[Path], None], progress: Callable[[int, int | None], None], timeout: float
) -> None:
    """Download and check; a continued file that fails gets one fresh start, since its beginning may be bad."""
    continued = part.exists()
    _transfer(url, part, progress, timeout)
    try:
        check(part)
    except DataError:
        part.unlink()
        if not continued:
            raise
        _download_checked(url, part, check, progress, timeout)


def _transfer(url: str, part: Path, progress: Callable[[int, int | None], None], timeout: float) -> None:
    """Bring ``part`` to its full length, continuing it where the server knows how to."""
    start = part.stat().st_size if part.exists() else 0
    request = urllib.request.Request(url, headers={"Range": f"bytes={start}-"} if start else {})
    try:
        response = urllib.request.urlopen(request, timeout=timeout)
    except urllib.error.HTTPError as error:
        with error:
            if start and error.code == http.client.REQUESTED_RANGE_NOT_SATISFIABLE:
                return  # nothing is left to send: the check says whether the file is good
            raise
    with response:
        start = start if _continues_at(response, start) else 0
        length = response.headers.get("Content-Length")
        total = start + int(length) if length and length.isdigit() else None
        done = start
        progress(done, total)
        with part.open("ab" if start else "wb") as file:
            while block := response.read(_BLOCK):
                done += file.write(block)
                progress(done, total)
    if total is not None and done < total:
        raise DataError(f"the connection ended after {done} of {total} bytes.")


def _continues_at(response: http.client.HTTPResponse, start: int) -> bool:
    sent = response.headers.get("Content-Range", "")
    return response.status == http.client.PARTIAL_CONTENT and sent.startswith(f"bytes {start}-")
