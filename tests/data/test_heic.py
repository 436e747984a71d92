"""HEIC photographs, with and without the package that reads them."""

from __future__ import annotations

from pathlib import Path

import pytest
from helpers.own_photos import write_photo
from PIL import Image

from semimetric.core.errors import DataError
from semimetric.data import read_collection
from semimetric.data.photographs import heic
from semimetric.data.photographs.images import decode_image


def test_without_the_package_the_extra_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(heic, "find_spec", lambda name: None)
    write_photo(tmp_path / "red" / "a.jpg", (200, 0, 0), 0)
    (tmp_path / "red" / "b.heic").write_bytes(b"heic")
    found = read_collection(tmp_path)
    assert found.names == ("red/a.jpg",)
    assert found.skipped == {"red/b.heic": "HEIC needs the extra heic: pip install 'semimetric[heic]'"}
    with pytest.raises(DataError, match=r"semimetric\[heic\]"):
        decode_image(tmp_path / "red" / "b.heic", 8)


def test_heic_is_read(tmp_path: Path) -> None:
    package = pytest.importorskip("pillow_heif")
    package.register_heif_opener()
    Image.new("RGB", (64, 48), (200, 30, 30)).save(tmp_path / "a.HEIC", format="HEIF", quality=95)
    assert read_collection(tmp_path).names == ("a.HEIC",)
    pixels = decode_image(tmp_path / "a.HEIC", 16).float().mean((1, 2))
    assert pixels.tolist() == pytest.approx([200, 30, 30], abs=6)
