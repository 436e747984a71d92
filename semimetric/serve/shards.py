"""Shards of new examples, embedded one by one; a shard whose result is there is not embedded again until it changes.

Sources and results lie in folders, or in storage that fsspec reaches (s3://, gs://, ...). A result appears whole or not
at all, so that any number of processes may work on the same folder, and the same command continues. A hidden file
beside each result tells of which version of the shard it is.
"""

from __future__ import annotations

import io
import json
import tarfile
import tempfile
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any, Literal, get_args

import numpy as np

from semimetric.core.checks import check_choice
from semimetric.core.errors import InputError, RunError
from semimetric.core.extras import import_extra
from semimetric.core.files import json_text, read_json, write_atomically
from semimetric.data.readers.shards import SHARD_SUFFIXES, find_shards, read_shards
from semimetric.model.folder import LoadedRun
from semimetric.serve.embed import Embedded, check_any, check_kind, embed_chunks, new_examples, together, writing
from semimetric.training.run import Run

Format = Literal["parquet", "tar"]
ORIGIN = "semimetric.json"
"""File beside the results that says of which run and source they are: shards of two sources may have one name."""

TELLS_VERSIONS = ("ETag", "etag", "md5Hash", "mtime", "LastModified", "last_modified", "updated", "created")
"""What kinds of storage call the property of a file that changes with its content, the best first."""


class Place:
    """A folder, by its path or by a URL of fsspec."""

    def __init__(self, url: str) -> None:
        self.url = url.removeprefix("file://").rstrip("/")
        self.is_local = "://" not in self.url
        if not self.is_local:
            core = import_extra("fsspec.core", "ray", f"a source or --out such as {url!r}")
            try:
                self._storage, self._root = core.url_to_fs(self.url)
            except (ImportError, ValueError) as error:
                raise InputError(f"{url} cannot be reached: {error}. Install what it needs, or name another.") from None

    def names(self) -> list[str]:
        """Names of the files here that are not hidden, sorted; none if there is no such folder."""
        return sorted(name for name in self._all_names() if not name.startswith("."))

    def _all_names(self) -> list[str]:
        if self.is_local:
            folder = Path(self.url)
            return [entry.name for entry in folder.iterdir() if entry.is_file()] if folder.is_dir() else []
        if not self._storage.exists(self._root):
            return []
        return [PurePosixPath(path).name for path in self._storage.ls(self._root, detail=False)]

    def version(self, name: str) -> str:
        """What tells a file from another one of its name: its size, and its time or checksum."""
        if self.is_local:
            facts = (Path(self.url) / name).stat()
            return f"{facts.st_size} {facts.st_mtime_ns}"
        told = self._storage.info(f"{self._root}/{name}")
        return f"{told.get('size')} {next((told[key] for key in TELLS_VERSIONS if told.get(key) is not None), '')}"

    def contents(self, names: Iterable[str]) -> dict[str, bytes]:
        """Contents of small files, of those that are there."""
        if self.is_local:
            files = ((name, Path(self.url) / name) for name in names)
            return {name: path.read_bytes() for name, path in files if path.is_file()}
        found = self._storage.cat([f"{self._root}/{name}" for name in names], on_error="omit")
        return {PurePosixPath(path).name: content for path, content in found.items()}

    def fetch(self, name: str, folder: Path) -> Path:
        """The file as a local one, copied into ``folder`` if it is elsewhere."""
        if self.is_local:
            return Path(self.url) / name
        self._storage.get_file(f"{self._root}/{name}", str(folder / name))
        return folder / name

    def write(self, name: str, content: bytes) -> None:
        """Write a file, which appears whole: by a rename, or as one object."""
        if not self.is_local:
            self._storage.pipe_file(f"{self._root}/{name}", content)
            return
        path = Path(self.url) / name
        with writing(path):
            path.parent.mkdir(parents=True, exist_ok=True)
            write_atomically(path, lambda temporary: temporary.write_bytes(content))


