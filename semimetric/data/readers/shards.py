"""Photographs in shards: WebDataset archives (.tar), and Parquet files with a column of image bytes.

A shard is read as data alone. Its photographs are put under numbers into a folder of this process: no name that stands
in a shard becomes a path. What a shard may hold is bounded.
"""

from __future__ import annotations

import json
import os
import tarfile
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from typing import Any

from semimetric.core.errors import DataError, InputError
from semimetric.core.extras import import_extra
from semimetric.data.collection import Collection, label_texts, skipped_lines
from semimetric.data.labels import placeholder_notes
from semimetric.data.readers.delimited import find_column
from semimetric.data.readers.folder import IMAGE_SUFFIXES
from semimetric.data.readers.folder import LABEL_COLUMNS as LABEL_FIELDS
from semimetric.data.readers.tables import ID_COLUMNS, LABEL_COLUMNS

SHARD_SUFFIXES = (".tar", ".parquet")
IMAGE_COLUMNS = ("image", "img", "jpg", "jpeg", "png", "webp", "photo", "picture", "bytes")
"""Usual names of the column with image bytes, in lower case."""

MOST_IMAGE_BYTES = 1 << 28
MOST_LABEL_BYTES = 1 << 20
MOST_GROUP_BYTES = 1 << 33  # of the images of a row group of a Parquet file, as the file declares them
MOST_MEMBERS = 10_000_000
ROWS_AT_ONCE = 16

_folders: list[tempfile.TemporaryDirectory[str]] = []  # removed when the process ends


@dataclass
class _Unpacked:
    """Photographs taken out of shards: their names, labels as they stand there, and files."""

    folder: Path
    names: dict[str, object] = field(default_factory=dict)
    paths: list[Path] = field(default_factory=list)
    skipped: dict[str, str] = field(default_factory=dict)

    def put(self, name: str, content: bytes, suffix: str, label: object, changed: int) -> None:
        """Keep a photograph; ``changed`` is when its shard was changed, which tells it from another one."""
        if name in self.names:
            self.skipped[name] = "another photograph has this name"
            return
        path = self.folder / f"{len(self.paths):09d}{suffix}"
        path.write_bytes(content)
        os.utime(path, ns=(changed, changed))
        self.names[name] = label
        self.paths.append(path)


def find_shards(source: Path) -> tuple[Path, ...]:
    """The shards that ``source`` is, or that it holds as a folder of nothing else; none if it is something else."""
    if source.is_dir():
        return tuple(path for path in _shard_files(source) if _is_shard(path))
    return (source,) if source.is_file() and _is_shard(source) else ()


def _shard_files(folder: Path) -> list[Path]:
    """Files of a folder that are shards by their names; none if it holds images or folders."""
    found = []
    with os.scandir(folder) as entries:
        for entry in entries:
            path = Path(entry.path)
            if entry.name.startswith("."):
                continue
            if entry.is_dir() or path.suffix.lower() in IMAGE_SUFFIXES:
                return []
            if path.suffix.lower() in SHARD_SUFFIXES and entry.is_file():
                found.append(path)
    return sorted(found)


def _is_shard(path: Path) -> bool:
    if path.suffix.lower() == ".tar":
        return True
    return path.suffix.lower() == ".parquet" and _image_column(path) is not None


def read_shards(
    shards: Sequence[Path], label_column: str | None = None, id_column: str | None = None, folder: Path | None = None
) -> Collection:
    """The photographs of shards, named by shard and member.

    Parameters
    ----------
    shards : archives and Parquet files
    label_column : field of a .json member, or column, with the labels; a .cls member has a label as well
    id_column : column of a Parquet file with the names
    folder : where the photographs are put; a temporary folder of this process unless given
    """
    if folder is None:
        _folders.append(tempfile.TemporaryDirectory(prefix="semimetric-shards-"))
        folder = Path(_folders[-1].name)
    found = _Unpacked(folder)
    for shard in shards:
        with _explained(shard, folder):
            if shard.suffix.lower() == ".tar":
                _unpack_archive(shard, found, label_column)
            else:
                _unpack_table(shard, found, label_column, id_column)
    if not found.names:
        raise InputError(
            f"{shards[0]} must hold photographs whose names end in {', '.join(IMAGE_SUFFIXES)}, and holds none that "
            "can be used. " + " ".join(line.strip() for line in skipped_lines(found.skipped))
        )
    labels = tuple(label_texts(found.names.values()))
    notes = tuple(placeholder_notes([str(label) for label in found.names.values() if label is not None]))
    return Collection(tuple(found.names), labels, tuple(found.paths), None, (), found.skipped, notes)


@contextmanager
def _explained(shard: Path, folder: Path) -> Iterator[None]:
    """Say of whatever a damaged shard or a full disk raises what it means."""
    try:
        yield
    except (tarfile.TarError, EOFError, ValueError) as error:
        raise DataError(f"{shard} is no shard, or damaged: {error}. Make it again.") from error
    except OSError as error:
        raise DataError(
            f"{shard} cannot be read, or its photographs not be put into {folder}: {error}. TMPDIR names another "
            "folder."
        ) from error


