"""Photographs are described once: by content and network, within a bound, and whatever happens to the cache."""

from __future__ import annotations

import os
import shutil
import signal
import sqlite3
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import torch
from helpers.own_photos import write_photo
from torch import Tensor, nn

from semimetric.core.errors import InputError
from semimetric.encoders.feature_cache import FILE, FeatureCache, identity_of, open_cache
from semimetric.encoders.photographs import PhotoTransform

COLOUR = (120, 80, 40)


class Counting(nn.Module):
    """A small frozen network that counts the photographs it has seen."""

    def __init__(self, seed: int = 0) -> None:
        super().__init__()
        self.weights = nn.Parameter(torch.randn(3 * 8 * 8, 5, generator=torch.Generator().manual_seed(seed)))
        self.seen = 0

    def forward(self, images: Tensor) -> Tensor:
        self.seen += len(images)
        return images.flatten(1) @ self.weights


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder of six photographs of long ago, and an empty cache beside it."""
    monkeypatch.setenv("SEMIMETRIC_CACHE", str(tmp_path / "cache"))
    for number in range(6):
        write_photo(tmp_path / "photos" / f"{number}.png", COLOUR, number, (10, 9))
    return tmp_path / "photos"


def described(paths: list[Path], seed: int = 0, **options: object) -> tuple[Tensor, int]:
    """Features, and how many photographs the network has seen for them."""
    network = Counting(seed)
    rows, features, skipped = PhotoTransform(8, network=network, **options).read(paths, "cpu")  # type: ignore[arg-type]
    assert len(rows) == len(features) == len(paths)
    assert not skipped
    return features, network.seen


def test_only_new_content_goes_through_the_network(folder: Path) -> None:
    paths = sorted(folder.iterdir())
    first, seen = described(paths[:4])
    assert seen == 4
    again, seen = described(paths)
    assert seen == 2
    assert torch.equal(again[:4], first)
    moved = shutil.copy(paths[5], folder / "moved.png")
    backwards, seen = described([moved, *paths[::-1]])
    assert seen == 0
    assert torch.equal(backwards, torch.cat([again[5:], again.flip(0)]))
    write_photo(paths[0], (1, 2, 3), 99, (10, 9))
    _, seen = described(paths)
    assert seen == 1


def test_another_network_or_preprocessing_is_another_feature(folder: Path) -> None:
    paths = sorted(folder.iterdir())
    first, _ = described(paths)
    other, seen = described(paths, seed=1)
    assert seen == 6
    assert not torch.allclose(first, other)
    assert described(paths, fit="squash")[1] == 6
    assert described(paths, name="other")[1] == 6
    assert described(paths)[1] == 0
    network = Counting()
    assert identity_of("a", network, 8, "crop") != identity_of("a", network.double(), 8, "crop")


def test_a_file_that_is_unchanged_is_not_read_again(folder: Path) -> None:
    paths = sorted(folder.iterdir())
    for path in paths[:5]:
        os.utime(path, ns=(10**18, 10**18))
    cache = open_cache("x")
    assert cache is not None
    stamps = [f"{path.stat().st_size} {10**18} {10**18}" for path in paths[:5]]  # as if nothing had changed since 2001
    now = f"{paths[5].stat().st_size} {paths[5].stat().st_mtime_ns} {paths[5].stat().st_ctime_ns}"
    found = cache._contents(paths, [*stamps, now])
    for path in paths:
        path.write_bytes(b"x" * path.stat().st_size)
    again = cache._contents(paths, [*stamps, now])
    assert again[:5] == found[:5]
    assert again[5] != found[5]  # changed a moment ago: its times prove nothing


def test_a_photograph_that_changes_meanwhile_is_not_kept(folder: Path) -> None:
    paths = sorted(folder.iterdir())
    cache = open_cache("x")
    assert cache is not None
    photos, _ = cache.find(paths)
    paths[0].write_bytes(paths[1].read_bytes() + b" ")
    cache.keep(photos, torch.arange(6.0)[:, None])
    shutil.copy(paths[2], folder / "copy.png")
    assert {row: float(value) for row, value in cache.find(paths)[1].items()} == {row: row for row in range(1, 6)}


@pytest.mark.parametrize("sql", ["UPDATE features SET row = x'00000000'", "UPDATE features SET row = 7"])
def test_a_damaged_entry_is_computed_again(folder: Path, tmp_path: Path, sql: str) -> None:
    paths = sorted(folder.iterdir())
    first, _ = described(paths)
    with sqlite3.connect(tmp_path / "cache" / FILE) as db:
        db.execute(sql)
    db.close()
    again, seen = described(paths)
    assert seen == 6
    assert torch.equal(again, first)
    assert described(paths)[1] == 0


def test_a_damaged_or_deleted_file_starts_over(folder: Path, tmp_path: Path) -> None:
    paths, file = sorted(folder.iterdir()), tmp_path / "cache" / FILE
    described(paths)
    content = bytearray(file.read_bytes())
    content[200:] = b"\x55" * (len(content) - 200)  # the header of the file is whole
    for damaged in (b"no database at all" * 99, bytes(content)):
        file.write_bytes(damaged)
        assert described(paths)[1] == 6
        assert described(paths)[1] == 0
    shutil.rmtree(tmp_path / "cache")
    assert described(paths)[1] == 6


def test_a_damaged_file_that_cannot_be_removed_is_told_and_left_out(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "cache" / FILE
    file.parent.mkdir()
    file.write_bytes(b"no database at all" * 99)

    def refused(*_: object, **__: object) -> None:
        raise PermissionError("the folder may not be written to")

    monkeypatch.setattr(Path, "unlink", refused)
    with pytest.warns(UserWarning, match="cannot be used: the folder may not be written to"):
        assert described(sorted(folder.iterdir()))[1] == 6


def test_a_cache_that_cannot_be_used_is_told_and_left_out(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    paths = sorted(folder.iterdir())
    monkeypatch.setenv("SEMIMETRIC_CACHE", str(paths[0]))
    with pytest.warns(UserWarning, match=r"the feature cache .*0\.png.* cannot be used"):
        assert described(paths)[1] == 6


def test_off_keeps_nothing(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SEMIMETRIC_CACHE", "off")
    described(sorted(folder.iterdir()))
    assert not (tmp_path / "cache").exists()
    monkeypatch.delenv("SEMIMETRIC_CACHE")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
    described(sorted(folder.iterdir()))
    assert (tmp_path / "xdg" / "semimetric" / FILE).is_file()


def test_the_oldest_leave_above_the_bound(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = sorted(folder.iterdir())[0]
    cache = FeatureCache(tmp_path / "cache" / FILE, "x", 80_000)
    ((photo,), _) = cache.find([path])
    assert photo is not None
    clock = iter(range(10**6))
    monkeypatch.setattr("semimetric.encoders.feature_cache.time.time", lambda: float(next(clock)))
    keys = [bytes([number]) * 32 for number in range(40)]
    for key in keys:
        cache.keep([photo._replace(key=key)], torch.ones(1, 1000))
        assert cache.path.stat().st_size <= 80_000
    with sqlite3.connect(cache.path) as db:
        kept = [bool(db.execute("SELECT 1 FROM features WHERE key = ?", (key,)).fetchone()) for key in keys]
    db.close()
    assert 5 < sum(kept) < 20
    assert kept == sorted(kept)  # the newest


@pytest.mark.parametrize(("given", "bytes_"), [("", 2 << 30), ("1000", 1000), ("1.5 kB", 1500), ("2GiB", 2 << 30)])
def test_the_bound_is_a_setting(folder: Path, monkeypatch: pytest.MonkeyPatch, given: str, bytes_: int) -> None:
    monkeypatch.setenv("SEMIMETRIC_CACHE_SIZE", given)
    cache = open_cache("x")
    assert cache is not None
    assert cache.most_bytes == bytes_
    monkeypatch.setenv("SEMIMETRIC_CACHE_SIZE", "much")
    with pytest.raises(InputError, match="SEMIMETRIC_CACHE_SIZE must be a number of bytes such as 500MB"):
        open_cache("x")


def test_many_write_at_once(folder: Path) -> None:
    paths = sorted(folder.iterdir())
    first, _ = described(paths)
    with ThreadPoolExecutor(4) as pool:
        found = list(pool.map(lambda seed: described(paths, seed % 3)[0], range(12)))
    assert all(torch.equal(features, first) for features in found[::3])
    assert [described(paths, seed)[1] for seed in range(3)] == [0, 0, 0]


def test_an_interrupted_description_continues(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    paths = sorted(folder.iterdir())
    monkeypatch.setattr("semimetric.encoders.photographs.BATCH", 2)

    class Killed(Counting):
        def forward(self, images: Tensor) -> Tensor:
            if self.seen == 4:
                raise KeyboardInterrupt
            return super().forward(images)

    network = Killed()
    transform = PhotoTransform(8, network=network)
    with pytest.raises(KeyboardInterrupt):
        transform.read(paths, "cpu")
    network.seen = 5  # not killed again
    transform.read(paths, "cpu")
    assert network.seen == 7


KILLED_AT_HALF = """
import os, signal, sys
from pathlib import Path
import torch
from torch import nn
from semimetric.encoders import photographs

