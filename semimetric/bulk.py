"""New examples through the model of a run, however many: embeddings that can be interrupted, labels, neighbours."""

from __future__ import annotations

import csv
import hashlib
import io
import json
import shutil
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

import numpy as np
import torch
from torch import Tensor

from semimetric.data import Collection
from semimetric.errors import InputError
from semimetric.files import read_json, read_tensors, write_atomically, write_json, write_tensors, write_text
from semimetric.runs import Loaded, read_kept, samples_of, subset
from semimetric.training import Progress, Silent

CHUNK = 512
"""Examples that are read and embedded at a time."""

SUFFIXES = (".npy", ".npz", ".csv")


@dataclass(frozen=True)
class Embedded:
    """Names (n,) and embeddings (n, l) of what could be read, and why the rest could not."""

    names: tuple[str, ...]
    embeddings: Tensor
    skipped: dict[str, str]


def check_fits(loaded: Loaded, collection: Collection) -> Collection:
    """The collection with the columns that the run was trained on, in their order; another kind is refused."""
    built, columns = loaded.estimator.learned_.built, loaded.examples.columns
    kind = "photographs" if collection.paths is not None else "vectors"
    if kind != built.kind:
        raise InputError(f"the run was trained on {built.kind}, and these are {kind}. Give the same kind of data.")
    if collection.features is None:
        return collection
    if columns and collection.columns:
        lost = [name for name in columns if name not in collection.columns]
        if lost:
            raise InputError(f"the table lacks the column {lost[0]!r}, which the run was trained on. Add it.")
        places = [collection.columns.index(name) for name in columns]
        return Collection(
            collection.names, collection.labels, None, collection.features[:, places], columns, collection.skipped
        )
    if tuple(collection.features.shape[1:]) != built.shape:
        raise InputError(
            f"the run was trained on {built.shape[0]} features, and these have {collection.features.shape[1]}. Give "
            "the same features in the same order."
        )
    return collection


def embed_chunks(loaded: Loaded, collection: Collection, progress: Progress | None = None) -> Iterator[Embedded]:
    """The embeddings of a collection, some hundred examples at a time."""
    for start in range(0, len(collection), CHUNK):
        yield embed_some(loaded, collection, range(start, min(start + CHUNK, len(collection))), progress)


def embed_some(loaded: Loaded, collection: Collection, rows: range, progress: Progress | None = None) -> Embedded:
    """The embeddings of some rows of a collection."""
    progress = progress or Silent()
    progress.stage("embedding", rows.start, len(collection))
    model = loaded.estimator.learned_.model
    part = subset(collection, list(rows), {})
    part = Collection(part.names, part.labels, part.paths, part.features, part.columns, {})
    kept, inputs = read_kept(part, samples_of(part), model.sight, model.device, Silent())
    if len(kept) == 0:
        return Embedded((), torch.empty(0, model.metric.factor.shape[1]).double(), kept.skipped)
    return Embedded(kept.names, model.embed(inputs), kept.skipped)


def embed_to(loaded: Loaded, collection: Collection, out: Path, progress: Progress | None = None) -> Embedded:
    """Embed a collection and write names and embeddings to ``out``: .npy (names in a .json beside it), .npz or .csv.

    Interrupted, the same call continues: what is done lies in ``out`` + ".parts" until all is.
    """
    if out.suffix not in SUFFIXES:
        raise InputError(f"--out must end in {', '.join(SUFFIXES)}, got {out.name!r}.")
    if not out.parent.is_dir():
        raise InputError(f"--out {str(out)!r} cannot be written: there is no folder {str(out.parent)!r}. Make it.")
    parts = _parts(loaded, collection, out)
    pieces = []
    for number, start in enumerate(range(0, len(collection), CHUNK)):
        path = parts / f"{number:06d}.safetensors"
        if not path.exists():
            rows = range(start, min(start + CHUNK, len(collection)))
            found = embed_some(loaded, collection, rows, progress)
            write_tensors(path, {"embeddings": found.embeddings}, {"names": found.names, "skipped": found.skipped})
        tensors, state = read_tensors(path)
        pieces.append(Embedded(tuple(state["names"]), tensors["embeddings"], state["skipped"]))
    embedded = together(pieces)
    _write(embedded, out)
    shutil.rmtree(parts)
    return embedded


def _parts(loaded: Loaded, collection: Collection, out: Path) -> Path:
    """The folder of what is done already; one of another run or other examples is refused."""
    folder = out.with_name(out.name + ".parts")
    digest = hashlib.sha256(repr(collection.names).encode())
    digest.update(loaded.estimator.learned_.embeddings.contiguous().numpy().tobytes())
    if collection.features is not None:
        digest.update(collection.features.contiguous().numpy().tobytes())
    origin = {"of": digest.hexdigest()}
    if folder.exists() and (folder / "origin.json").exists():
        if read_json(folder / "origin.json") != origin:
            raise InputError(
                f"{folder} holds what was interrupted of another run or of other examples. Remove it, or choose "
                "another --out."
            )
        return folder
    folder.mkdir(exist_ok=True)
    write_json(folder / "origin.json", origin)
    return folder


def together(pieces: list[Embedded]) -> Embedded:
    """Several pieces as one."""
    return Embedded(
        tuple(name for piece in pieces for name in piece.names),
        torch.cat([piece.embeddings for piece in pieces]),
        {name: reason for piece in pieces for name, reason in piece.skipped.items()},
    )


def _write(embedded: Embedded, out: Path) -> None:
    values = embedded.embeddings.float().numpy()
    if out.suffix == ".csv":
        header = ["name", *(f"e{column}" for column in range(values.shape[1]))]
        rows = ([name, *row] for name, row in zip(embedded.names, values.tolist(), strict=True))
        write_table(out, header, rows)
    elif out.suffix == ".npz":
        names = np.array(embedded.names, dtype=str)
        write_atomically(
            out, lambda temporary: _save(temporary, lambda file: np.savez(file, embeddings=values, names=names))
        )
    else:
        listed = {"names": embedded.names, "skipped": embedded.skipped}
        write_text(out.with_suffix(".json"), json.dumps(listed) + "\n")
        write_atomically(out, lambda temporary: _save(temporary, lambda file: np.save(file, values)))


def _save(path: Path, save: Callable[[BinaryIO], None]) -> None:
    with path.open("wb") as file:
        save(file)


def write_table(out: Path, header: list[str], rows: Iterable[list[object]]) -> None:
    """Write a CSV file atomically."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(header)
    writer.writerows(rows)
    write_text(out, text.getvalue())


def predict_to(loaded: Loaded, collection: Collection, out: Path, progress: Progress | None = None) -> Embedded:
    """Name a collection and write name, label and probability of each example to a CSV file."""
    if out.suffix != ".csv":
        raise InputError(f"--out must end in .csv, got {out.name!r}.")
    learned, classes = loaded.estimator.learned_, loaded.examples.classes
    rows: list[list[object]] = []
    pieces = []
    for piece in embed_chunks(loaded, collection, progress):
        shares = learned.name(piece.embeddings) if piece.names else torch.empty(0, len(classes))
        best = shares.max(1) if len(shares) else None
        if best is not None:
            named = zip(piece.names, best.indices.tolist(), best.values.tolist(), strict=True)
            rows += [[name, classes[number], round(value, 6)] for name, number, value in named]
        pieces.append(piece)
    write_table(out, ["name", "label", "probability"], rows)
    return together(pieces)
