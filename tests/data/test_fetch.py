import dataclasses
import gzip
import hashlib
import io
import re
import tarfile
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from semimetric.core.errors import DataError, InputError
from semimetric.data import FileSpec, fetch_dataset, load_dataset
from semimetric.data.benchmarks import fetch
from semimetric.data.benchmarks.registry import DATASETS

IMAGES = "train-images-idx3-ubyte.gz"
ARCHIVE = "cifar-10-binary.tar.gz"


class Mirror:
    """A server on the loopback device; tests set what it serves and how well it behaves."""

    def __init__(self) -> None:
        self.files: dict[str, bytes] = {}
        self.ranges = True
        self.breaks_after: int | None = None
        self.requests: list[tuple[str, str | None]] = []
        mirror = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                mirror.answer(self)

            def log_message(self, *arguments: object) -> None:
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.thread = threading.Thread(target=self.server.serve_forever, kwargs={"poll_interval": 0.01})
        self.thread.start()
        self.url = f"http://127.0.0.1:{self.server.server_port}/"

    def answer(self, handler: BaseHTTPRequestHandler) -> None:
        name, asked = handler.path.lstrip("/"), handler.headers.get("Range")
        self.requests.append((name, asked))
        if name not in self.files:
            handler.send_error(404)
            return
        content = self.files[name]
        start = int(re.findall(r"\d+", asked)[0]) if asked and self.ranges else 0
        if start and start >= len(content):
            handler.send_error(416)
            return
        handler.send_response(206 if start else 200)
        if start:
            handler.send_header("Content-Range", f"bytes {start}-{len(content) - 1}/{len(content)}")
        handler.send_header("Content-Length", str(len(content) - start))
        handler.end_headers()
        handler.wfile.write(content[start : self.breaks_after])

    def close(self) -> None:
        self.server.shutdown()
        self.thread.join()
        self.server.server_close()


@pytest.fixture
def mirrors(monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[Mirror, Mirror]]:
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    pair = Mirror(), Mirror()
    yield pair
    for mirror in pair:
        mirror.close()


@pytest.fixture
def mirror(mirrors: tuple[Mirror, Mirror], tiny_idx: Any, monkeypatch: pytest.MonkeyPatch) -> Mirror:
    """Serve the tiny files as if they were MNIST."""
    mnist = dataclasses.replace(DATASETS["mnist"], checksums=tiny_idx.checksums)
    monkeypatch.setitem(DATASETS._loaded, "mnist", mnist)
    mirrors[0].files = {path.name: path.read_bytes() for path in tiny_idx.folder.iterdir()}
    return mirrors[0]


def parts_in(folder: Path) -> list[str]:
    return [path.name for path in folder.rglob("*") if path.suffix in {".semimetric-part", ".semimetric-tmp"}]


def test_fresh_download_can_be_loaded(mirror: Mirror, tmp_path: Path) -> None:
    seen: list[tuple[str, int, int | None]] = []
    folder = fetch_dataset("mnist", tmp_path, lambda *call: seen.append(call), mirrors=[mirror.url])
    assert folder == tmp_path / "mnist"
    assert len(load_dataset("mnist", tmp_path).train) == 6
    assert parts_in(tmp_path) == []
    size = len(mirror.files[IMAGES])
    assert [call for call in seen if call[0] == IMAGES] == [(IMAGES, 0, size), (IMAGES, size, size)]


def test_whole_files_are_not_fetched_again_and_damaged_ones_are(mirror: Mirror, tmp_path: Path) -> None:
    folder = fetch_dataset("mnist", tmp_path, mirrors=[mirror.url])
    (folder / IMAGES).write_bytes(b"damaged")
    mirror.requests.clear()
    fetch_dataset("mnist", tmp_path, mirrors=[mirror.url])
    assert mirror.requests == [(IMAGES, None)]
    assert (folder / IMAGES).read_bytes() == mirror.files[IMAGES]


def test_a_fetched_file_goes_before_a_damaged_plain_one(mirror: Mirror, tmp_path: Path) -> None:
    (tmp_path / "mnist").mkdir()
    (tmp_path / "mnist" / IMAGES.removesuffix(".gz")).write_bytes(b"damaged")
    fetch_dataset("mnist", tmp_path, mirrors=[mirror.url])
    assert len(load_dataset("mnist", tmp_path).train) == 6


