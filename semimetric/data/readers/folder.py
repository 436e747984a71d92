"""A user's own photographs: a folder of image files, with class folders or a list of labels."""

from __future__ import annotations

import dataclasses
import heapq
import os
import re
import stat
import unicodedata
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from semimetric.core.errors import InputError
from semimetric.core.files import shown
from semimetric.data.collection import Collection, NaturalKey, label_texts, natural_key, skipped_lines, tidy
from semimetric.data.label_matches import is_book, labelled_by
from semimetric.data.labels import SUGGESTED, is_no_label, placeholder_notes
from semimetric.data.photographs.heic import HEIC_SUFFIXES, NEEDS_EXTRA, reads_heic
from semimetric.data.photographs.images import IMAGE_FORMATS
from semimetric.data.readers.delimited import find_column, listed, read_delimited

IMAGE_SUFFIXES = tuple(IMAGE_FORMATS)
"""How the names of image files end, in lower case."""
PATH_COLUMNS, LABEL_COLUMNS = ("path", "file", "filename", "image", "name"), ("label", "class", "species", "category")
"""Usual names of the columns with paths and with labels in a list of labels; the first that is there counts."""

SOURCE_COLUMN = "source"
"""Column of a list of labels that says where ``suggest`` had chosen the example."""

BOOK_COLUMNS = ("when", "change")
"""Columns of a list to which the page appends: the last row of a path counts, and its label may be empty."""

_CLUTTER = ("thumbs.db", "desktop.ini", "__macosx")
_OUTPUTS = {
    "a run": ("config.json", "manifest.json"),
    "a report": ("report.html", "figures"),
    "a comparison of runs": ("compare.html", "figures"),
}
"""What is in the folders that this package writes; their pictures are no examples."""

FileId = tuple[int, int]
"""Device and inode: the same for all names of a file."""


class _Unfit(Exception):
    """Why a file is no example, as the end of a sentence."""


@dataclass(frozen=True)
class _Place:
    """A file or folder: its parts from the root on, whether a link led to it, and the class that its folder tells."""

    parts: tuple[NaturalKey, ...]
    path: Path
    linked: bool = False
    label: str | None = None

    @property
    def name(self) -> str:
        return "/".join(text for _, text in self.parts)

    @property
    def precedence(self) -> tuple[bool, bool, tuple[NaturalKey, ...], str]:
        """What is met under several names counts under the first: labelled, then not by a link, then by name."""
        return self.label is None, self.linked, self.parts, str(self.path)


@dataclass(frozen=True)
class _Listing:
    """A list of labels: for each row its number, its path as written, and its label; and sentences on the labels.

    ``suggested`` are the numbers of the rows that ``suggest`` had chosen.
    """

    source: Path
    rows: tuple[tuple[int, str, str | None], ...]
    skipped: dict[str, str]
    notes: tuple[str, ...]
    suggested: frozenset[int]


def read_photo_folder(folder: Path, labels: Path | None, label_column: str | None, id_column: str | None) -> Collection:
    """List the photographs in a folder; see ``read_collection``."""
    if labels is None and (label_column is not None or id_column is not None):
        raise InputError(
            "label_column and id_column name columns, and a folder of images has none. Give the file with these "
            "columns as labels, or leave them out."
        )
    skipped: dict[str, str] = {}
    if labels is not None and is_book(labels):
        files = _images_among(_files_in(folder, False, skipped), skipped)
        return labelled_by(_collection(folder, files, {}, skipped), labels)
    listing = None if labels is None else _read_listing(labels, label_column, id_column)
    files = _images_among(_files_in(folder, listing is None, skipped), skipped)
    if listing is not None:
        known, chosen = _listed_labels(listing, folder, files, skipped)
        found = _collection(folder, files, known, skipped)
        suggested = frozenset(files[identity].name for identity in chosen if identity in files)
        unlisted = [place for identity, place in files.items() if identity not in known]
        notes = (*listing.notes, *_folder_notes(unlisted, listing.source))
        return dataclasses.replace(found, notes=notes, suggested=suggested)
    tops = [place.parts[0][1] for place in files.values() if len(place.parts) > 1]
    found = _collection(folder, files, {identity: place.label for identity, place in files.items()}, skipped)
    return dataclasses.replace(found, notes=tuple(placeholder_notes(tops)), empty=_empty_folders(folder, {*tops}))


def _folder_notes(unlisted: Iterable[_Place], listing: Path) -> Iterator[str]:
    """A sentence on photographs in folders that look like classes, and which the list of labels leaves unlabelled."""
    tops = [place.parts[0][1] for place in unlisted if len(place.parts) > 1]
    inside = [top for top in tops if _class_of(top) is not None]
    if inside:
        names = sorted({*inside}, key=natural_key)
        folders = "sub-folder" if len(names) == 1 else "sub-folders"
        yield (
            f"{len(inside)} unlabelled in {folders} {listed(names)}: {listing} does not list them, and where there is "
            "a list the names of sub-folders are no labels. To use both, add them to the list, with path and label."
        )


