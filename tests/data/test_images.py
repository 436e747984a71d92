"""Image files of every kind."""

import contextlib
import io
import os
import struct
import warnings
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from helpers.draws import draws
from helpers.photos import (
    assert_plain,
    damaged_exif,
    encoded,
    exif_of,
    oriented,
    picture,
    plain,
    png_chunks,
    png_claiming,
    png_of,
)
from hypothesis import HealthCheck, given
from hypothesis import strategies as st
from PIL import Image, ImageOps
from torch import Tensor

from semimetric.core.errors import DataError
from semimetric.data import PhotoReader, decode_image
from semimetric.data.photographs.images import open_image


def decoded(tmp_path: Path, content: bytes, side: int = 16, fit: str = "crop", name: str = "image") -> Tensor:
    path = tmp_path / name
    path.write_bytes(content)
    return decode_image(path, side, fit)


def resized(image: Image.Image, height: int, width: int) -> Tensor:
    """Bicubic with antialiasing, by torch."""
    values = torch.from_numpy(np.array(image)).permute(2, 0, 1).unsqueeze(0)
    return torch.nn.functional.interpolate(values, (height, width), mode="bicubic", antialias=True)[0]


@pytest.mark.parametrize("kind", ["JPEG", "PNG", "WEBP", "BMP", "GIF", "TIFF", "PPM"])
def test_the_content_tells_the_format(tmp_path: Path, kind: str) -> None:
    image = decoded(tmp_path, encoded(plain((200, 100, 50)), kind), name="photo.xyz")
    assert_plain(image, (200, 100, 50), atol=4)


@pytest.mark.parametrize("turned", [False, True])
def test_crop_keeps_the_middle_and_squash_all(tmp_path: Path, turned: bool) -> None:
    image = picture(60, 40)
    wide, tall = resized(image, 20, 30)[:, :, 5:25], resized(image, 20, 20)
    if turned:
        image, wide, tall = image.transpose(Image.Transpose.TRANSPOSE), wide.mT, tall.mT
    content = encoded(image, "PNG")
    torch.testing.assert_close(decoded(tmp_path, content, 20), wide, atol=1, rtol=0)
    torch.testing.assert_close(decoded(tmp_path, content, 20, "squash"), tall, atol=1, rtol=0)
    assert (wide.int() - tall.int()).abs().max() > 20


def test_odd_sizes_are_cropped_to_half_a_pixel(tmp_path: Path) -> None:
    content = encoded(picture(41, 8), "PNG")
    image = decoded(tmp_path, content, 8)
    mirrored = decoded(tmp_path, encoded(ImageOps.mirror(picture(41, 8)), "PNG"), 8)
    assert torch.equal(image.flip(2), mirrored)
    assert decoded(tmp_path, content, 1).shape == (3, 1, 1)


def test_a_thin_image_is_enlarged(tmp_path: Path) -> None:
    assert_plain(decoded(tmp_path, encoded(plain((9, 8, 7), (300, 1)), "PNG")), (9, 8, 7))


@pytest.mark.parametrize("kind", ["JPEG", "PNG", "WEBP", "TIFF"])
@pytest.mark.parametrize("orientation", range(1, 9))
def test_orientation_is_applied(tmp_path: Path, kind: str, orientation: int) -> None:
    content = encoded(picture(), kind, exif=oriented(orientation))
    upright = ImageOps.exif_transpose(Image.open(io.BytesIO(content)))
    expected = decoded(tmp_path, encoded(upright.convert("RGB"), "PNG"))
    torch.testing.assert_close(decoded(tmp_path, content), expected, atol=1, rtol=0)


@pytest.mark.parametrize("order", ["II", "MM"])
@pytest.mark.parametrize("kind", [1, 3, 4])
def test_orientation_may_be_a_number_of_any_length(tmp_path: Path, order: str, kind: int) -> None:
    expected = decoded(tmp_path, encoded(picture().rotate(-90, expand=True), "PNG"))
    content = encoded(picture(), "PNG", exif=exif_of(6, order, kind))
    assert torch.equal(decoded(tmp_path, content), expected)


def test_orientation_may_come_after_the_pixels_of_a_png(tmp_path: Path) -> None:
    chunks = list(png_chunks(encoded(picture(), "PNG", exif=oriented(6))))
    late = [chunk for chunk in chunks if chunk[0] not in (b"eXIf", b"IEND")]
    late += [chunk for chunk in chunks if chunk[0] in (b"eXIf", b"IEND")]
    assert len(late) == len(chunks)
    expected = decoded(tmp_path, encoded(picture().rotate(-90, expand=True), "PNG"))
    assert torch.equal(decoded(tmp_path, png_of(late)), expected)


