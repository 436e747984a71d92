"""Commands on a run: ``semimetric search | embed | suggest | index | export``."""

from __future__ import annotations

import shlex
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import typer

from semimetric.cli.console import (
    AsJson,
    Device,
    NoCache,
    Quiet,
    RunFolder,
    Verbose,
    counted,
    print_json,
    print_table,
    say,
    showing_progress,
    stderr,
)
from semimetric.cli.shards import Address, Engine, ResultFormat, Workers, by_ray, embed_shards
from semimetric.core.errors import InputError
from semimetric.core.files import check_output
from semimetric.reporting.tables import per_cent
from semimetric.reporting.terminal import visible

NewData = Annotated[
    Path,
    typer.Argument(help="Folder of photographs, or a table (.npz, .npy, .csv, .tsv, .parquet).", show_default=False),
]
LabelFile = Annotated[
    Path | None, typer.Option("--labels", help="CSV file with the labels of photographs, columns path and label.")
]
LabelColumn = Annotated[
    str | None, typer.Option(help="Column of labels, which is no feature; the run knows the one it was trained with.")
]
IdColumn = Annotated[
    str | None, typer.Option(help="Column with the names of the rows; the run knows the one it was trained with.")
]
Raw = Annotated[
    bool, typer.Option("--raw", help="CSV: names that a spreadsheet would take for a formula are written unquoted.")
]
Replace = Annotated[bool, typer.Option("--replace", help="Replace the file --out where it exists.")]
MilvusCollection = Annotated[str, typer.Option(help="Name of the collection in Milvus.")]
SHOWN = 3
"""Unreadable files that the terminal shows; --json has all."""


def _same_command() -> str:
    return "the same command continues"


def search(
    run: RunFolder,
    queries: Annotated[
        list[Path],
        typer.Argument(
            help="Photographs, folders of them, tables, or names of examples of the run.", show_default=False
        ),
    ],
    k: Annotated[int, typer.Option("-k", min=1, help="How many training examples to find for each query.")] = 8,
    index: Annotated[
        str | None, typer.Option(help="Index made by 'semimetric index'; without it all examples are compared.")
    ] = None,
    collection: MilvusCollection = "semimetric",
    out: Annotated[
        Path | None, typer.Option("--out", "-o", help="CSV file for all hits; without it they are printed.")
    ] = None,
    limit: Annotated[int, typer.Option(min=1, help="Most queries whose hits are printed.")] = 10,
    replace: Replace = False,
    raw: Raw = False,
    label_column: LabelColumn = None,
    id_column: IdColumn = None,
    device: Device = "auto",
    no_cache: NoCache = False,
    quiet: Quiet = False,
    verbose: Verbose = False,
    as_json: AsJson = False,
) -> None:
    """Find the training examples that are most similar to queries."""
    from semimetric.search import check_place
    from semimetric.serve.embed import check_suffix
    from semimetric.serve.search import search_run, write_hits

    if index is not None:
        check_place(index, "--index", existing=True)
    if out is not None:
        check_suffix(out, (".csv",))
        check_output(out, queries, replace)
    with showing_progress(quiet=quiet, verbose=verbose) as progress:
        loaded = load(run, device)
        found, skipped = search_run(loaded, queries, k, index, collection, (label_column, id_column), progress)
        if out is not None:
            write_hits(out, found, raw)
    if as_json:
        print_json({"hits": found, "skipped": skipped} if out is None else {"out": str(out), "skipped": skipped})
        return
    if out is not None:
        say(f"hits of {counted(len(found), 'query', 'queries')} written to {out}")
    else:
        _print_queries(found, limit)
    print_skipped(skipped)