def _empty_folders(root: Path, used: set[str]) -> tuple[str, ...]:
    """The folders of classes that hold no image."""
    places = _contents(_Place((), root), True, set(), {})
    empty = (place.name for place in places if place.label is not None and place.name not in used)
    return tuple(sorted(empty, key=natural_key))


def _files_in(root: Path, folders_are_classes: bool, skipped: dict[str, str]) -> Iterator[_Place]:
    """Yield all files but hidden ones; links to folders are followed, but no folder is read twice."""
    first = _Place((), root)
    ahead = [(first.precedence, first)]
    seen: set[FileId] = set()
    while ahead:
        _, folder = heapq.heappop(ahead)
        for place in _contents(folder, folders_are_classes, seen, skipped):
            if os.path.isdir(place.path):
                heapq.heappush(ahead, (place.precedence, place))
            else:
                yield place


def _contents(folder: _Place, folders_are_classes: bool, seen: set[FileId], skipped: dict[str, str]) -> list[_Place]:
    """List what is in a folder, unless it cannot be read or is in ``seen``, to which it is added."""
    try:
        identity, entries = _identity(os.stat(folder.path)), os.listdir(folder.path)
    except OSError as error:
        skipped[f"{folder.name or '.'}/"] = f"the folder cannot be read ({error.strerror})"
        return []
    if identity in seen:
        skipped[f"{folder.name}/"] = "the folder was read under another name"
        return []
    seen.add(identity)
    kept = (entry for entry in entries if not entry.startswith(".") and entry.lower() not in _CLUTTER)
    children = [_child(folder, entry, folders_are_classes) for entry in kept]
    made = {place.name: what for place in children if (what := _output_in(place.path))}
    skipped |= {f"{name}/": f"it holds {what} that this package wrote" for name, what in made.items()}
    return [place for place in children if place.name not in made]


def _output_in(path: Path) -> str:
    """What this package wrote into a folder; nothing for other folders and for files."""
    found = (what for what, parts in _OUTPUTS.items() if all(os.path.exists(path / part) for part in parts))
    return next(found, "") if os.path.isdir(path) else ""


def _child(folder: _Place, entry: str, folders_are_classes: bool) -> _Place:
    path, parts = folder.path / entry, (*folder.parts, natural_key(shown(entry)))
    is_class = folders_are_classes and not folder.parts and os.path.isdir(path)
    return _Place(parts, path, folder.linked or os.path.islink(path), _class_of(entry) if is_class else folder.label)


def path_of(folder: Path, shown: str) -> Path:
    """The file in a folder whose name is ``shown``, with bytes written out that are not UTF-8."""
    path = folder / shown
    if "\\x" not in shown or path.exists():
        return path
    raw = re.sub(rb"\\x([89a-f][0-9a-f])", lambda found: bytes.fromhex(found[1].decode()), shown.encode())
    return folder / os.fsdecode(raw)


def _class_of(folder: str) -> str | None:
    label = tidy(shown(folder))
    return None if is_no_label(label) else label


def _identity(status: os.stat_result) -> FileId:
    return status.st_dev, status.st_ino


def _images_among(files: Iterable[_Place], skipped: dict[str, str]) -> dict[FileId, _Place]:
    """Keep each image once, under its first name, as far as can be told without opening it."""
    found: dict[FileId, _Place] = {}
    unread = () if reads_heic() else HEIC_SUFFIXES
    for place in sorted(files, key=lambda place: place.precedence):
        try:
            if place.path.suffix.lower() not in IMAGE_SUFFIXES:
                raise _Unfit("it is not an image by its name")
            if place.path.suffix.lower() in unread:
                raise _Unfit(NEEDS_EXTRA)
            first = found.setdefault(_readable(place.path), place)
            if first is not place:
                raise _Unfit(f"it is the same file as {first.name}")
        except _Unfit as reason:
            skipped[place.name] = str(reason)
    return found


def _readable(path: Path, said_first: str = "") -> FileId:
    """Return the identity of a file that can be read and has content."""
    try:
        status = os.stat(path)
    except OSError as error:
        what = "it is a link that leads nowhere" if os.path.islink(path) else "it cannot be reached"
        raise _Unfit(f"{said_first}{what} ({error.strerror})") from error
    if not stat.S_ISREG(status.st_mode):
        raise _Unfit(f"{said_first}it is not a file")
    if status.st_size == 0:
        raise _Unfit(f"{said_first}it is empty")
    if not os.access(path, os.R_OK):
        raise _Unfit(f"{said_first}permission to read it is denied")
    return _identity(status)


def _read_listing(source: Path, label_column: str | None, id_column: str | None) -> _Listing:
    table = read_delimited(source)
    names = list(table.columns)
    paths, labels = list_columns(names, label_column, id_column, source)
    rows = tuple(zip(table.numbers, table.columns[paths], label_texts(table.columns[labels]), strict=True))
    if {*BOOK_COLUMNS} <= {*names}:
        rows = tuple({row[1]: row for row in rows}.values())
    sources = zip(table.numbers, table.columns.get(SOURCE_COLUMN, ()), strict=False)
    suggested = frozenset(number for number, text in sources if text.strip().lower() == SUGGESTED)
    notes = (*placeholder_notes(table.columns[labels]), *_unfilled_notes(source, rows, suggested))
    return _Listing(source, rows, table.skipped, notes, suggested)


