"""Downloads of the benchmark datasets: resumed where they stopped, checked before they count."""

from __future__ import annotations

import hashlib
import http.client
import tarfile
import urllib.error
import urllib.request
import zlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from semimetric.core.errors import DataError, InputError
from semimetric.core.files import write_atomically
from semimetric.data.benchmarks.fine_grained import PhotoBenchmark
from semimetric.data.benchmarks.official import check_content, find_file
from semimetric.data.benchmarks.registry import Benchmark, base_folders, find_benchmark
from semimetric.data.readers.cifar import read_rows
from semimetric.data.readers.idx import read_content

Progress = Callable[[str, int, int | None], None]
"""Told the file's name, the bytes that are there, and the bytes in all (None: the server does not say)."""

_TIMEOUT = 30.0
_BLOCK = 1 << 18
_RANGE_NOT_SATISFIABLE = 416

_MIRRORS: Mapping[str, tuple[str, ...]] = {
    "mnist": (
        "https://ossci-datasets.s3.amazonaws.com/mnist/",
        "https://storage.googleapis.com/cvdf-datasets/mnist/",
    ),
    "fashion-mnist": ("http://fashion-mnist.s3-website.eu-central-1.amazonaws.com/",),
    "cifar10": ("https://www.cs.toronto.edu/~kriz/",),
}


@dataclass(frozen=True)
class Archive:
    """A published tar archive; its wanted files lie in one folder of it."""

    name: str
    sha256: str
    folder: str


_CIFAR_ARCHIVE = Archive(
    name="cifar-10-binary.tar.gz",
    sha256="c4a38c50a1bc5f3a1c5537f2155ab9d68f9f25eb1ed8d9ddda3db29a59bca1dd",
    folder="cifar-10-batches-bin",
)


def fetch_dataset(
    name: str,
    data_dir: Path | str | None = None,
    progress: Progress | None = None,
    *,
    mirrors: Sequence[str] | None = None,
) -> Path:
    """Download a dataset and return its folder, the first place where ``load_dataset`` looks.

    Files that are there and whole stay as they are. A broken download leaves a ``.part`` file, which the next
    call continues. Nothing gets its final name before its SHA-256 is the published one.

    Parameters
    ----------
    data_dir : path, optional
        The dataset goes to ``data_dir/name``; without it, into the folder that SEMIMETRIC_DATA names, or
        else into the user cache.
    progress : callable, optional
        Called after each block with file name, bytes so far and bytes in all.
    mirrors : sequence of str, optional
        Addresses to try, in order, instead of the official ones.
    """
    benchmark = find_benchmark(name)
    if isinstance(benchmark, PhotoBenchmark):
        raise InputError(
            f"{name} cannot be fetched for you, since its licence does not let others pass it on. {benchmark.remedy} "
            f"and put it into {base_folders(data_dir)[0] / name}, as published or as one folder for each class."
        )
    if not benchmark.checksums:
        raise InputError(f"There is nothing to fetch for {name!r}: it is inside scikit-learn; load it as it is.")
    _check_mirrors(mirrors or ())
    folder = base_folders(data_dir)[0] / name
    try:
        folder.mkdir(parents=True, exist_ok=True)
        _fetch_into(folder, benchmark, mirrors or _MIRRORS[name], progress or _silent)
    except OSError as error:
        raise DataError(f"{name} cannot be stored in {folder}: {error}; choose another data_dir.") from error
    return folder


def _check_mirrors(mirrors: Sequence[str]) -> None:
    for mirror in mirrors:
        if not mirror.startswith(("http://", "https://")):
            raise InputError(f"mirrors must be http:// or https:// addresses, but one is {mirror!r}.")


def _silent(name: str, done: int, total: int | None) -> None:
    """Take no notice of progress."""


def _fetch_into(folder: Path, benchmark: Benchmark, mirrors: Sequence[str], progress: Progress) -> None:
    if benchmark.name == "cifar10":
        if not all(_is_whole(folder, benchmark, name, read_rows) for name in benchmark.checksums):
            fetch_archive(folder, _CIFAR_ARCHIVE, benchmark.checksums, mirrors, progress)
        return
    for name, sha256 in benchmark.checksums.items():
        if not _is_whole(folder, benchmark, name, read_content):
            fetch_compressed(folder / f"{name}.gz", sha256, mirrors, progress)


