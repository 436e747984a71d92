"""Images kept as bytes, in memory and in a file, are the same as those that are scaled all at once."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from helpers.own_photos import COLOURS, write_photo
from torch import Tensor

from semimetric import SemiMetric
from semimetric.core.errors import DataError, InputError
from semimetric.data import apply_in_chunks, build_preprocess, stored
from semimetric.data.preprocess import PreprocessName, scaled
from semimetric.data.stored import Images, PixelFile, placed, read_ahead
from semimetric.encoders.photographs import PhotoTransform

SIDE = 6


@pytest.fixture
def pixels() -> Tensor:
    draws = torch.Generator().manual_seed(0)
    return torch.randint(0, 256, (37, 3, SIDE, SIDE), dtype=torch.uint8, generator=draws)


def in_file(pixels: Tensor) -> PixelFile:
    file = PixelFile(len(pixels) + 3, tuple(pixels.shape[1:]))
    for start in range(0, len(pixels), 10):
        file.write(start, pixels[start : start + 10])
    return file.cut(len(pixels))


@pytest.mark.parametrize("name", ["mean-image", "standardize", "imagenet", "none"])
@pytest.mark.parametrize("where", ["memory", "file"])
def test_batches_are_those_of_floats_bit_for_bit(pixels: Tensor, name: PreprocessName, where: str) -> None:
    whole = apply_in_chunks(build_preprocess(name, pixels), pixels)
    raw = Images(pixels if where == "memory" else in_file(pixels))
    images = scaled(build_preprocess(name, raw), raw)
    rows = torch.tensor([5, 0, 36, 5])
    assert isinstance(images, Images)
    assert images.shape == whole.shape
    assert torch.equal(images[rows], whole[rows])
    assert torch.equal(images[2:9], whole[2:9])
    assert torch.equal(images[3], whole[3])
    assert torch.equal(torch.cat(list(images.split(8))), whole)
    assert torch.equal(images.only(rows)[torch.tensor([2, 0])], whole[rows[[2, 0]]])


def test_the_next_rows_are_read_before_the_last_are_used(pixels: Tensor) -> None:
    images, asked = Images(in_file(pixels)), []

    def wanted() -> object:
        for number in range(4):
            asked.append(number)
            yield number, torch.tensor([number])

    found = read_ahead(images, wanted())  # type: ignore[arg-type]
    first = next(found)
    assert first[0] == 0
    assert torch.equal(first[1], pixels[:1])
    assert asked == [0, 1]
    assert [what for what, _ in found] == [1, 2, 3]


def test_few_images_become_floats_and_many_stay_bytes(pixels: Tensor, monkeypatch: pytest.MonkeyPatch) -> None:
    assert placed(pixels, "cpu") is pixels
    monkeypatch.setattr(stored, "MOST_FLOATS", 4 * pixels.numel() - 1)
    assert isinstance(placed(pixels, "cpu"), Images)
    assert placed(pixels, "cpu", as_bytes=False) is pixels
    assert isinstance(placed(pixels.float(), "cpu"), Tensor)


def test_a_folder_without_room_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(DataError, match=r"2 photographs need .* GB in .*file.* SEMIMETRIC_CACHE names another"):
        PixelFile(2, (3, 4, 4), tmp_path / "file")


@pytest.fixture(scope="module")
def paths(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    folder = tmp_path_factory.mktemp("photos")
    paths = [folder / f"{number}.png" for number in range(24)]
    for number, path in enumerate(paths):
        write_photo(path, list(COLOURS.values())[number % 3], number)
    return paths


def test_photographs_beyond_the_memory_go_to_a_file(paths: list[Path], monkeypatch: pytest.MonkeyPatch) -> None:
    broken = paths[0].with_name("broken.png")
    broken.write_bytes(b"no photograph")
    several, transform = [paths[3], broken, *paths], PhotoTransform(SIDE)
    rows, whole, skipped = transform.read(several, "cpu")
    monkeypatch.setenv("SEMIMETRIC_MEMORY", "1KB")
    found, images, left_out = transform.read_all(several, "cpu")
    assert isinstance(images, Images)
    assert isinstance(images.pixels, PixelFile)
    assert rows.tolist() == found.tolist() == [0, *range(2, 26)]
    assert {*skipped} == {*left_out} == {broken}
    assert torch.equal(images[:], whole)
    monkeypatch.setenv("SEMIMETRIC_MEMORY", "much")
    with pytest.raises(InputError, match="SEMIMETRIC_MEMORY must be a number of bytes"):
        transform.read_all(several, "cpu")


@pytest.mark.parametrize("where", ["memory", "file"])
def test_a_fit_learns_the_same(paths: list[Path], monkeypatch: pytest.MonkeyPatch, where: str) -> None:
    labels = [number % 3 if number < 15 else -1 for number in range(24)]
    settings = {"hold_back": 0.0, "batch_size": 8, "k": 4, "augmentation": "objects"}
    before = SemiMetric(encoder="small-cnn", side=16, epochs=1, settings=settings, device="cpu", random_state=0).fit(
        paths, labels
    )
    monkeypatch.setattr(stored, "MOST_FLOATS", 0)
    if where == "file":
        monkeypatch.setenv("SEMIMETRIC_MEMORY", "0")
    after = SemiMetric(encoder="small-cnn", side=16, epochs=1, settings=settings, device="cpu", random_state=0).fit(
        paths, labels
    )
    assert (before.embedding_ == after.embedding_).all()
    assert (before.unknown_score(paths[:3]) == after.unknown_score(paths[:3])).all()
