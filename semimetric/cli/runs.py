"""Commands on a run: ``semimetric embed | predict | search | index | suggest | export``."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import typer

from semimetric.cli.console import (
    AsJson,
    Device,
    RunFolder,
    counted,
    print_json,
    print_table,
    say,
    showing_progress,
    stderr,
)
from semimetric.core.errors import InputError
from semimetric.core.files import check_output
from semimetric.data import Collection
from semimetric.data.readers.folder import IMAGE_SUFFIXES
from semimetric.data.readers.tables import TABLE_SUFFIXES
from semimetric.estimators.runs import Loaded, open_run
from semimetric.reporting.progress import RichProgress
from semimetric.search import Hits, build_index, check_place, search_run_index
from semimetric.serve.bulk import (
    Embedded,
    check_fits,
    embed_chunks,
    embed_to,
    new_examples,
    predict_to,
    together,
)

NewData = Annotated[
    Path, typer.Argument(help="Folder of photographs, or a table (.npz, .npy, .csv, .parquet).", show_default=False)
]
LabelColumn = Annotated[
    str | None, typer.Option(help="Column of a table that holds labels and is no feature; that of the run is known.")
]
IdColumn = Annotated[
    str | None, typer.Option(help="Column with the names of a table's rows; that of the run is known.")
]
Overwrite = Annotated[bool, typer.Option("--overwrite", help="Replace the file --out where it exists.")]
SHOWN = 3
"""Files that could not be read and are named on the terminal; --json names all."""

SAME_COMMAND = "the same command continues"


def embed(
    run: RunFolder,
    data: NewData,
    out: Annotated[Path, typer.Option("--out", "-o", help="File for the embeddings: .npy, .npz or .csv.")],
    overwrite: Overwrite = False,
    label_column: LabelColumn = None,
    id_column: IdColumn = None,
    device: Device = "auto",
    as_json: AsJson = False,
) -> None:
    """Embed new examples; interrupted, the same command continues."""
    with showing_progress(SAME_COMMAND) as progress:
        loaded = load_run(run, device)
        examples = new_examples(loaded, data, label_column, id_column)
        embedded = embed_to(loaded, examples, out, progress, _inputs(run, data), overwrite)
    told = {"examples": len(embedded.names), "components": embedded.embeddings.shape[1], "out": str(out)}
    if as_json:
        print_json(told | {"skipped": embedded.skipped})
        return
    say(f"{counted(len(embedded.names), 'example')} in {told['components']} dimensions, written to {out}")
    tell_skipped(embedded)


def predict(
    run: RunFolder,
    data: NewData,
    out: Annotated[Path, typer.Option("--out", "-o", help="CSV file for names, labels and probabilities.")],
    overwrite: Overwrite = False,
    label_column: LabelColumn = None,
    id_column: IdColumn = None,
    device: Device = "auto",
    as_json: AsJson = False,
) -> None:
    """Name new examples by what lies near them."""
    with showing_progress() as progress:
        loaded = load_run(run, device)
        examples = new_examples(loaded, data, label_column, id_column)
        embedded = predict_to(loaded, examples, out, progress, _inputs(run, data), overwrite)
    if as_json:
        print_json({"examples": len(embedded.names), "out": str(out), "skipped": embedded.skipped})
        return
    say(f"{counted(len(embedded.names), 'example')} named, written to {out}")
    tell_skipped(embedded)


def search(
    run: RunFolder,
    queries: Annotated[list[Path], typer.Argument(help="Photographs, folders of them, or tables.", show_default=False)],
    k: Annotated[int, typer.Option("-k", min=1, help="How many of the run's examples to find for each query.")] = 8,
    index: Annotated[
        str | None, typer.Option(help="Index that 'semimetric index' made; else all examples are looked at.")
    ] = None,
    collection: Annotated[str, typer.Option(help="Name of the collection in Milvus.")] = "semimetric",
    label_column: LabelColumn = None,
    id_column: IdColumn = None,
    device: Device = "auto",
    as_json: AsJson = False,
) -> None:
    """Find the examples of a run that are most like others."""
    if index is not None:
        check_place(index, "--index", existing=True)
    with showing_progress() as progress:
        loaded = load_run(run, device)
        sources = list(dict.fromkeys(queries))
        read = [(source, _examples_of(loaded, source, label_column, id_column)) for source in sources]
        asked = together([piece for pair in read for piece in _asked(loaded, *pair, len(read) > 1, progress)], {})
        if not asked.names:
            reasons = "; ".join(f"{name}: {reason}" for name, reason in list(asked.skipped.items())[:SHOWN])
            raise InputError(f"no query can be read. {reasons}.")
        hits = search_run_index(index, loaded.estimator.learned_.embeddings, asked.embeddings, k, collection)
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
        str,
        typer.Option(
            help="Where: a file ending in .npy or .faiss, a folder ending in .db (Milvus Lite), or a Milvus URL."
        ),
    ],
    collection: Annotated[str, typer.Option(help="Name of the collection in Milvus.")] = "semimetric",
    replace: Annotated[bool, typer.Option("--replace", help="Replace what is there.")] = False,
    as_json: AsJson = False,
) -> None:
    """Put the embeddings of a run into an index for search among millions; interrupted, the same command continues."""
    check_place(to, "--to").check_new(to, _inputs(run), replace, "--to", "--replace")
    with showing_progress(SAME_COMMAND) as progress:
        loaded = load_run(run, "cpu")
        embeddings = loaded.estimator.learned_.embeddings
        stage = partial(progress.stage, "indexing")
        build_index(to, embeddings, loaded.examples.names, collection=collection, replace=replace, progress=stage)
    if as_json:
        print_json({"examples": len(embeddings), "to": to})
        return
    say(f"{len(embeddings)} examples are in {to}; search them with: semimetric search {run} QUERY --index {to}")


def suggest(
    run: RunFolder,
    count: Annotated[int, typer.Option("-n", min=1, help="How many examples to suggest, at most.")] = 20,
    seed: Annotated[int, typer.Option(help="Seed that draws candidates where there are very many examples.")] = 0,
    as_json: AsJson = False,
) -> None:
    """List the unlabelled examples whose labels would help most, the most helpful first."""
    from semimetric.serve.suggest import suggest as choose

    loaded = load_run(run, "cpu")
    learned, names = loaded.estimator.learned_, loaded.examples.names
    found, unlabelled = learned.posteriors, int((learned.labels < 0).sum())
    if not unlabelled:
        raise InputError(f"all {len(names)} examples of {run} have a label, so that there is none to suggest.")
    count = min(count, unlabelled)
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
    shown = (
        (f"{line['uncertainty']:.2f}", str(line["stands_for"]), f"{line['gain']:.1%}", str(line["name"]))
        for line in lines
    )
    print_table(("uncertainty", "stands for", "gain", "label next"), shown)


def export(
    run: RunFolder,
    onnx: Annotated[bool, typer.Option("--onnx", help="As one ONNX graph, from raw inputs to the embedding.")] = False,
    out: Annotated[Path | None, typer.Option("--out", "-o", help="File; model.onnx in the run unless given.")] = None,
    check: Annotated[
        Path | None, typer.Option(help="Examples to check the export with; those of the run unless given.")
    ] = None,
    overwrite: Overwrite = False,
    as_json: AsJson = False,
) -> None:
    """Write the model of a run for use elsewhere."""
    from semimetric.serve.export import export_run

    if not onnx:
        raise InputError("say what to export to: --onnx.")
    out = out or run / "model.onnx"
    check_output(out, (path for path in _inputs(run, check) if path.name != "model.onnx"), overwrite)
    told = export_run(load_run(run, "cpu"), out, check)
    if as_json:
        print_json(told)
        return
    say(
        f"{told['out']}: {told['bytes'] / 2**20:.1f} MiB, checked on {told['examples']} examples against torch, "
        f"largest difference {told['largest_difference']:.1e}"
    )


def _inputs(run: Path, data: Path | None = None) -> list[Path]:
    """Files that a command on a run reads and may not write to."""
    return [*run.glob("*"), *([] if data is None else [data])]


def load_run(run: Path, device: str) -> Loaded:
    """A run, with a word on standard error where it was written by other versions."""
    loaded = open_run(run, device=device)
    if loaded.differences:
        stderr.print(f"note: {loaded.differences}", highlight=False, markup=False)
    return loaded


def tell_skipped(embedded: Embedded) -> None:
    """Say what could not be read."""
    for name, reason in list(embedded.skipped.items())[:SHOWN]:
        say(f"skipped {name}: {reason}")
    if len(embedded.skipped) > SHOWN:
        say(f"and {len(embedded.skipped) - SHOWN} more; --json names all")


def _examples_of(loaded: Loaded, query: Path, label_column: str | None, id_column: str | None) -> Collection:
    """What a query names: one photograph, or a folder or table of examples."""
    suffix, kind = query.suffix.lower(), loaded.estimator.learned_.built.kind
    photograph = suffix in IMAGE_SUFFIXES or (kind == "photographs" and suffix not in TABLE_SUFFIXES)
    if photograph and not query.is_dir():
        return check_fits(loaded, Collection((str(query),), (None,), (query,), None, (), {}))
    return new_examples(loaded, query, label_column, id_column)


def _asked(
    loaded: Loaded, query: Path, found: Collection, one_of_many: bool, progress: RichProgress
) -> Iterator[Embedded]:
    """The embeddings of a query; names of examples in one of many folders or tables begin with its own."""
    several = one_of_many and found.names != (str(query),)
    before = f"{query}{'/' if found.paths is not None else ': '}" if several else ""
    earlier = found.skipped
    for piece in embed_chunks(loaded, found, progress):
        skipped = {before + name: reason for name, reason in (earlier | piece.skipped).items()}
        yield Embedded(tuple(before + name for name in piece.names), piece.embeddings, skipped)


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
    rows = []
    for line in lines:
        sure = "given" if line["labelled"] else "" if line["confidence"] is None else f"{line['confidence']:.2f}"
        label = "" if line["label"] is None else str(line["label"])
        rows.append((f"{line['distance']:.4f}", label, sure, line["name"]))
    print_table(("distance", "label", "how sure", "example"), rows, f"nearest to {name}")
