"""New examples of a run: read, embedded in chunks, and written to a file; an interrupted command continues."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import BinaryIO

import numpy as np
import torch
from torch import Tensor

from semimetric.core.errors import InputError, RunError
from semimetric.core.files import (
    check_output,
    clear_leftovers,
    read_json,
    read_tensors,
    write_atomically,
    write_json,
    write_tensors,
    write_text,
)
from semimetric.core.locks import NAME as LOCK
from semimetric.core.locks import locked
from semimetric.data import Collection, read_collection
from semimetric.data.readers.folder import IMAGE_SUFFIXES
from semimetric.data.readers.shards import find_shards
from semimetric.data.readers.tables import TABLE_SUFFIXES, read_new_table
from semimetric.data.samples import Kind
from semimetric.data.schema import Schema
from semimetric.model.fitted import input_rows, scaled_vectors
from semimetric.model.folder import LoadedRun
from semimetric.pipeline.data import digest_of, read_inputs, subset
from semimetric.serve.csv_file import write_table
from semimetric.training import Progress, Silent

CHUNK = 512
"""Examples that are read and embedded at a time."""

SUFFIXES = (".npy", ".npz", ".csv")

SAME_KIND = (("photographs", "photographs"), ("vectors", "vectors"), ("images", "vectors"))
WANTED = {
    "photographs": "photographs, or a folder of them",
    "vectors": "a table (.csv, .tsv, .npz, .npy, .parquet)",
    "images": "a table (.npy, ...) with the values of an image in each row",
}
"""Kinds of training examples with the kinds of new ones that fit, and what to ask for."""


@dataclass(frozen=True)
class Embedded:
    """Names (n,) and embeddings (n, l) of the examples that could be read, and reasons for the others.

    ``inputs`` (n, d) are their scaled inputs as rows, where a step asks for them.
    """

    names: tuple[str, ...]
    embeddings: Tensor
    skipped: dict[str, str]
    inputs: Tensor | None = None


def new_examples(
    loaded: LoadedRun,
    source: Path,
    label_column: str | None = None,
    id_column: str | None = None,
    progress: Progress | None = None,
    labels: Path | None = None,
) -> Collection:
    """New examples for a run, from a folder or table; of a table, the columns that the run was trained on.

    ``progress`` is told what is odd about the columns. ``labels`` is a list of labels for a folder, as
    ``read_collection`` takes it.
    """
    if find_shards(source):
        check_kind(loaded, "photographs")
        return read_collection(source, labels, label_column, id_column)
    if source.is_dir() or source.suffix.lower() in TABLE_SUFFIXES:
        check_kind(loaded, "photographs" if source.is_dir() else "vectors")
    if source.is_dir() or source.suffix.lower() not in TABLE_SUFFIXES or not source.is_file():
        return check_fits(loaded, read_collection(source, labels, label_column, id_column))
    known = loaded.fitted.examples
    usual = (known.label_column, known.id_column)
    found = read_new_table(source, schema_of(loaded), label_column, id_column, usual)
    if progress is not None:
        for note in found.notes:
            progress.warn(note)
    return check_fits(loaded, found)


def examples_of(
    loaded: LoadedRun,
    source: Path,
    label_column: str | None = None,
    id_column: str | None = None,
    progress: Progress | None = None,
) -> Collection:
    """New examples for a run: one photograph, or those of a folder or table."""
    suffix, kind = source.suffix.lower(), loaded.fitted.spec.kind
    photograph = suffix in IMAGE_SUFFIXES or (kind == "photographs" and suffix not in TABLE_SUFFIXES)
    if photograph and not source.is_dir() and not find_shards(source):
        return check_fits(loaded, Collection((str(source),), (None,), (source,), None, (), {}))
    return new_examples(loaded, source, label_column, id_column, progress)


def schema_of(loaded: LoadedRun) -> Schema:
    """The columns that a run takes; those of a run without a schema are numbers."""
    if loaded.fitted.schema is not None:
        return loaded.fitted.schema
    columns = loaded.fitted.examples.columns
    width = prod(loaded.fitted.spec.shape)
    return Schema.of_numbers(columns or map(str, range(width)), named=bool(columns))


def check_fits(loaded: LoadedRun, collection: Collection) -> Collection:
    """The collection in the shape that the run was trained on; other kinds and widths are refused."""
    shape = loaded.fitted.spec.shape
    check_kind(loaded, "photographs" if collection.paths is not None else "vectors")
    if collection.features is None:
        return collection
    features = collection.features
    if features.shape[1] != prod(shape):
        raise InputError(
            f"the run was trained on {prod(shape)} features, and these have {features.shape[1]}. Give the same "
            "features in the same order."
        )
    return dataclasses.replace(
        collection, features=features.reshape(-1, *shape), columns=loaded.fitted.examples.columns or collection.columns
    )


def check_kind(loaded: LoadedRun, kind: Kind) -> None:
    """Refuse another kind of data than the run was trained on. Images may be rows of a table."""
    trained = loaded.fitted.spec.kind
    if (trained, kind) not in SAME_KIND:
        raise InputError(f"the run was trained on {trained}, and these are {kind}. Give {WANTED[trained]}.")


def embed_chunks(loaded: LoadedRun, collection: Collection, progress: Progress | None = None) -> Iterator[Embedded]:
    """The embeddings of a collection, chunk by chunk."""
    for start in range(0, len(collection), CHUNK):
        yield embed_some(loaded, collection, range(start, min(start + CHUNK, len(collection))), progress)


def embed_some(loaded: LoadedRun, collection: Collection, rows: range, progress: Progress | None = None) -> Embedded:
    """The embeddings of some rows of a collection."""
    progress = progress or Silent()
    progress.stage("embedding", rows.start, len(collection))
    model = loaded.fitted.model
    part = dataclasses.replace(subset(collection, list(rows), {}), skipped={})
    kept, inputs = read_inputs(part, model.transform, model.device)
    if len(kept) == 0:
        return Embedded((), torch.empty(0, model.width).double(), kept.skipped)
    scaled = scaled_vectors(model.preprocess, inputs)
    return Embedded(kept.names, model.embed_scaled(scaled), kept.skipped, input_rows(scaled))


def embed_to(
    loaded: LoadedRun,
    collection: Collection,
    out: Path,
    progress: Progress | None = None,
    inputs: Sequence[Path] = (),
    replace: bool = False,
    raw: bool = False,
) -> Embedded:
    """Embed a collection and write names and embeddings to ``out``: .npy (names in ``out`` + ".json"), .npz or .csv.

    Interrupted, the same call continues: finished parts lie in a hidden folder beside ``out`` until all are done.
    A file that is there is replaced with ``replace`` alone, and one of ``inputs`` never. ``raw`` is that of
    ``write_table``.
    """
    check_suffix(out, SUFFIXES)
    _check_parts(_parts_of(out))
    _forget_ended(_parts_of(out))
    continued = (_parts_of(out) / "origin.json").exists()
    for path in (out, _names_of(out)) if out.suffix == ".npy" else (out,):
        check_output(path, inputs, replace or continued)
    with locked(_parts_of(out)):
        return _embed_in_parts(loaded, collection, out, progress, raw)


def _embed_in_parts(
    loaded: LoadedRun, collection: Collection, out: Path, progress: Progress | None, raw: bool
) -> Embedded:
    with writing(out):
        parts = _parts(loaded, collection, out)
    pieces = []
    for number, start in enumerate(range(0, len(collection), CHUNK)):
        path = parts / f"{number:06d}.safetensors"
        if not path.exists():
            rows = range(start, min(start + CHUNK, len(collection)))
            found = embed_some(loaded, collection, rows, progress)
            state = {"names": found.names, "skipped": found.skipped}
            with writing(out):
                write_tensors(path, {"embeddings": found.embeddings}, state)
        tensors, state = read_tensors(path)
        pieces.append(Embedded(tuple(state["names"]), tensors["embeddings"], state["skipped"]))
    embedded = together(pieces, collection.skipped)
    with writing(out):
        if embedded.names:
            _write(embedded, out, raw)
        _remove_parts(parts)
    check_any(embedded)
    return embedded


def _parts_of(out: Path) -> Path:
    """The folder of finished parts, under a name that no other program uses."""
    return out.with_name(f".{out.name}.semimetric-parts")


def _names_of(out: Path) -> Path:
    """The file beside embeddings in .npy that has the names of the examples."""
    return out.with_name(out.name + ".json")


def check_suffix(out: Path, suffixes: tuple[str, ...]) -> None:
    """Refuse a file of another kind than these."""
    if out.suffix not in suffixes:
        raise InputError(f"--out must end in {' or '.join(suffixes)}, got {out.name!r}.")


def check_any(embedded: Embedded) -> None:
    """Refuse a collection without a readable example."""
    if not embedded.names:
        name, reason = next(iter(embedded.skipped.items()))
        raise InputError(
            f"none of {len(embedded.skipped)} examples can be read, and nothing is written. The first is {name}: "
            f"{reason}."
        )


@contextmanager
def writing(out: Path) -> Iterator[None]:
    """Name the file that could not be written to a full or locked disk."""
    try:
        yield
    except OSError as error:
        raise RunError(f"{out} cannot be written: {error}. Make room, or choose another --out.") from error


def _parts(loaded: LoadedRun, collection: Collection, out: Path) -> Path:
    """The folder of finished parts; one of another run or of other examples is refused."""
    folder = _parts_of(out)
    digest = hashlib.sha256(f"{CHUNK} {digest_of(collection)}".encode())
    digest.update(loaded.fitted.embeddings.contiguous().numpy().tobytes())
    origin = {"of": digest.hexdigest()}
    if (folder / "origin.json").exists():
        if read_json(folder / "origin.json") != origin:
            raise InputError(
                f"{folder} holds parts of another run or of other examples. Remove it, or choose another --out."
            )
        return folder
    clear_leftovers(folder, "origin.json")
    _check_parts(folder, (LOCK,))
    write_json(folder / "origin.json", origin)
    return folder


def _check_parts(folder: Path, known: Sequence[str] = ()) -> None:
    """Refuse what is not a folder of plain files, or has others than the ``known`` ones."""
    is_free = not os.path.lexists(folder)
    if folder.is_dir() and not folder.is_symlink():
        files = {path.name for path in folder.iterdir() if path.is_file() and not path.is_symlink()}
        is_free = {path.name for path in folder.iterdir()} <= (files.intersection(known) if known else files)
    if not is_free:
        raise InputError(
            f"{folder} is in the way: finished parts would be kept there. Move it, or choose another --out."
        )


def _forget_ended(folder: Path) -> None:
    """Remove a folder of parts in which a command that was killed at its very end left nothing but a lock."""
    if folder.is_dir() and all(entry.name == LOCK for entry in folder.iterdir()):
        with suppress(RunError, OSError):
            with locked(folder):
                pass
            folder.rmdir()


def _remove_parts(folder: Path) -> None:
    """Remove the parts and then their folder, unless something else is in it; what marks it as ours goes last."""
    for part in (*sorted(folder.glob("[0-9]*.safetensors")), folder / "origin.json", folder / LOCK):
        part.unlink()
    clear_leftovers(folder)
    if not any(folder.iterdir()):
        folder.rmdir()


def together(pieces: list[Embedded], skipped: dict[str, str]) -> Embedded:
    """Several pieces as one; ``skipped`` was left out before."""
    inputs = [piece.inputs for piece in pieces if piece.inputs is not None]
    return Embedded(
        tuple(name for piece in pieces for name in piece.names),
        torch.cat([piece.embeddings for piece in pieces]),
        skipped | {name: reason for piece in pieces for name, reason in piece.skipped.items()},
        torch.cat(inputs) if inputs else None,
    )


def _write(embedded: Embedded, out: Path, raw: bool) -> None:
    values = embedded.embeddings.float().numpy()
    if out.suffix == ".csv":
        header = ["name", *(f"e{column}" for column in range(values.shape[1]))]
        rows = ([name, *row] for name, row in zip(embedded.names, values, strict=True))
        write_table(out, header, rows, raw)
    elif out.suffix == ".npz":
        names = np.array(embedded.names, dtype=str)
        write_atomically(
            out, lambda temporary: _save(temporary, lambda file: np.savez(file, embeddings=values, names=names))
        )
    else:
        listed = {"names": embedded.names, "skipped": embedded.skipped}
        write_text(_names_of(out), json.dumps(listed) + "\n")
        write_atomically(out, lambda temporary: _save(temporary, lambda file: np.save(file, values)))


def _save(path: Path, save: Callable[[BinaryIO], None]) -> None:
    with path.open("wb") as file:
        save(file)