@dataclass(frozen=True)
class ShardWork:
    """Shards of ``source`` to be embedded by the run ``run``, with a result for each in ``out``."""

    run: Path
    source: str
    out: str
    format: Format = "parquet"

    def result_of(self, shard: str) -> str:
        """Name of the result of a shard."""
        return f"{PurePosixPath(shard).stem}.{self.format}"

    def begin(self) -> dict[str, str]:
        """The shards without a result and their versions.

        Before, everything is checked and ``out`` is marked as of this run. A result of an earlier version is none.
        """
        check_choice(self.format, get_args(Format), "format")
        if self.format == "parquet":
            import_extra("pyarrow.parquet", "tables", "--format parquet")
        shards = [name for name in Place(self.source).names() if name.lower().endswith(SHARD_SUFFIXES)]
        if not shards:
            raise InputError(
                f"{self.source} must be a folder of shards whose names end in {' or '.join(SHARD_SUFFIXES)}, and has "
                "none. Name the folder itself."
            )
        results = [self.result_of(name) for name in shards]
        if len({*results}) < len(results):
            raise InputError(f"{self.source} has two shards of one name with other endings. Rename one of them.")
        if Place(self.source).url == Place(self.out).url:
            raise InputError("--out must be another folder than that of the shards.")
        there = self._mark()
        versions = {name: Place(self.source).version(name) for name in shards}
        done = [name for name in shards if self.result_of(name) in there]
        notes = Place(self.out).contents(map(self._note_of, done)) if done else {}
        same = {name for name in done if notes.get(self._note_of(name)) == _note(name, versions[name])}
        return {name: version for name, version in versions.items() if name not in same}

    def _note_of(self, shard: str) -> str:
        """Name of the hidden file that tells of which version of a shard the result is."""
        return f".{self.result_of(shard)}.json"

    def _mark(self) -> set[str]:
        """Mark ``out`` as of this run and source, and list the results there; a folder of anything else is refused."""
        place, run = Place(self.out), Run.open(self.run)
        if not run.has("model.safetensors"):
            raise RunError(f"{run.path} holds no model: the fit has not ended. Continue it with --resume.")
        source = Place(self.source)
        where = str(Path(source.url).resolve()) if source.is_local else source.url
        origin = {"model": run.digest("model.safetensors"), "format": self.format, "source": where}
        there = {*place.names()}
        if ORIGIN not in there:
            if there:
                raise InputError(f"{self.out} holds other files. Choose another --out.")
            place.write(ORIGIN, json_text(origin).encode())
        with tempfile.TemporaryDirectory() as folder:
            if read_json(place.fetch(ORIGIN, Path(folder))) != origin:
                raise InputError(f"{self.out} holds results of another run, source or format. Choose another --out.")
        return there

    def embed(self, loaded: LoadedRun, shard: str, version: str) -> dict[str, Any]:
        """Embed a shard and write its result; returns how many examples it has, and why others are left out.

        ``version`` is that of ``begin``: a shard that changed since then is embedded again by the next command.
        """
        with tempfile.TemporaryDirectory(prefix="semimetric-shard-") as folder:
            photographs = Path(folder) / "photographs"
            photographs.mkdir()
            source = Place(self.source).fetch(shard, Path(folder))
            if find_shards(source):
                check_kind(loaded, "photographs")
                examples = read_shards((source,), folder=photographs)
            else:
                examples = new_examples(loaded, source)
            embedded = together([*embed_chunks(loaded, examples)], examples.skipped)
        check_any(embedded)
        content = _as_parquet(embedded) if self.format == "parquet" else _as_archive(embedded)
        place = Place(self.out)
        place.write(self.result_of(shard), content)
        place.write(self._note_of(shard), _note(shard, version))  # without it, the result does not count
        return {"shard": shard, "examples": len(embedded.names), "skipped": json.dumps(embedded.skipped), "reason": ""}


def _note(shard: str, version: str) -> bytes:
    return json_text({"shard": shard, "version": version}).encode()


def _as_parquet(embedded: Embedded) -> bytes:
    """Columns name and embedding."""
    import pyarrow
    import pyarrow.parquet

    rows = pyarrow.array(list(embedded.embeddings.float().numpy()), pyarrow.list_(pyarrow.float32()))
    content = io.BytesIO()
    pyarrow.parquet.write_table(pyarrow.table({"name": list(embedded.names), "embedding": rows}), content)
    return content.getvalue()


def _as_archive(embedded: Embedded) -> bytes:
    """A WebDataset: for each example its embedding as .npy, and its name in .json."""
    content = io.BytesIO()
    with tarfile.open(fileobj=content, mode="w") as archive:
        for number, (name, row) in enumerate(zip(embedded.names, embedded.embeddings.float().numpy(), strict=True)):
            values = io.BytesIO()
            np.save(values, row)
            for ending, part in (("npy", values.getvalue()), ("json", json.dumps({"name": name}).encode())):
                member = tarfile.TarInfo(f"{number:09d}.{ending}")
                member.size = len(part)
                archive.addfile(member, io.BytesIO(part))
    return content.getvalue()