@pytest.mark.parametrize("exif", [b"", b"Exif\0\0", b"Exif\0\0II*\0", b"Exif\0\0XX", damaged_exif(9), damaged_exif(0)])
def test_useless_exif_data_change_nothing(tmp_path: Path, exif: bytes) -> None:
    expected = decoded(tmp_path, encoded(picture(), "WEBP", lossless=True))
    assert torch.equal(decoded(tmp_path, encoded(picture(), "WEBP", lossless=True, exif=exif)), expected)


GREY = (90, 90, 90)


@pytest.mark.parametrize(
    ("image", "kind", "colour"),
    [
        (plain((200, 100, 50)).convert("CMYK"), "JPEG", (200, 100, 50)),
        (plain((200, 100, 50)).convert("CMYK"), "TIFF", (200, 100, 50)),
        (plain((200, 100, 50)).convert("YCbCr"), "JPEG", (200, 100, 50)),
        (plain((200, 100, 50)).convert("LAB"), "TIFF", (200, 100, 50)),
        (plain((200, 100, 50)).quantize(4), "PNG", (200, 100, 50)),
        (Image.new("L", (9, 9), 90), "PNG", GREY),
        (Image.new("1", (9, 9), 1), "PNG", (255, 255, 255)),
        (Image.new("LA", (9, 9), (0, 127)), "PNG", (128, 128, 128)),
        (plain((255, 0, 0, 127), mode="RGBA"), "PNG", (255, 128, 128)),
        (plain((255, 0, 0, 0), mode="RGBA"), "WEBP", (255, 255, 255)),
        (Image.new("I;16", (9, 9), 90 * 257), "PNG", GREY),
        (Image.new("I;16", (9, 9), 90 * 257), "TIFF", GREY),
        (Image.new("I", (9, 9), 90 * 257), "TIFF", GREY),
    ],
    ids=lambda value: f"{value.mode}" if isinstance(value, Image.Image) else None,
)
def test_every_mode_becomes_rgb(tmp_path: Path, image: Image.Image, kind: str, colour: tuple[int, ...]) -> None:
    assert_plain(decoded(tmp_path, encoded(image, kind)), colour, atol=3)


def two_halves(mode: str, left: object, right: object) -> Image.Image:
    image = Image.new(mode, (32, 16), left)
    image.paste(right, (16, 0, 32, 16))
    return image


@pytest.mark.parametrize(
    ("image", "kind", "options"),
    [
        (two_halves("RGB", (10, 20, 30), (200, 100, 50)), "PNG", {"transparency": (10, 20, 30)}),
        (two_halves("P", 0, 1), "PNG", {"transparency": 0}),
        (two_halves("P", 0, 1), "PNG", {"transparency": bytes((0, 255))}),
        (two_halves("P", 0, 1), "GIF", {"transparency": 0}),
        (two_halves("L", 10, 90), "PNG", {"transparency": 10}),
        (two_halves("I;16", 10, 90 * 257), "PNG", {"transparency": 10}),
    ],
)
def test_the_transparent_colour_becomes_white(
    tmp_path: Path, image: Image.Image, kind: str, options: dict[str, object]
) -> None:
    if image.mode == "P":
        image.putpalette((10, 20, 30, 200, 100, 50))
    right = GREY if image.mode in ("L", "I;16") else (200, 100, 50)
    pixels = decoded(tmp_path, encoded(image, kind, **options), 16, "squash")
    assert pixels[:, 8, 0].tolist() == [255, 255, 255]
    assert tuple(pixels[:, 8, 15].tolist()) == right


def test_16_bits_keep_their_order(tmp_path: Path) -> None:
    ramp = Image.fromarray(np.linspace(0, 65535, 256).astype(np.uint16).reshape(1, 256).repeat(256, axis=0))
    pixels = decoded(tmp_path, encoded(ramp, "PNG"), 256)
    assert torch.equal(pixels, torch.arange(256, dtype=torch.uint8).expand(3, 256, 256))


@pytest.mark.parametrize("kind", ["GIF", "WEBP", "PNG"])
def test_of_an_animation_the_first_frame_is_taken(tmp_path: Path, kind: str) -> None:
    frames = [plain((200, 100, 50)), plain((0, 0, 255)), plain((0, 255, 0))]
    content = encoded(frames[0], kind, save_all=True, append_images=frames[1:])
    assert Image.open(io.BytesIO(content)).n_frames == 3
    assert_plain(decoded(tmp_path, content), (200, 100, 50), atol=4)


def test_a_large_jpeg_is_decoded_smaller(tmp_path: Path) -> None:
    path = tmp_path / "large.jpg"
    path.write_bytes(encoded(picture(1600, 1200), "JPEG", quality=95))
    with open_image(path, 64) as image:
        assert image.size == (200, 150)
    torch.testing.assert_close(decode_image(path, 64, "squash"), resized(picture(1600, 1200), 64, 64), atol=3, rtol=0)


