"""Commands on the examples of a run: ``semimetric add | labels``."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Annotated

import typer

from semimetric.cli.console import (
    AsJson,
    Device,
    NoCache,
    RunFolder,
    counted,
    print_json,
    print_rows,
    say,
    showing_progress,
)
from semimetric.cli.runs import IdColumn, LabelColumn, MilvusCollection, NewData, Raw, Replace, load, print_skipped
from semimetric.reporting.terminal import visible


def add(
    run: RunFolder,
    data: NewData,
    index: Annotated[
        str | None, typer.Option(help="Index of the run, made by 'semimetric index'; it is built again with all.")
    ] = None,
    collection: MilvusCollection = "semimetric",
    label_column: LabelColumn = None,
    id_column: IdColumn = None,
    device: Device = "auto",
    no_cache: NoCache = False,
    as_json: AsJson = False,
) -> None:
    """Add new examples to a run without training. Class folders are labels; copies of its examples are left out."""
    from semimetric.serve.add import add_to
    from semimetric.serve.embed import new_examples

    with showing_progress() as progress:
        loaded = load(run, device)
        examples = new_examples(loaded, data, label_column, id_column)
        added = add_to(loaded, examples, data, index, collection, progress)
    if as_json:
        print_json(dataclasses.asdict(added))
        return
    copies = f"; copies left out: {len(added.copies)}" if added.copies else ""
    say(f"{counted(len(added.names), 'example')} added to {visible(str(run))}, which has {added.examples} now{copies}")
    if added.new_classes:
        which = "this class" if len(added.new_classes) == 1 else "these classes"
        say(
            f"new to the run: {visible(', '.join(added.new_classes))}. The embedding has not learned {which}, and "
            "'predict' now names every example; fit again for both."
        )
    if added.unlike:
        count, some = len(added.unlike), ", ".join(added.unlike[:3]) + (", ..." if len(added.unlike) > 3 else "")
        say(
            f"{counted(count, 'example')} without a label {'looks' if count == 1 else 'look'} like no known class: "
            f"{visible(some)}. If they are of a new class, label some and fit again."
        )
    if index is not None:
        say(f"the index {visible(index)} has all of them")
    print_skipped(added.skipped)


def labels(
    run: RunFolder,
    out: Annotated[
        Path | None, typer.Option("--out", "-o", help="CSV file; without it the labels are printed.")
    ] = None,
    replace: Replace = False,
    raw: Raw = False,
    as_json: AsJson = False,
) -> None:
    """List the labels of a run's own examples, given and predicted; 'fit --labels' reads the given ones."""
    from semimetric.serve.labels import COLUMNS, check_list, labels_of, labels_to

    if out is not None:
        check_list(out, replace)
    fitted = load(run, "cpu").fitted
    count, given = len(fitted.labels), int((fitted.labels >= 0).sum())
    if out is not None:
        labels_to(fitted, out, raw)
    if as_json:
        rows = {"labels": [dict(zip(COLUMNS, row, strict=True)) for row in labels_of(fitted)]}
        print_json({"examples": count, "labelled": given} | (rows if out is None else {"out": str(out)}))
    elif out is None:
        print_rows(COLUMNS, labels_of(fitted), raw)
    else:
        say(f"{counted(count, 'example')}, {given} with a given label, written to {visible(str(out))}")