def _unpack_archive(shard: Path, found: _Unpacked, label_field: str | None) -> None:
    """Take the photographs out of an archive; the members of an example have its key up to the first dot."""
    changed = shard.stat().st_mtime_ns
    images: list[tuple[str, str, tarfile.TarInfo]] = []
    labels: dict[str, object] = {}
    with tarfile.open(shard, "r:") as archive:
        for count, member in enumerate(archive):
            if count >= MOST_MEMBERS:
                raise ValueError(f"it has more than {MOST_MEMBERS:,} members")
            if member.size < 0:  # tarfile would go back, and read the same members for ever
                raise ValueError(f"{member.name} declares {member.size} bytes")
            name = f"{shard.name}/{member.name}"
            reason = _unfit(member)
            if reason:
                found.skipped[name] = reason
                continue
            key, ending = _key(member.name)
            if Path(member.name).suffix.lower() in IMAGE_SUFFIXES:
                images.append((key, name, member))
            elif ending in ("cls", "json") and member.isfile():
                label = _label(_content(archive, member), ending, label_field)
                if label is not None:
                    labels[key] = label
        _check_end(archive)
        for key, name, member in images:
            found.put(name, _content(archive, member), Path(name).suffix.lower(), labels.get(key), changed)


def _check_end(archive: tarfile.TarFile) -> None:
    """Refuse an archive that stops before its end mark: ``tarfile`` takes a damaged header for the end."""
    assert archive.fileobj is not None
    archive.fileobj.seek(archive.offset)
    if archive.fileobj.read(tarfile.BLOCKSIZE) != bytes(tarfile.BLOCKSIZE):
        raise ValueError("it is cut off, or a header in it is damaged")


def _key(name: str) -> tuple[str, str]:
    """The key of a member, and its ending in lower case."""
    path = PurePosixPath(name)
    stem, _, ending = path.name.partition(".")
    return str(path.with_name(stem)) if stem else str(path), ending.lower()


def _unfit(member: tarfile.TarInfo) -> str:
    """Why a member is no data, as the end of a sentence; "" if it is, or is a folder."""
    if member.isdir():
        return ""
    if not member.isreg() or member.issparse():
        return "it is a link, a device or a sparse file"
    image = Path(member.name).suffix.lower() in IMAGE_SUFFIXES
    most = MOST_IMAGE_BYTES if image else MOST_LABEL_BYTES if _key(member.name)[1] in ("cls", "json") else None
    if most is not None and member.size > most:
        return f"it has {member.size:,} bytes, more than {most:,}"
    return "it is empty" if image and member.size == 0 else ""


def _content(archive: tarfile.TarFile, member: tarfile.TarInfo) -> bytes:
    opened = archive.extractfile(member)
    content = b"" if opened is None else opened.read()
    if len(content) != member.size:
        raise ValueError(f"it ends within {member.name}")
    return content


def _label(content: bytes, ending: str, label_field: str | None) -> object:
    """The label of an example; None where the member has none."""
    text = content.decode("utf-8", "backslashreplace").strip()
    if ending == "cls":
        return text
    try:
        values = json.loads(text)
    except (ValueError, RecursionError):
        return None
    wanted = LABEL_FIELDS if label_field is None else (label_field,)
    told = (values[name] for name in wanted if name in values) if isinstance(values, dict) else iter(())
    label: object = next(told, None)
    return label if type(label) in (str, int) else None


def _image_column(path: Path) -> str | None:
    """The column with image bytes: binary, or as the library ``datasets`` has it, a structure with a field bytes."""
    parquet, types = (import_extra(name, "tables", str(path)) for name in ("pyarrow.parquet", "pyarrow.types"))
    try:
        schema = parquet.read_schema(path)
    except (OSError, ValueError):
        return None  # whoever reads the table says what is wrong with it
    for column in schema:
        kind = column.type
        if types.is_struct(kind) and kind.get_field_index("bytes") >= 0:
            kind = kind.field("bytes").type
        if column.name.lower() in IMAGE_COLUMNS and (types.is_binary(kind) or types.is_large_binary(kind)):
            return str(column.name)
    return None


def _unpack_table(shard: Path, found: _Unpacked, label_column: str | None, id_column: str | None) -> None:
    """Take the photographs out of a Parquet file, a few rows at a time."""
    parquet = import_extra("pyarrow.parquet", "tables", str(shard))
    changed, row = shard.stat().st_mtime_ns, 0
    with parquet.ParquetFile(shard) as file:
        _check_sizes(file.metadata)
        image = _image_column(shard)
        others = [name for name in file.schema_arrow.names if name != image]
        label = find_column(others, label_column, LABEL_COLUMNS, "label_column", shard)
        identifier = find_column(others, id_column, ID_COLUMNS, "id_column", shard)
        wanted = [name for name in (image, label, identifier) if name is not None]
        for batch in file.iter_batches(batch_size=ROWS_AT_ONCE, columns=wanted):
            for values in batch.to_pylist():
                name = f"{shard.name}/{row if identifier is None else values[identifier]}"
                _put_row(found, name, values[image], None if label is None else values[label], changed)
                row += 1


def _check_sizes(metadata: Any) -> None:
    for group in range(metadata.num_row_groups):
        size = metadata.row_group(group).total_byte_size
        if not 0 <= size <= MOST_GROUP_BYTES:
            raise ValueError(f"row group {group} declares {size:,} bytes, more than {MOST_GROUP_BYTES:,}")


def _put_row(found: _Unpacked, name: str, value: object, label: object, changed: int) -> None:
    content = value.get("bytes") if isinstance(value, dict) else value
    if not isinstance(content, bytes) or not content:
        found.skipped[name] = "it has no image bytes"
    elif len(content) > MOST_IMAGE_BYTES:
        found.skipped[name] = f"it has {len(content):,} bytes, more than {MOST_IMAGE_BYTES:,}"
    else:
        found.put(name, content, ".jpg", label, changed)  # what it is, pillow reads from its first bytes