paths = sorted(Path(sys.argv[1]).iterdir())
torch.manual_seed(0)
network = nn.Sequential(nn.Flatten(), nn.Linear(192, 4))
seen = [0]

def look(_, images):
    if seen[0] * 2 >= len(paths):
        os.kill(os.getpid(), signal.SIGKILL)
    seen[0] += len(images[0])

network.register_forward_pre_hook(look)
photographs.BATCH = 2
photographs.PhotoTransform(8, network=network).read(paths, "cpu")
"""


@pytest.mark.skipif(os.name == "nt", reason="no such signal")
def test_killed_at_half_less_than_55_per_cent_of_the_work_is_left(folder: Path) -> None:
    for number in range(6, 40):
        write_photo(folder / f"{number}.png", COLOUR, number, (10, 9))
    done = subprocess.run([sys.executable, "-c", KILLED_AT_HALF, str(folder)], check=False, timeout=200)
    assert done.returncode == -signal.SIGKILL
    torch.manual_seed(0)
    network, seen = nn.Sequential(nn.Flatten(), nn.Linear(192, 4)), []
    network.register_forward_pre_hook(lambda _, images: seen.append(len(images[0])))
    rows, _, _ = PhotoTransform(8, network=network).read(sorted(folder.iterdir()), "cpu")
    assert len(rows) == 40
    assert 0 < sum(seen) <= 0.55 * 40
