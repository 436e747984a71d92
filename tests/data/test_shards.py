"""Photographs in WebDataset archives and Parquet files, honest and hostile ones."""

from __future__ import annotations

import tarfile
from pathlib import Path

import pytest
from helpers.shards import photo, write_archive, write_parquet, write_shards

import semimetric.data.readers.shards as shards
from semimetric.core.errors import DataError, InputError
from semimetric.data import read_collection


def test_an_archive_has_photographs_with_their_labels(tmp_path: Path) -> None:
    found = read_collection(write_shards(tmp_path / "shards"))
    assert len(found) == 24
    assert found.names[:2] == ("shard-0.tar/part/000.png", "shard-0.tar/part/001.png")
    assert found.labels[:8] == ("red", "green", "blue", "red", "green", "blue", None, None)
    assert found.paths is not None
    assert found.paths[0].read_bytes() == photo("red", 0)
    assert found.paths[12].read_bytes() == photo("red", 100)
    one = read_collection(tmp_path / "shards" / "shard-1.tar", label_column="size")
    assert one.labels[:6] == ("red", "green", "blue", "24", "24", "24")


@pytest.mark.parametrize("nested", [False, True])
def test_a_parquet_file_has_image_bytes(tmp_path: Path, nested: bool) -> None:
    found = read_collection(write_parquet(tmp_path / "photos.parquet", nested=nested))
    assert found.names[0] == "photos.parquet/n0"
    assert found.labels == ("red", "green", "blue", "red", "green", "blue", None, None, None)
    assert found.paths is not None
    assert found.paths[8].read_bytes() == photo("blue", 8)


def test_a_folder_with_images_beside_archives_is_a_folder_of_images(tmp_path: Path) -> None:
    write_shards(tmp_path)
    (tmp_path / "photo.png").write_bytes(photo("red", 0))
    assert read_collection(tmp_path).names == ("photo.png",)


def test_labels_beside_shards_are_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="have their labels with them"):
        read_collection(write_shards(tmp_path / "shards"), tmp_path / "labels.csv")


def hostile(path: Path) -> Path:
    """Absolute paths, ways out, links, a device, a claim of many bytes, a label of many, and one honest photograph."""
    image = photo("red", 0)
    with tarfile.open(
        write_archive(path, [("/etc/a.png", image), ("../../b.png", image), ("c.png", image)]), "a"
    ) as to:
        for name, kind in (("link.png", tarfile.SYMTYPE), ("hard.png", tarfile.LNKTYPE), ("dev.png", tarfile.CHRTYPE)):
            member = tarfile.TarInfo(name)
            member.type, member.linkname = kind, "/etc/passwd"
            to.addfile(member)
    return path


def test_names_and_links_in_an_archive_lead_nowhere(tmp_path: Path) -> None:
    found = shards.read_shards((hostile(tmp_path / "h.tar"),), folder=tmp_path)
    assert found.names == ("h.tar//etc/a.png", "h.tar/../../b.png", "h.tar/c.png")
    assert found.paths == tuple(tmp_path / f"{number:09d}.png" for number in range(3))
    assert {path.name for path in tmp_path.iterdir()} == {"h.tar", *(path.name for path in found.paths)}
    assert set(found.skipped) == {"h.tar/link.png", "h.tar/hard.png", "h.tar/dev.png"}
    assert set(found.skipped.values()) == {"it is a link, a device or a sparse file"}


def test_what_is_too_large_is_left_out_and_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shards, "MOST_IMAGE_BYTES", 3000)
    monkeypatch.setattr(shards, "MOST_LABEL_BYTES", 100)
    members = [("a.png", photo("red", 0)), ("b.png", bytes(3001)), ("a.json", b'{"label": "' + b"x" * 100 + b'"}')]
    found = read_collection(write_archive(tmp_path / "s.tar", members))
    assert found.names == ("s.tar/a.png",)
    assert found.labels == (None,)
    assert found.skipped["s.tar/b.png"] == "it has 3,001 bytes, more than 3,000"
    monkeypatch.setattr(shards, "MOST_MEMBERS", 2)
    with pytest.raises(DataError, match="more than 2 members"):
        read_collection(tmp_path / "s.tar")
    monkeypatch.setattr(shards, "MOST_GROUP_BYTES", 100)
    with pytest.raises(DataError, match="row group 0 declares"):
        read_collection(write_parquet(tmp_path / "p.parquet"))


@pytest.mark.parametrize("kept", [0, 100, 700, 3000])
def test_a_damaged_archive_is_a_sentence(tmp_path: Path, kept: int) -> None:
    path = write_shards(tmp_path / "shards", 1) / "shard-0.tar"
    path.write_bytes(path.read_bytes()[:kept])
    with pytest.raises((DataError, InputError), match=r"shard-0\.tar"):
        read_collection(path)


def test_a_claim_of_negative_bytes_is_a_sentence_and_no_endless_loop(tmp_path: Path) -> None:
    header = bytearray(tarfile.TarInfo("a.png").tobuf())
    header[124:136] = (-512 & (1 << 96) - 1).to_bytes(12, "big")  # leads back to this header
    header[148:156] = b" " * 8
    header[148:156] = b"%06o\0 " % sum(header)
    path = tmp_path / "back.tar"
    path.write_bytes(tarfile.TarInfo("first.txt").tobuf() + header + bytes(1024))
    with pytest.raises(DataError, match=r"a\.png declares -512 bytes"):
        read_collection(path)


def test_a_claim_of_bytes_that_are_not_there_is_a_sentence(tmp_path: Path) -> None:
    member = tarfile.TarInfo("a.png")
    member.size = 1 << 27
    path = tmp_path / "claim.tar"
    path.write_bytes(member.tobuf() + photo("red", 0))
    with pytest.raises(DataError, match=r"claim\.tar is no shard, or damaged"):
        read_collection(path)