def embed(
    run: RunFolder,
    data: Annotated[
        str,
        typer.Argument(
            help="Folder of photographs, table (.npz, .npy, .csv, .tsv, .parquet), or shards (.tar, .parquet).",
            show_default=False,
        ),
    ],
    out: Annotated[
        str,
        typer.Option("--out", "-o", help="File for the embeddings: .npy, .npz or .csv. With --engine ray: a folder."),
    ],
    replace: Replace = False,
    raw: Raw = False,
    label_column: LabelColumn = None,
    id_column: IdColumn = None,
    engine: Engine = "local",
    address: Address = "",
    workers: Workers = 0,
    result_format: ResultFormat = "",
    device: Device = "auto",
    no_cache: NoCache = False,
    quiet: Quiet = False,
    verbose: Verbose = False,
    as_json: AsJson = False,
) -> None:
    """Embed new examples. After an interruption the same command continues."""
    if by_ray(engine, address, workers, result_format, replace=replace, raw=raw, columns=label_column or id_column):
        embed_shards(run, data, out, result_format or "parquet", (address, workers or 1, device), quiet, as_json)
        return
    from semimetric.serve.embed import embed_to, new_examples

    source, target = Path(data), Path(out)
    with showing_progress(_same_command, quiet, verbose) as progress:
        loaded = load(run, device)
        examples = new_examples(loaded, source, label_column, id_column, progress)
        embedded = embed_to(loaded, examples, target, progress, inputs_of(source), replace, raw)
    facts = {"examples": len(embedded.names), "components": embedded.embeddings.shape[1], "out": str(out)}
    if as_json:
        print_json(facts | {"skipped": embedded.skipped})
        return
    say(f"{counted(len(embedded.names), 'example')} in {facts['components']} dimensions, written to {out}")
    print_skipped(embedded.skipped)


def suggest(
    run: RunFolder,
    count: Annotated[int, typer.Option("-n", min=1, help="How many examples to suggest, at most.")] = 20,
    out: Annotated[
        Path | None,
        typer.Option("--out", "-o", help="CSV file to fill in, for 'fit --labels'; it has the labels of the run, too."),
    ] = None,
    seed: Annotated[int, typer.Option(help="Seed that draws candidates where there are very many examples.")] = 0,
    replace: Replace = False,
    raw: Raw = False,
    as_json: AsJson = False,
) -> None:
    """List the unlabelled examples whose labels would help most, the most helpful first."""
    from semimetric.serve.labels import check_list, suggestions_to
    from semimetric.serve.suggest import ENOUGH_LABELS
    from semimetric.serve.suggest import suggest as choose

    if out is not None:
        check_list(out, replace)
    fitted = load(run, "cpu").fitted
    names, found, unlabelled = fitted.examples.names, fitted.posteriors, int((fitted.labels < 0).sum())
    if not unlabelled:
        raise InputError(f"all {len(names)} examples of {run} have a label. There is none to suggest.")
    chosen = choose(fitted.embeddings, fitted.labels, found.shares, found.confidence, min(count, unlabelled), seed)
    lines = [
        {
            "name": names[int(row)],
            "uncertainty": round(float(chosen.uncertainty[place]), 4),
            "stands_for": int(chosen.near[place]),
            "gain": round(float(chosen.gains[place]), 6),
        }
        for place, row in enumerate(chosen.rows)
    ]
    if out is not None:
        suggestions_to(fitted, chosen, out, raw)
    if as_json:
        print_json({"suggestions": lines} | ({} if out is None else {"out": str(out)}))
        return
    shown = (
        (f"{line['uncertainty']:.2f}", str(line["stands_for"]), per_cent(line["gain"], 1), str(line["name"]))
        for line in lines
    )
    print_table(("uncertainty", "stands for", "gain", "label next"), shown)
    if fitted.spec.backbone and unlabelled <= (1 - ENOUGH_LABELS) * len(fitted.labels):
        say(
            f"note: {per_cent(1 - unlabelled / len(fitted.labels))} have a label; random ones help about as much from "
            "here on"
        )
    if out is not None:
        say(f"{counted(len(lines), 'suggestion')} written to {visible(str(out))}; fill in the column label")
        _tell_refit(fitted, run, out)


def _tell_refit(fitted: Any, run: Path, out: Path) -> None:
    """How to learn from the labels that will be in ``out``."""
    if fitted.spec.kind == "photographs" and fitted.examples.source:
        words = [fitted.examples.source, "--labels", str(out), "--from", str(run), "--out", "NEW_RUN"]
        say(f"next: {visible(shlex.join(['semimetric', 'fit', *words]))}")
    else:
        say("next: copy the labels into your table, and fit it again")


