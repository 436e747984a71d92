"""Readers of many image files."""

import gc
import os
import resource
import threading
import time
import weakref
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest
import torch
from helpers.photos import assert_plain, colour_of, encoded, photo, plain
from torch import Tensor

from semimetric.core.errors import DataError, InputError
from semimetric.data import PhotoReader, decode_image, read_photos
from semimetric.data.photographs import photos


@pytest.fixture
def album(tmp_path: Path) -> list[Path]:
    """Twelve photographs of plain colours, of which the first, the fourth and the last two cannot be decoded."""
    suffixes = (".jpg", ".PNG", ".webp")
    paths = [photo(tmp_path / f"Fötö {i}{suffixes[i % 3]}", i // 7, i % 7) for i in range(12)]
    for i in BAD:
        paths[i].write_bytes(paths[i].read_bytes()[:20])
    return paths


BAD = (0, 3, 10, 11)
GOOD = tuple(i for i in range(12) if i not in BAD)
IMAGE_BYTES = 3 * 16 * 16


def test_photographs_of_a_batch_are_in_the_order_of_the_rows(album: list[Path]) -> None:
    rows = [7, 1, 9, 1]
    expected = torch.stack([decode_image(album[row], 16) for row in rows])
    for workers in (1, 4):
        reader = PhotoReader(album, 16, workers=workers)
        assert torch.equal(reader.batch(rows), expected)
        assert torch.equal(reader.batch(torch.tensor(rows)), expected)
    assert_plain(expected[0], colour_of(1, 0))
    assert PhotoReader(album, 16).batch([]).shape == (0, 3, 16, 16)
    squashed = PhotoReader(album, 16, "squash").batch([7])
    assert torch.equal(squashed[0], decode_image(album[7], 16, "squash"))


def test_a_batch_refuses_what_cannot_be_decoded(album: list[Path]) -> None:
    reader = PhotoReader(album, 16)
    for _ in range(2):
        with pytest.raises(DataError, match=r"2 of 3 photographs cannot be decoded, the first of them .*Fötö 3\.jpg: "):
            reader.batch([1, 3, 0])
    assert set(reader.skipped) == {album[0], album[3]}
    assert "cut off within its first bytes" in reader.skipped[album[3]]


@pytest.mark.parametrize("cached", [0, 5, 100])
@pytest.mark.parametrize("batch_size", [1, 2, 5, 100])
def test_a_stream_gives_all_that_can_be_decoded_in_order(album: list[Path], batch_size: int, cached: int) -> None:
    expected = torch.stack([decode_image(album[row], 16) for row in GOOD])
    for workers in (1, 3):
        reader = PhotoReader(album, 16, workers=workers, cache_bytes=cached * IMAGE_BYTES)
        for _ in range(2):
            rows, images = map(torch.cat, zip(*reader.stream(batch_size), strict=True))
            assert tuple(rows.tolist()) == GOOD
            assert torch.equal(images, expected)
        assert set(reader.skipped) == {album[row] for row in BAD}
        assert all(reader.skipped.values())


def test_streams_may_be_interleaved_and_left_early(album: list[Path]) -> None:
    threads = set(threading.enumerate())
    reader = PhotoReader(album, 16, workers=3)
    for (rows, images), (others, again) in zip(reader.stream(4), reader.stream(4), strict=True):
        assert torch.equal(rows, others)
        assert torch.equal(images, again)
    for rows, _ in reader.stream(2):
        if 4 in rows:
            break
    gc.collect()
    assert set(threading.enumerate()) <= threads
    assert list(PhotoReader([], 16).stream()) == []


@pytest.fixture
def opened(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The names of the files as they are opened."""
    names: list[str] = []
    original = photos.open_image

    def counting(path: Path, side: int) -> object:
        names.append(path.name)
        return original(path, side)

    monkeypatch.setattr(photos, "open_image", counting)
    return names


def test_the_last_used_are_kept(album: list[Path], opened: list[str]) -> None:
    reader = PhotoReader(album, 16, cache_bytes=3 * IMAGE_BYTES + 100)
    reader.batch([1, 2, 4])
    reader.batch([1])
    reader.batch([5])  # 2 is the least recently used
    assert len(opened) == 4
    reader.batch([1, 4, 5])
    assert len(opened) == 4
    reader.batch([2])
    assert len(opened) == 5


def test_after_a_stream_all_of_the_cache_is_for_keeping(album: list[Path], opened: list[str]) -> None:
    reader = PhotoReader(album, 16, cache_bytes=len(GOOD) * IMAGE_BYTES)
    list(reader.stream(4))
    reader.batch(GOOD)
    opened.clear()
    reader.batch(GOOD)
    assert opened == []


def test_kept_photographs_do_not_change_with_the_batch(album: list[Path]) -> None:
    reader = PhotoReader(album, 16)
    expected = reader.batch([1]).clone()
    reader.batch([1]).zero_()
    next(reader.stream(12))[1].zero_()
    assert torch.equal(reader.batch([1]), expected)


def test_the_next_photographs_are_decoded_meanwhile(album: list[Path], opened: list[str]) -> None:
    next(PhotoReader(album, 16, cache_bytes=4 * IMAGE_BYTES).stream(4))
    assert len(opened) == 8
    opened.clear()
    next(PhotoReader(album, 16, cache_bytes=3 * IMAGE_BYTES).stream(4))
    assert len(opened) == 4


def test_what_failed_is_not_tried_again(album: list[Path], opened: list[str]) -> None:
    reader = PhotoReader(album, 16)
    for _ in range(3):
        list(reader.stream(4))
    assert len(opened) == 12


@pytest.mark.parametrize("images", [0, 1, 7, 8, 20, 30, 1000])
def test_no_more_memory_is_held_than_allowed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, images: int) -> None:
    path = photo(tmp_path / "a.png", 1, 1)
    reader = PhotoReader([path] * 200, 16, workers=3, cache_bytes=images * IMAGE_BYTES)
    alive: weakref.WeakSet[Array] = weakref.WeakSet()
    peak = 0

    def measure() -> None:
        nonlocal peak
        peak = max(peak, sum(array.nbytes for array in [*alive, *reader._cache.values()]))

    def empty(count: int) -> Tensor:
        array = Array((count, 3, 16, 16), np.uint8)
        alive.add(array)
        measure()
        return torch.from_numpy(array)

    monkeypatch.setattr(reader, "_empty", empty)
    for batch_size in (1, 8, 8):
        for rows, batch in reader.stream(batch_size):
            measure()
            assert len(rows) == len(batch)
            del batch
        assert len(alive) == 0
    assert peak <= (images + 8) * IMAGE_BYTES
    assert peak >= min(images, 200) * IMAGE_BYTES


class Array(np.ndarray):
    """Counted among the living by identity, until the last tensor on its memory is gone."""

    __hash__ = object.__hash__
    __eq__ = object.__eq__


def test_few_files_are_open_at_once(tmp_path: Path) -> None:
    paths = [photo(tmp_path / f"{i}.png", i % 8, i % 7) for i in range(8)] * 50
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (len(os.listdir("/proc/self/fd")) + 140, limits[1]))
    try:
        reader = PhotoReader(paths, 8)
        assert len(reader.batch(range(400))) == 400
        assert sum(len(rows) for rows, _ in PhotoReader(paths, 8).stream(300)) == 400
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, limits)
    assert reader.skipped == {}


@pytest.mark.parametrize("kind", ["PPM", "TIFF"])
def test_few_photographs_of_rare_formats_wait_in_their_original_size(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    path = tmp_path / "large"
    path.write_bytes(encoded(plain((200, 100, 50), (300, 200)), kind))
    load, decode = photos.load_silently, photos.decode_into
    loaded: list[int] = []
    peak = 0

    def counting(image: object) -> None:
        nonlocal peak
        load(image)
        loaded.append(1)
        peak = max(peak, len(loaded))

    def slowly(*arguments: object) -> None:
        time.sleep(0.005)
        decode(*arguments)
        loaded.pop()

    monkeypatch.setattr(photos, "load_silently", counting)
    monkeypatch.setattr(photos, "decode_into", slowly)
    reader = PhotoReader([path] * 40, 16, workers=3, cache_bytes=0)
    assert reader.batch(range(40)).shape == (40, 3, 16, 16)
    assert sum(len(rows) for rows, _ in reader.stream(20)) == 40
    assert 1 < peak <= 3


def test_a_damaged_photograph_of_a_rare_format_leaves_room_for_the_next(tmp_path: Path) -> None:
    content = encoded(plain((200, 100, 50), (30, 20)), "PPM")
    paths = [tmp_path / str(i) for i in range(10)]
    for i, path in enumerate(paths):
        path.write_bytes(content if i % 2 else content[:-100])
    rows, images = next(PhotoReader(paths, 16, workers=2).stream(10))
    assert rows.tolist() == [1, 3, 5, 7, 9]
    assert_plain(images[0], (200, 100, 50))


def test_reading_all_keeps_labels_with_images(album: list[Path]) -> None:
    seen: list[tuple[int, int]] = []
    examples, skipped = read_photos(album, range(12), 16, workers=2, progress=lambda *call: seen.append(call))
    assert tuple(examples.labels.tolist()) == GOOD
    assert torch.equal(examples.inputs, torch.stack([decode_image(album[row], 16) for row in GOOD]))
    assert set(skipped) == {album[row] for row in BAD}
    assert seen == [(done, 12) for done in range(1, 13)]
    serial, _ = read_photos(album, torch.arange(12), 16, workers=1)
    assert torch.equal(serial.inputs, examples.inputs)


def test_nothing_to_read_is_refused(album: list[Path]) -> None:
    bad = [album[row] for row in BAD]
    with pytest.raises(DataError, match=r"None of 4 photographs can be decoded; the first, .*Fötö 0\.jpg: it is"):
        read_photos(bad, [0, 1, 2, 3], 16)
    with pytest.raises(InputError, match="at least one photograph"):
        read_photos([], [], 16)
    with pytest.raises(InputError, match=r"shape \(12,\)"):
        read_photos(album, [0, 1], 16)


def failing_calls(album: list[Path]) -> Iterator[tuple[str, Callable[[], object]]]:
    yield "side must be at least 1 pixel, but is 0", lambda: decode_image(album[1], 0)
    yield "fit must be one of crop, squash, got 'stretch'", lambda: decode_image(album[1], 8, "stretch")
    yield "workers must be at least 1 thread, but is 0", lambda: PhotoReader(album, 8, workers=0)
    yield "cache_bytes must be at least 0, but is -1", lambda: PhotoReader(album, 8, cache_bytes=-1)
    yield "batch_size must be at least 1, but is 0", lambda: PhotoReader(album, 8).stream(0)
    yield "rows must be whole numbers from 0 to 11, but one is 12", lambda: PhotoReader(album, 8).batch([1, 12])
    yield "from 0 to 11, but one is -1", lambda: PhotoReader(album, 8).batch([-1])
    yield "from 0 to 11, but one is 0.5", lambda: PhotoReader(album, 8).batch([0.5])


def test_unusable_arguments_are_refused(album: list[Path]) -> None:
    for message, call in failing_calls(album):
        with pytest.raises(InputError, match=message):
            call()
