"""Commands on a run: ``semimetric embed | predict | search | index | suggest | export``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer
from rich.table import Table
from torch import Tensor

from semimetric.bulk import Embedded, check_fits, embed_chunks, embed_to, predict_to, together
from semimetric.commands.console import AsJson, Device, RunFolder, print_json, say, showing_progress, stderr, stdout
from semimetric.data import Collection, read_collection
from semimetric.errors import InputError
from semimetric.runs import Loaded, open_run
from semimetric.search import ExactIndex, FaissIndex, Hits, MilvusIndex

NewData = Annotated[
    Path, typer.Argument(help="Folder of photographs, or a table (.npz, .npy, .csv, .parquet).", show_default=False)
]
SHOWN = 3
"""Files that could not be read and are named on the terminal; --json names all."""


def embed(
    run: RunFolder,
    data: NewData,
    out: Annotated[Path, typer.Option("--out", "-o", help="File for the embeddings: .npy, .npz or .csv.")],
    label_column: Annotated[str | None, typer.Option(help="Column of a table that is no feature.")] = None,
    device: Device = "auto",
    as_json: AsJson = False,
) -> None:
    """Embed new examples; interrupted, the same command continues."""
    with showing_progress() as progress:
        loaded = load_run(run, device)
        embedded = embed_to(loaded, new_data(loaded, data, label_column), out, progress)
    told = {"examples": len(embedded.names), "components": embedded.embeddings.shape[1], "out": str(out)}
    if as_json:
        print_json(told | {"skipped": embedded.skipped})
        return
    say(f"{told['examples']} examples in {told['components']} dimensions, written to {out}")
    tell_skipped(embedded)


def predict(
    run: RunFolder,
    data: NewData,
    out: Annotated[Path, typer.Option("--out", "-o", help="CSV file for names, labels and probabilities.")],
    label_column: Annotated[str | None, typer.Option(help="Column of a table that is no feature.")] = None,
    device: Device = "auto",
    as_json: AsJson = False,
) -> None:
    """Name new examples by what lies near them."""
    with showing_progress() as progress:
        loaded = load_run(run, device)
        embedded = predict_to(loaded, new_data(loaded, data, label_column), out, progress)
    if as_json:
        print_json({"examples": len(embedded.names), "out": str(out), "skipped": embedded.skipped})
        return
    say(f"{len(embedded.names)} examples named, written to {out}")
    tell_skipped(embedded)


def search(
    run: RunFolder,
    queries: Annotated[list[Path], typer.Argument(help="Photographs, folders of them, or tables.", show_default=False)],
    k: Annotated[int, typer.Option("-k", min=1, help="How many of the run's examples to find for each query.")] = 8,
    index: Annotated[
        str | None, typer.Option(help="Index that 'semimetric index' made; else all examples are looked at.")
    ] = None,
    collection: Annotated[str, typer.Option(help="Name of the collection in Milvus.")] = "semimetric",
    device: Device = "auto",
    as_json: AsJson = False,
) -> None:
    """Find the examples of a run that are most like others."""
    with showing_progress() as progress:
        loaded = load_run(run, device)
        asked = together([found for query in queries for found in _asked(loaded, query, progress)])
        if not asked.names:
            reasons = "; ".join(f"{name}: {reason}" for name, reason in asked.skipped.items())
            raise InputError(f"no query can be read. {reasons}")
        hits = _find(loaded, asked.embeddings, k, index, collection)
    found = {name: _listed(loaded, hits, row) for row, name in enumerate(asked.names)}
    if as_json:
        print_json({"hits": found, "skipped": asked.skipped})
        return
    for name, lines in found.items():
        _print_hits(name, lines)
    tell_skipped(asked)


def index(
    run: RunFolder,
    to: Annotated[
        str, typer.Option(help="Where: a file ending in .faiss, a file ending in .db (Milvus Lite), or a Milvus URL.")
    ],
    collection: Annotated[str, typer.Option(help="Name of the collection in Milvus.")] = "semimetric",
    replace: Annotated[bool, typer.Option(help="Replace what another run has put there.")] = False,
    as_json: AsJson = False,
) -> None:
    """Put the embeddings of a run into an index for search among millions; interrupted, the same command continues."""
    with showing_progress() as progress:
        loaded = load_run(run, "cpu")
        embeddings = loaded.estimator.learned_.embeddings
        if to.endswith(".faiss"):
            FaissIndex.build(embeddings, "hnsw").save(to)
        else:
            with MilvusIndex(to, collection, embeddings.shape[1]) as milvus:
                milvus.load(
                    embeddings,
                    loaded.examples.names,
                    progress=lambda done, total: progress.stage("indexing", done, total),
                    replace=replace,
                )
    if as_json:
        print_json({"examples": len(embeddings), "to": to})
        return
    say(f"{len(embeddings)} examples are in {to}; search them with: semimetric search {run} QUERY --index {to}")


def suggest(
    run: RunFolder,
    count: Annotated[int, typer.Option("-n", min=1, help="How many examples to suggest.")] = 20,
    seed: Annotated[int, typer.Option(help="Seed of the clustering.")] = 0,
    as_json: AsJson = False,
) -> None:
    """List the unlabelled examples whose labels would help most, the most helpful first."""
    from semimetric.suggest import suggest as choose

    loaded = load_run(run, "cpu")
    learned, names = loaded.estimator.learned_, loaded.examples.names
    found = learned.posteriors
    chosen = choose(learned.embeddings, learned.labels, found.shares, found.confidence, count, seed)
    lines = [
        {
            "name": names[int(row)],
            "uncertainty": round(float(chosen.uncertainty[place]), 4),
            "stands_for": int(chosen.near[place]),
            "gain": round(float(chosen.gains[place]), 6),
        }
        for place, row in enumerate(chosen.rows)
    ]
    if as_json:
        print_json({"suggestions": lines})
        return
    table = Table("label next", "uncertainty", "stands for", "gain", box=None)
    for line in lines:
        table.add_row(str(line["name"]), f"{line['uncertainty']:.2f}", str(line["stands_for"]), f"{line['gain']:.1%}")
    stdout.print(table)


def export(
    run: RunFolder,
    onnx: Annotated[bool, typer.Option("--onnx", help="As one ONNX graph, from raw inputs to the embedding.")] = False,
    out: Annotated[Path | None, typer.Option("--out", "-o", help="File; model.onnx in the run unless given.")] = None,
    check: Annotated[
        Path | None, typer.Option(help="Examples to check the export with; those of the run unless given.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Write the model of a run for use elsewhere."""
    from semimetric.export import export_run

    if not onnx:
        raise InputError("say what to export to: --onnx.")
    told = export_run(load_run(run, "cpu"), out or run / "model.onnx", check)
    if as_json:
        print_json(told)
        return
    say(
        f"{told['out']}: {told['bytes'] / 2**20:.1f} MiB, checked on {told['examples']} examples against torch, "
        f"largest difference {told['largest_difference']:.1e}"
    )