CUT = {kind: encoded(picture(200, 150), kind)[:-400] for kind in ("JPEG", "PNG", "WEBP", "GIF")}


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (b"", "it is empty"),
        (b"no image\n" * 50, "it is not an image"),
        (b"\xff\xd8\xff", "it is (not an image|truncated or damaged)"),
        (png_claiming(10_000, 10_000), "more than pillow's limit of 89478485 pixels"),
        (png_claiming(50_000, 50_000), "more than pillow's limit of 89478485 pixels"),
        (png_claiming(50, 50), "truncated or damaged"),
        (encoded(Image.new("F", (9, 9), 0.5), "TIFF"), "floating-point"),
        (encoded(Image.new("I", (9, 9), 70_000), "TIFF"), "from 70000 to 70000, beyond 16 bits"),
        *((content, "truncated or damaged") for content in CUT.values()),
    ],
)
def test_what_cannot_be_decoded_is_named_with_the_reason(tmp_path: Path, content: bytes, reason: str) -> None:
    with pytest.raises(DataError, match=rf"some photo\.jpg cannot be decoded: .*{reason}.*\.$"):
        decoded(tmp_path, content, name="some photo.jpg")


def test_what_is_no_file_is_named(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "loop").symlink_to(tmp_path / "loop")
    for name, reason in (("none", "there is no such file"), (".", "not a file"), ("pipe", "not a file"), ("loop", "")):
        with pytest.raises(DataError, match=f"cannot be decoded: .*{reason}"):
            decode_image(tmp_path / name, 8)


def mpo_that_is_none() -> bytes:
    content = encoded(picture(), "JPEG")
    return content[:2] + b"\xff\xe2" + (30).to_bytes(2, "big") + b"MPF\0" + bytes(24) + content[2:]


def animation_without_frames() -> bytes:
    header, *rest = png_chunks(encoded(picture(), "PNG"))
    return png_of([header, (b"acTL", bytes(8)), *rest])


def tiff_with_a_tag_cut_off() -> bytes:
    content = encoded(picture(), "TIFF")
    end = len(content)
    (start,) = struct.unpack_from("<I", content, 4)
    (count,) = struct.unpack_from("<H", content, start)
    entries = content[start + 2 : start + 2 + 12 * count] + struct.pack("<HHII", 0xFDE8, 2, 5000, end)
    return content[:4] + struct.pack("<I", end) + content[8:] + struct.pack("<H", count + 1) + entries + bytes(4)


WARNED_OF: dict[str, Callable[[], bytes]] = {
    "EXIF": lambda: encoded(picture(), "JPEG", exif=damaged_exif(6)),
    "MPO": mpo_that_is_none,
    "APNG": animation_without_frames,
    "TIFF": tiff_with_a_tag_cut_off,
}


@pytest.mark.parametrize("kind", WARNED_OF)
def test_odd_files_are_read_without_a_warning(tmp_path: Path, kind: str) -> None:
    path = tmp_path / "odd"
    path.write_bytes(WARNED_OF[kind]())
    with pytest.warns(UserWarning, match="EXIF|MPO|APNG|[Tt]ag"), Image.open(path) as image:
        image.load()  # pillow warns of each, else the test would be of no use
    before = list(warnings.filters)
    upright = picture().rotate(-90, expand=True) if kind == "EXIF" else picture()
    expected = decoded(tmp_path, encoded(upright, "PNG"))
    reader = PhotoReader([path] * 8, 16, workers=4)
    for image in (decode_image(path, 16), *reader.batch(range(8)), *next(reader.stream(8))[1]):
        torch.testing.assert_close(image, expected, atol=6, rtol=0)
    assert list(warnings.filters) == before


@draws(150, suppress_health_check=(HealthCheck.function_scoped_fixture,))
@given(
    kind=st.sampled_from(["JPEG", "PNG", "WEBP", "GIF", "TIFF", "BMP"]),
    cut=st.integers(0, 3000),
    changes=st.lists(st.tuples(st.integers(0, 3000), st.integers(0, 255)), max_size=6),
)
def test_damage_gives_an_image_or_a_data_error(
    tmp_path: Path, kind: str, cut: int, changes: list[tuple[int, int]]
) -> None:
    content = bytearray(encoded(picture(), kind, exif=oriented(6)))
    for place, value in changes:
        content[place % len(content)] = value
    with contextlib.suppress(DataError):
        image = decoded(tmp_path, bytes(content[: len(content) - cut % len(content)]), 8)
        assert (image.dtype, tuple(image.shape)) == (torch.uint8, (3, 8, 8))
