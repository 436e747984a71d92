"""A user's own data as found on disk: a folder of photographs or a table of feature vectors."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

from semimetric.core.errors import InputError
from semimetric.data.collection import Collection
from semimetric.data.label_matches import is_book, labelled_by
from semimetric.data.readers.folder import IMAGE_SUFFIXES, read_photo_folder

if TYPE_CHECKING:
    from semimetric.data.columns import ColumnChoice
    from semimetric.data.schema import Schema


def read_collection(
    source: Path,
    labels: Path | None = None,
    label_column: str | None = None,
    id_column: str | None = None,
    choice: ColumnChoice | None = None,
    schema: Schema | None = None,
) -> Collection:
    """Find out what examples there are, and which of them have a label; images are not opened yet.

    What cannot be used is left out and told in ``skipped``; only if nothing is left, that is an error. A label that
    is empty, NaN or -1 is none.

    Parameters
    ----------
    source : Path
        A folder of images: those in a sub-folder have its name as label, at whatever depth they are; loose ones and
        those in ``unlabelled`` have none. Links are followed, each file and folder counts once, hidden ones and what
        systems leave behind do not. Or a table: .csv or .tsv with a header, or .parquet, with columns of numbers,
        categories or text; .npz with an array X or features, or just one matrix, and if need be y or labels, names or
        ids; .npy with a matrix. Features become float32; ``semimetric.data.schema`` tells how. Or shards of images,
        one or a folder of nothing else: WebDataset archives (.tar), or .parquet with a column of image bytes.
    labels : Path, optional
        A list of labels for a folder: .csv or .tsv with a column of paths (path, file, filename, image or name),
        relative to the folder or to the list, and one of labels (label, class, species or category). The names of
        sub-folders mean nothing then, images that it does not list are unlabelled, and a file with two different
        labels is left out. Or the label book of a run, for a folder or a table, by name and content of the examples.
    label_column : str, optional
        The column (of .npz the array) with the labels; of a table label, labels, y, class or target, if left out.
    id_column : str, optional
        The column (of .npz the array) with a name for each row, of ``labels`` the one with the paths. Of a table it
        is id, if left out; rows without get their number, in text as a spreadsheet counts, else from 0.
    choice : ColumnChoice, optional
        Columns of a table to leave out or to use alone, and types of columns.
    schema : Schema, optional
        The columns of an earlier table, which become features as they did there.
    """
    source = Path(source)
    if shards := _shards_of(source):
        return _read_shards(source, shards, labels, label_column, id_column, choice)
    if os.path.isdir(source):
        if choice:
            raise InputError(f"drop, columns and types are for tables, and {source} is a folder. Leave them out.")
        return read_photo_folder(source, None if labels is None else Path(labels), label_column, id_column)
    _check_table(source)
    if labels is not None and not is_book(labels):
        raise InputError(
            f"labels is for a folder of images, but source is the table {source}. Put the labels into a column of it, "
            "and name that with label_column; or give the label book of a run."
        )
    from semimetric.data.columns import ColumnChoice
    from semimetric.data.readers.tables import read_new_table, read_table

    if schema is None:
        found = read_table(source, label_column, id_column, choice or ColumnChoice())
    elif choice:
        raise InputError("drop, columns and types are those of the run that the fit starts from. Leave them out.")
    else:
        found = read_new_table(source, schema, label_column, id_column)
    return found if labels is None else labelled_by(found, labels)


def check_there(source: Path) -> None:
    """Refuse a source that is not there."""
    if not os.path.exists(source):
        raise InputError(f"{source} is not there. Name a folder of images or a table.")


def _shards_of(source: Path) -> tuple[Path, ...]:
    """The shards of photographs that a source is or holds."""
    if not source.is_dir() and source.suffix.lower() not in (".tar", ".parquet"):
        return ()
    from semimetric.data.readers.shards import find_shards

    return find_shards(source)


def _read_shards(
    source: Path,
    shards: tuple[Path, ...],
    labels: Path | None,
    label_column: str | None,
    id_column: str | None,
    choice: ColumnChoice | None,
) -> Collection:
    from semimetric.data.readers.shards import read_shards

    if choice or labels is not None:
        raise InputError(
            f"{source} is of shards of photographs, which have their labels with them. Leave out labels, drop, columns "
            "and types."
        )
    return read_shards(shards, label_column, id_column)


def _check_table(source: Path) -> None:
    from semimetric.data.readers.tables import TABLE_SUFFIXES

    check_there(source)
    if not os.path.isfile(source):
        raise InputError(f"{source} is neither a file nor a folder. Name a folder of images or a table.")
    suffix = source.suffix.lower()
    if suffix in IMAGE_SUFFIXES:
        raise InputError(f"source must be a folder of images or a table, but {source} is an image. Name its folder.")
    if suffix not in TABLE_SUFFIXES:
        raise InputError(
            "source must be a folder of images, an uncompressed .tar archive of them, or a table whose name ends in "
            f"{', '.join(TABLE_SUFFIXES)}, but is the file {source}. Convert it."
        )
    if not os.access(source, os.R_OK):
        raise InputError(f"{source} cannot be read: permission is denied. Change its permissions, or copy it.")