def load_run(run: Path, device: str) -> Loaded:
    """A run, with a word on standard error where it was written by other versions."""
    loaded = open_run(run, device=device)
    if loaded.differences:
        stderr.print(f"note: {loaded.differences}", highlight=False, markup=False)
    return loaded


def new_data(loaded: Loaded, data: Path, label_column: str | None = None) -> Collection:
    """New examples for a run."""
    return check_fits(loaded, read_collection(data, label_column=label_column))


def tell_skipped(embedded: Embedded) -> None:
    """Say what could not be read."""
    for name, reason in list(embedded.skipped.items())[:SHOWN]:
        say(f"skipped {name}: {reason}")
    if len(embedded.skipped) > SHOWN:
        say(f"and {len(embedded.skipped) - SHOWN} more; --json names all")


def _asked(loaded: Loaded, query: Path, progress: Any) -> list[Embedded]:
    photograph = loaded.estimator.learned_.built.kind == "photographs" and not query.is_dir()
    found = Collection((str(query),), (None,), (query,), None, (), {}) if photograph else read_collection(query)
    return list(embed_chunks(loaded, check_fits(loaded, found), progress))


def _find(loaded: Loaded, queries: Tensor, k: int, index: str | None, collection: str) -> Hits:
    stored = loaded.estimator.learned_.embeddings
    if index is None:
        return ExactIndex(stored).search(queries, k)
    if index.endswith(".faiss"):
        return FaissIndex.load(index).search(queries, k)
    with MilvusIndex(index, collection, stored.shape[1]) as milvus:
        return milvus.search(queries, k)


def _listed(loaded: Loaded, hits: Hits, row: int) -> list[dict[str, Any]]:
    """For people and JSON: what was found for one query."""
    learned, examples = loaded.estimator.learned_, loaded.examples
    lines = []
    for number, distance in zip(hits.rows[row].tolist(), hits.distances[row].tolist(), strict=True):
        named = examples.classes[int(learned.posteriors.shares[number].argmax())] if examples.classes else None
        lines.append(
            {
                "name": examples.names[number],
                "distance": distance,
                "label": named,
                "labelled": bool(learned.labels[number] >= 0),
                "confidence": float(learned.posteriors.confidence[number]) if examples.classes else None,
            }
        )
    return lines


def _print_hits(name: str, lines: list[dict[str, Any]]) -> None:
    table = Table(
        "distance", "example", "label", "how sure", title=f"nearest to {name}", title_justify="left", box=None
    )
    for line in lines:
        sure = "given" if line["labelled"] else "" if line["confidence"] is None else f"{line['confidence']:.2f}"
        table.add_row(f"{line['distance']:.4f}", line["name"], str(line["label"] or ""), sure)
    stdout.print(table)