def test_goes_where_the_environment_says(mirror: Mirror, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SEMIMETRIC_DATA", str(tmp_path / "env"))
    assert fetch_dataset("mnist", mirrors=[mirror.url]) == tmp_path / "env" / "mnist"
    monkeypatch.delenv("SEMIMETRIC_DATA")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
    assert fetch_dataset("mnist", mirrors=[mirror.url]) == tmp_path / "xdg" / "semimetric" / "mnist"


def test_a_broken_download_is_continued(mirror: Mirror, tmp_path: Path) -> None:
    mirror.breaks_after = 1000
    size = len(mirror.files[IMAGES])
    with pytest.raises(DataError, match=f"ended after 1000 of {size} bytes"):
        fetch_dataset("mnist", tmp_path, mirrors=[mirror.url])
    assert parts_in(tmp_path) == [f".{IMAGES}.semimetric-part"]
    assert not (tmp_path / "mnist" / IMAGES).exists()
    mirror.breaks_after = None
    mirror.requests.clear()
    fetch_dataset("mnist", tmp_path, mirrors=[mirror.url])
    assert mirror.requests[0] == (IMAGES, "bytes=1000-")
    assert len(load_dataset("mnist", tmp_path).train) == 6


def leave_part(tmp_path: Path, content: bytes) -> Path:
    part = tmp_path / "mnist" / f".{IMAGES}.semimetric-part"
    part.parent.mkdir()
    part.write_bytes(content)
    return part


def test_a_server_without_ranges_starts_over(mirror: Mirror, tmp_path: Path) -> None:
    leave_part(tmp_path, mirror.files[IMAGES][:1000])
    mirror.ranges = False
    fetch_dataset("mnist", tmp_path, mirrors=[mirror.url])
    assert [asked for name, asked in mirror.requests if name == IMAGES] == ["bytes=1000-"]
    assert (tmp_path / "mnist" / IMAGES).read_bytes() == mirror.files[IMAGES]


def test_a_complete_part_needs_no_more_bytes(mirror: Mirror, tmp_path: Path) -> None:
    leave_part(tmp_path, mirror.files[IMAGES])
    fetch_dataset("mnist", tmp_path, mirrors=[mirror.url])
    assert [name for name, _ in mirror.requests].count(IMAGES) == 1
    assert (tmp_path / "mnist" / IMAGES).read_bytes() == mirror.files[IMAGES]


@pytest.mark.parametrize("length", [1000, 100_000])
def test_a_part_that_is_not_of_this_file_is_dropped(mirror: Mirror, tmp_path: Path, length: int) -> None:
    leave_part(tmp_path, bytes(length))
    fetch_dataset("mnist", tmp_path, mirrors=[mirror.url])
    assert mirror.requests[:2] == [(IMAGES, f"bytes={length}-"), (IMAGES, None)]
    assert (tmp_path / "mnist" / IMAGES).read_bytes() == mirror.files[IMAGES]


def test_unofficial_content_never_gets_its_name(mirror: Mirror, tmp_path: Path) -> None:
    mirror.files[IMAGES] = gzip.compress(b"something else")
    with pytest.raises(DataError, match="does not hold the official content"):
        fetch_dataset("mnist", tmp_path, mirrors=[mirror.url])
    assert list((tmp_path / "mnist").iterdir()) == []


@pytest.mark.parametrize("failure", ["unreachable", "not there", "wrong", "breaks"])
def test_the_next_mirror_is_tried(mirror: Mirror, mirrors: tuple[Mirror, Mirror], tmp_path: Path, failure: str) -> None:
    bad = mirrors[1]
    if failure == "wrong":
        bad.files = dict.fromkeys(mirror.files, b"something else")
    if failure == "breaks":
        bad.files, bad.breaks_after = mirror.files, 1000
    url = "http://127.0.0.1:9/" if failure == "unreachable" else bad.url
    fetch_dataset("mnist", tmp_path, mirrors=[url, mirror.url])
    assert (tmp_path / "mnist" / IMAGES).read_bytes() == mirror.files[IMAGES]
    if failure == "breaks":
        assert (IMAGES, "bytes=1000-") in mirror.requests


def test_all_unreachable_tells_what_happened_at_each(mirrors: tuple[Mirror, Mirror], tmp_path: Path) -> None:
    with pytest.raises(DataError, match="could not be fetched; try again later") as caught:
        fetch_dataset("fashion-mnist", tmp_path, mirrors=["http://127.0.0.1:9/", mirrors[1].url])
    assert f"http://127.0.0.1:9/{IMAGES}: " in str(caught.value)
    assert f"{mirrors[1].url}{IMAGES}: HTTP Error 404" in str(caught.value)


def test_a_silent_server_is_given_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import socket

    monkeypatch.setenv("no_proxy", "127.0.0.1")
    with socket.create_server(("127.0.0.1", 0)) as listener:
        url = f"http://127.0.0.1:{listener.getsockname()[1]}/"
        with pytest.raises(DataError, match="timed out"):
            fetch.download(tmp_path / "x", [url], lambda part: None, lambda *call: None, timeout=0.2)


def test_nothing_to_fetch_and_unusable_arguments(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="nothing to fetch for 'digits': it is inside scikit-learn"):
        fetch_dataset("digits", tmp_path)
    with pytest.raises(InputError, match=r"dataset must be one of .*, got 'minst'\. Did you mean 'mnist'"):
        fetch_dataset("minst", tmp_path)
    with pytest.raises(InputError, match="but one is 'file:///etc/'"):
        fetch_dataset("mnist", tmp_path, mirrors=["file:///etc/"])
    assert list(tmp_path.iterdir()) == []


def test_a_folder_that_cannot_be_made_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(DataError, match=r"cannot be stored in .*choose another data_dir"):
        fetch_dataset("mnist", tmp_path / "file")


BATCHES = {
    name: np.random.default_rng(k).integers(0, 10, (2, 3073)).astype(np.uint8).tobytes()
    for k, name in enumerate((*(f"data_batch_{k}.bin" for k in range(1, 6)), "test_batch.bin"))
}


def tar_of(members: dict[str, bytes | str]) -> bytes:
    """Pack bytes as files, text as symbolic links to it."""
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w:gz") as tar:
        for name, content in members.items():
            info = tarfile.TarInfo(name)
            if isinstance(content, str):
                info.type, info.linkname = tarfile.SYMTYPE, content
                tar.addfile(info)
            else:
                info.size = len(content)
                tar.addfile(info, io.BytesIO(content))
    return packed.getvalue()


def serve_cifar(mirror: Mirror, archive: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    checksums = {name: hashlib.sha256(content).hexdigest() for name, content in BATCHES.items()}
    known = DATASETS["cifar10"]
    assert isinstance(known, FileSpec)
    assert known.archive is not None
    pinned = dataclasses.replace(known.archive, sha256=hashlib.sha256(archive).hexdigest())
    cifar = dataclasses.replace(known, checksums=checksums, archive=pinned)
    monkeypatch.setitem(DATASETS._loaded, "cifar10", cifar)
    mirror.files = {ARCHIVE: archive}


INSIDE = {f"cifar-10-batches-bin/{name}": content for name, content in BATCHES.items()}


def test_archive_gives_only_the_expected_files(
    mirrors: tuple[Mirror, Mirror], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    strange = {"../escaped": b"x", "/tmp/escaped": b"x", "cifar-10-batches-bin/readme.html": b"x"}
    serve_cifar(mirrors[0], tar_of({**strange, **INSIDE}), monkeypatch)
    folder = fetch_dataset("cifar10", tmp_path / "data", mirrors=[mirrors[0].url])
    assert sorted(path.name for path in folder.iterdir()) == sorted(BATCHES)
    assert [path.name for path in tmp_path.iterdir()] == ["data"]
    assert len(load_dataset("cifar10", tmp_path / "data").train) == 10
    fetch_dataset("cifar10", tmp_path / "data", mirrors=[mirrors[0].url])
    assert len(mirrors[0].requests) == 1


@pytest.mark.parametrize(
    ("replaced", "message"),
    [
        ({"cifar-10-batches-bin/test_batch.bin": "/etc/passwd"}, "test_batch.bin is not a plain file"),
        ({"cifar-10-batches-bin/test_batch.bin": b"other"}, "does not hold the official content"),
        (None, "test_batch.bin' not found"),
    ],
)
def test_archives_with_other_members_are_refused(
    mirrors: tuple[Mirror, Mirror],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    replaced: dict[str, bytes | str] | None,
    message: str,
) -> None:
    members: dict[str, bytes | str] = {**INSIDE, **(replaced or {})}
    if replaced is None:
        del members["cifar-10-batches-bin/test_batch.bin"]
    serve_cifar(mirrors[0], tar_of(members), monkeypatch)
    with pytest.raises(DataError, match=message):
        fetch_dataset("cifar10", tmp_path, mirrors=[mirrors[0].url])
    assert not list(tmp_path.rglob("*.bin"))


def test_an_archive_with_another_checksum_is_not_opened(
    mirrors: tuple[Mirror, Mirror], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    serve_cifar(mirrors[0], tar_of(dict(INSIDE)), monkeypatch)
    mirrors[0].files[ARCHIVE] = tar_of({**INSIDE, "more": b""})
    monkeypatch.setattr(fetch, "unpack", lambda *arguments: pytest.fail("opened"))
    with pytest.raises(DataError, match=r"the official cifar-10-binary\.tar\.gz has"):
        fetch_dataset("cifar10", tmp_path, mirrors=[mirrors[0].url])
    assert list((tmp_path / "cifar10").iterdir()) == []
