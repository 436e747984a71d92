"""Commands on the examples of a run: ``semimetric add | labels``."""

from __future__ import annotations

import dataclasses
import os
import shlex
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from semimetric.cli.console import (
    AsJson,
    Device,
    NoCache,
    RunFolder,
    counted,
    print_beside,
    print_json,
    print_rows,
    say,
    showing_progress,
)
from semimetric.cli.runs import IdColumn, LabelColumn, MilvusCollection, NewData, Raw, Replace, load, print_skipped
from semimetric.core.errors import InputError
from semimetric.reporting.terminal import visible

if TYPE_CHECKING:
    from semimetric.model.folder import LoadedRun


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
    source: Annotated[
        Path | None,
        typer.Option("--import", help="CSV file to take labels from into the label book: columns path and label."),
    ] = None,
    copy: Annotated[
        Path | None, typer.Option("--recover", help="File for what can be read of a damaged label book.")
    ] = None,
    who: Annotated[str, typer.Option(help="Who labels; your login name unless given.")] = "",
    label_column: LabelColumn = None,
    id_column: IdColumn = None,
    replace: Replace = False,
    raw: Raw = False,
    as_json: AsJson = False,
) -> None:
    """List the labels of a run's own examples, given and predicted, with those of its label book."""
    from semimetric.serve.book import labels_file, open_book
    from semimetric.serve.labels import COLUMNS, check_list, labels_of, labels_to
    from semimetric.serve.pictures import open_pictures

    if sum(given is not None for given in (out, source, copy)) > 1:
        raise InputError("--out, --import and --recover do different things. Give one of them at a time.")
    if copy is not None:
        _recover(labels_file(run), copy, as_json)
        return
    if out is not None:
        check_list(out, replace)
    loaded = load(run, "cpu")
    if source is not None:
        _import(loaded, source, (who, label_column, id_column), as_json)
        return
    fitted = loaded.fitted
    rows = labels_of(fitted)
    if os.path.lexists(labels_file(run)):
        with closing(open_book(run, fitted, open_pictures(loaded), reading=True)) as book:
            rows = labels_of(fitted, book.labels, book.sources)
            for note in book.matches.note(book.path):
                print_beside(f"note: {note}")
    count, labelled = len(rows), sum(row[1] != "" for row in rows)
    if out is not None:
        labels_to(out, rows, raw)
    if as_json:
        listed = {"labels": [dict(zip(COLUMNS, row, strict=True)) for row in rows]}
        print_json({"examples": count, "labelled": labelled} | (listed if out is None else {"out": str(out)}))
    elif out is None:
        print_rows(COLUMNS, rows, raw)
    else:
        say(f"{counted(count, 'example')}, {labelled} with a given label, written to {visible(str(out))}")


def _import(loaded: LoadedRun, source: Path, how: tuple[str, str | None, str | None], as_json: bool) -> None:
    """Take the labels of a CSV file into the book of a run."""
    from semimetric.serve.book import login_name, open_book
    from semimetric.serve.book_import import import_labels
    from semimetric.serve.pictures import open_pictures

    with closing(open_book(loaded.path, loaded.fitted, open_pictures(loaded))) as book:
        found = import_labels(book, source, how[0] or login_name(), *how[1:])
    if as_json:
        print_json(found._asdict() | {"book": str(book.path)})
        return
    say(f"{counted(found.labelled, 'label')} set and {found.cleared} taken away in {visible(str(book.path))}")
    if found.unknown:
        names = visible(", ".join(found.unknown[:3]) + (", ..." if len(found.unknown) > 3 else ""))
        say(f"{counted(len(found.unknown), 'name')} that no example of the run has: {names}")


def _recover(book: Path, copy: Path, as_json: bool) -> None:
    """Write what can be read of a damaged book to a new file."""
    from semimetric.data.book_recovery import recover

    found = recover(book, copy)
    if as_json:
        print_json(found | {"out": str(copy)})
        return
    lost = f"; {found['lost']} could not be read, so some labels may be missing" if found["lost"] else ""
    say(f"{counted(found['events'], 'event')} and {found['classes']} classes written to {visible(str(copy))}{lost}")
    say(
        visible(
            f"next: mv -n {shlex.join([str(book), f'{book}.damaged'])} && mv -n {shlex.join([str(copy), str(book)])}"
        )
    )