def _is_whole(folder: Path, benchmark: Benchmark, name: str, read: Callable[[Path], bytes]) -> bool:
    try:
        path = find_file(folder, name, benchmark.variants(name))
        check_content(read(path), benchmark.checksums[name], path)
    except DataError:
        return False
    return True


def fetch_compressed(target: Path, sha256: str, mirrors: Sequence[str], progress: Progress) -> None:
    """Download a gzip file to ``target``; ``sha256`` is that of its uncompressed content."""

    def check(part: Path) -> None:
        check_content(read_content(part), sha256, part)

    part = download(target, mirrors, check, progress)
    write_atomically(target, part.replace)


def fetch_archive(
    folder: Path, archive: Archive, checksums: Mapping[str, str], mirrors: Sequence[str], progress: Progress
) -> None:
    """Download a tar archive and put the files in ``checksums`` into ``folder``; the archive then goes."""

    def check(part: Path) -> None:
        with part.open("rb") as file:
            found = hashlib.file_digest(file, "sha256").hexdigest()
        if found != archive.sha256:
            raise DataError(f"{part} has SHA-256 {found}, the official {archive.name} has {archive.sha256}.")

    part = download(folder / archive.name, mirrors, check, progress)
    unpack(part, folder, archive.folder, checksums)
    part.unlink()


def unpack(archive: Path, folder: Path, inside: str, checksums: Mapping[str, str]) -> None:
    """Write the members ``inside/name`` for each name in ``checksums`` to ``folder/name``.

    Members are asked for by their expected name, never the other way round, so that no name in the archive
    becomes a path. All are checked before the first is written.
    """
    try:
        with tarfile.open(archive, "r:gz") as tar:
            contents = {name: _member(tar, f"{inside}/{name}") for name in checksums}
    except (tarfile.TarError, EOFError, zlib.error, KeyError) as error:
        raise DataError(f"{archive} cannot be unpacked: {error}; fetch it again.") from error
    for name, content in contents.items():
        check_content(content, checksums[name], archive / inside / name)
    for name, content in contents.items():
        _store(folder / name, content)


def _store(path: Path, content: bytes) -> None:
    write_atomically(path, lambda temporary: temporary.write_bytes(content))


def _member(tar: tarfile.TarFile, name: str) -> bytes:
    member = tar.getmember(name)
    file = tar.extractfile(member) if member.isreg() else None
    if file is None:
        raise tarfile.ExtractError(f"{name} is not a plain file")
    with file:
        return file.read()


def download(
    target: Path,
    mirrors: Sequence[str],
    check: Callable[[Path], None],
    progress: Progress,
    timeout: float = _TIMEOUT,
) -> Path:
    """Download ``target.name`` from the first mirror that has it and return the ``.part`` file beside ``target``.

    ``check`` raises DataError for a file that is not as published: it is deleted, and the next mirror is tried.
    """
    part = target.with_name(f"{target.name}.part")
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
    url: str,
    part: Path,
    check: Callable[[Path], None],
    progress: Callable[[int, int | None], None],
    timeout: float,
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
            if start and error.code == _RANGE_NOT_SATISFIABLE:
                return  # nothing is left to send: the check says whether the file is good
            raise
    with response:
        start = start if _continues_at(response, start) else 0
        length = response.headers.get("Content-Length")
        total = start + int(length) if length and length.isdigit() else None
        with part.open("ab" if start else "wb") as file:
            done = _copy(response, file, start, total, progress)
    if total is not None and done < total:
        raise DataError(f"the connection ended after {done} of {total} bytes.")


def _continues_at(response: http.client.HTTPResponse, start: int) -> bool:
    sent = response.headers.get("Content-Range", "")
    return response.status == http.client.PARTIAL_CONTENT and sent.startswith(f"bytes {start}-")


def _copy(
    source: IO[bytes],
    file: IO[bytes],
    done: int,
    total: int | None,
    progress: Callable[[int, int | None], None],
) -> int:
    progress(done, total)
    while block := source.read(_BLOCK):
        file.write(block)
        done += len(block)
        progress(done, total)
    return done