def _unfilled_notes(
    source: Path, rows: Iterable[tuple[int, str, str | None]], suggested: frozenset[int]
) -> Iterator[str]:
    """A sentence on a list of suggestions that nobody has filled in."""
    if suggested and not any(label for number, _, label in rows if number in suggested):
        yield f"none of the {len(suggested)} suggestions in {source} has a label yet. Fill in its column of labels."


def list_columns(
    names: Sequence[str], label_column: str | None, id_column: str | None, source: Path
) -> tuple[str, str]:
    """The columns of paths and of labels in a list of labels, which must be there."""
    paths = _needed_column(names, id_column, PATH_COLUMNS, "id_column", "paths", source)
    return paths, _needed_column(names, label_column, LABEL_COLUMNS, "label_column", "labels", source)


def _needed_column(
    names: Sequence[str], wanted: str | None, usual: Sequence[str], argument: str, content: str, source: Path
) -> str:
    column = find_column(names, wanted, usual, argument, source)
    if column is None:
        raise InputError(
            f"{source} must have a column of {content}, named {', '.join(usual[:-1])} or {usual[-1]}, but has "
            f"{listed(names)}. Rename the right one, or name it with {argument}."
        )
    return column


def _listed_labels(
    listing: _Listing, folder: Path, files: dict[FileId, _Place], skipped: dict[str, str]
) -> tuple[dict[FileId, str | None], set[FileId]]:
    """The label of each file, and the suggested files; ``files`` gains what only the list names, and loses others.

    What it loses are the files to which the list gives two labels.
    """
    skipped.pop(_place_at(listing.source, folder).name, None)
    skipped |= listing.skipped
    given: dict[FileId, dict[int, str | None]] = {}
    suggested = set()
    for number, text, label in listing.rows:
        try:
            path = _located(text, (folder, listing.source.parent))
            identity = _readable(path, f"{text.strip()} cannot be used: ")
        except _Unfit as reason:
            skipped[f"row {number}"] = str(reason)
            continue
        if identity not in files:
            files[identity] = _place_at(path, folder)
            skipped.pop(files[identity].name, None)
        given.setdefault(identity, {})[number] = label
        if number in listing.suggested:
            suggested.add(identity)
    for identity, labels in given.items():
        if len(set(labels.values()) - {None}) > 1:
            skipped |= _contradiction(files.pop(identity).name, labels)
    return {identity: next(filter(None, labels.values()), None) for identity, labels in given.items()}, suggested


def _located(text: str, folders: Sequence[Path]) -> Path:
    """Find what a path in a list means, relative to one of ``folders``; slashes and accents may differ."""
    if not text.strip():
        raise _Unfit("it names no file")
    for way in (text, text.strip(), text.strip().replace("\\", "/")):
        for form in (way, unicodedata.normalize("NFC", way), unicodedata.normalize("NFD", way)):
            for folder in folders:
                if os.path.lexists(folder / form):
                    return folder / form
    raise _Unfit(f"there is no file {text.strip()}")


def _place_at(path: Path, root: Path) -> _Place:
    """Name a file relative to ``root`` or, where it is not inside, by its absolute path."""
    absolute, base = Path(os.path.abspath(path)), os.path.abspath(root)
    parts = absolute.relative_to(base).parts if absolute.is_relative_to(base) else (absolute.as_posix(),)
    return _Place(tuple(natural_key(shown(part)) for part in parts), path)


def _contradiction(name: str, labels: Mapping[int, str | None]) -> dict[str, str]:
    given = " and ".join(f"{label!r} in row {number}" for number, label in labels.items() if label is not None)
    return {f"row {number}": f"{name} is {given}" for number in labels}


def _collection(
    folder: Path, files: Mapping[FileId, _Place], label_of: Mapping[FileId, str | None], skipped: dict[str, str]
) -> Collection:
    """Put the photographs in natural order, file by file and folder by folder."""
    found: dict[str, FileId] = {}
    for identity, place in sorted(files.items(), key=lambda item: item[1].precedence[2:]):
        if place.name in found:
            skipped[place.name] = "another file has this name, if bytes that are not UTF-8 are written out; rename one"
        else:
            found[place.name] = identity
    if not found:
        raise InputError(
            f"{folder} must hold images, but no file in it or in its sub-folders can be used; looked for names that "
            f"end in {', '.join(IMAGE_SUFFIXES)}. " + " ".join(line.strip() for line in skipped_lines(skipped))
        )
    labels = tuple(label_of.get(identity) for identity in found.values())
    paths = tuple(files[identity].path for identity in found.values())
    return Collection(tuple(found), labels, paths, None, (), skipped)