def index(
    run: RunFolder,
    to: Annotated[
        str,
        typer.Option(
            help="Where: .npy, .faiss, a .db folder (Milvus Lite), a Milvus URL, or a place of another search backend."
        ),
    ],
    collection: MilvusCollection = "semimetric",
    replace: Annotated[bool, typer.Option("--replace", help="Replace what is there.")] = False,
    quiet: Quiet = False,
    verbose: Verbose = False,
    as_json: AsJson = False,
) -> None:
    """Put the embeddings of a run into an index for fast search. After an interruption run the same command again."""
    from semimetric.search import build_index, check_place

    check_place(to, "--to").check_new(to, inputs_of(), replace, "--to", "--replace")
    with showing_progress(lambda: "run the same command again", quiet, verbose) as progress:
        fitted = load(run, "cpu").fitted
        stage = partial(progress.stage, "indexing")
        build_index(
            to, fitted.embeddings, fitted.examples.names, collection=collection, replace=replace, progress=stage
        )
    count = len(fitted.embeddings)
    if as_json:
        print_json({"examples": count, "to": to})
        return
    command = shlex.join(["semimetric", "search", str(run), "QUERY", "--index", to])
    say(f"{count} examples are in {to}; search them with: {command}")


def export(
    run: RunFolder,
    onnx: Annotated[bool, typer.Option("--onnx", help="As one ONNX graph, from raw inputs to the embedding.")] = False,
    out: Annotated[Path | None, typer.Option("--out", "-o", help="File; model.onnx in the run unless given.")] = None,
    check: Annotated[
        Path | None,
        typer.Option(help="Needed: folder or table with examples to check the export with, such as those of the run."),
    ] = None,
    replace: Replace = False,
    as_json: AsJson = False,
) -> None:
    """Write the model of a run for use elsewhere."""
    from semimetric.serve.export import export_run

    if not onnx:
        raise InputError("say what to export to: --onnx.")
    out = out or run / "model.onnx"
    check_output(out, inputs_of(check), replace, in_run=out.resolve() == (run / "model.onnx").resolve())
    facts = export_run(load(run, "cpu"), out, check)
    if as_json:
        print_json(facts)
        return
    say(
        f"{facts['out']}: {facts['bytes'] / 2**20:.1f} MiB, checked on {facts['examples']} examples against torch, "
        f"largest difference {facts['largest_difference']:.1e}"
    )


def inputs_of(data: Path | None = None) -> list[Path]:
    """Files beside those of the run that a command reads and may not write to."""
    return [] if data is None else [data]


def load(run: Path, device: str) -> Any:
    """A run, with a note on standard error if other versions wrote it."""
    from semimetric.model.folder import load_run

    loaded = load_run(run, device)
    if loaded.differences:
        stderr.print(f"note: {visible(loaded.differences)}")
    return loaded


def print_skipped(skipped: dict[str, str], tell: Callable[[str], None] = say) -> None:
    """Say what could not be read."""
    for name, reason in list(skipped.items())[:SHOWN]:
        tell(f"skipped {visible(name)}: {visible(reason)}")
    if len(skipped) > SHOWN:
        tell(f"and {len(skipped) - SHOWN} more; --json names all")


def _print_queries(found: dict[str, list[dict[str, Any]]], limit: int) -> None:
    """A table of hits for each of the first queries, and how to see the others."""
    for name in list(found)[:limit]:
        _print_hits(name, found[name])
    if len(found) > limit:
        more = counted(len(found) - limit, "more query", "more queries")
        say(f"{more}: --out FILE.csv writes the hits of all, --limit {len(found)} prints them")


def _print_hits(name: str, lines: list[dict[str, Any]]) -> None:
    rows = []
    for line in lines:
        confidence = "given" if line["labelled"] else "" if line["confidence"] is None else f"{line['confidence']:.2f}"
        label = "" if line["label"] is None else str(line["label"])
        rows.append((f"{line['distance']:.4f}", label, confidence, line["name"]))
    print_table(("distance", "label", "confidence", "example"), rows, f"nearest to {name}")
