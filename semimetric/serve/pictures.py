"""What the examples of a run look like: photographs, images of a benchmark, or the values of a table's rows."""

from __future__ import annotations

import io
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from semimetric.core.errors import DataError, InputError, SemimetricError
from semimetric.data import Collection, find_photographs, load_dataset
from semimetric.data.label_book import Entry
from semimetric.data.label_matches import digest_of_file, matched
from semimetric.data.photographs.images import decode_image
from semimetric.data.readers.folder import path_of
from semimetric.data.readers.shards import find_shards
from semimetric.model.folder import LoadedRun
from semimetric.model.origin import has_own_places
from semimetric.model.spec import ExampleNames
from semimetric.pipeline.benchmark import benchmark_plan
from semimetric.pipeline.data import benchmark_data
from semimetric.serve.embed import new_examples
from semimetric.training import Run

if TYPE_CHECKING:
    from PIL.Image import Image

VALUES = 12
"""Columns of a row that are shown at most."""

SHOWN = 3
"""Names of changed rows that are shown."""


@dataclass(frozen=True)
class Pictures:
    """The looks of N examples: at most one of ``paths``, ``images`` and ``features`` is there.

    Parameters
    ----------
    paths : N photographs; None for one whose name leads out of the folder
    images : (N, channels, height, width)
    features, columns : (N, d) values of a table, and their names
    truth : (N,) true classes of a benchmark's examples
    missing : why there is nothing to show, or what has changed, as a sentence
    digests : N of the values of a table's rows as they are now
    """

    count: int
    paths: tuple[Path | None, ...] | None = None
    images: Tensor | None = None
    features: Tensor | None = None
    columns: tuple[str, ...] = ()
    truth: Tensor | None = None
    missing: str = ""
    digests: tuple[str, ...] = ()

    @property
    def has_images(self) -> bool:
        """Whether examples are pictures."""
        return self.paths is not None or self.images is not None

    @cached_property
    def _range(self) -> tuple[float, float]:
        """Values of black and white in ``images``."""
        assert self.images is not None
        return min(0.0, float(self.images.min())), float(self.images.max())

    @property
    def brightest(self) -> float:
        """The value of white in ``images``; 255 for photographs."""
        return 255.0 if self.images is None else self._range[1]

    def tile(self, row: int, side: int) -> Image | None:
        """The middle square of an example, as ``fit`` decodes it; None if it cannot be read or is no picture."""
        from PIL import Image

        if self.paths is not None:
            path = self.paths[row]
            try:
                pixels = None if path is None else decode_image(path, side)
            except DataError:
                pixels = None
            if pixels is None:
                return None
            return Image.fromarray(pixels.permute(1, 2, 0).numpy())
        if self.images is None:
            return None
        low, high = self._range
        values = (self.images[row].float() - low) / max(high - low, 1e-12)
        pixels = (values * 255).round().clamp(0, 255).to(torch.uint8)
        pixels = pixels.expand(3, -1, -1) if len(pixels) == 1 else pixels[:3]
        enlarged = Image.Resampling.NEAREST if pixels.shape[-1] < side else Image.Resampling.LANCZOS
        return Image.fromarray(pixels.permute(1, 2, 0).contiguous().numpy()).resize((side, side), enlarged)

    def digest(self, row: int) -> str | None:
        """The digest of the content of an example as it is now; None if it is not known or cannot be read."""
        if self.paths is None:
            return self.digests[row] if self.digests else None
        path = self.paths[row]
        with suppress(OSError):
            return None if path is None else digest_of_file(path)
        return None

    def values(self, row: int) -> list[tuple[str, float]]:
        """The first columns of a row of a table, with their names."""
        if self.features is None:
            return []
        numbers = self.features[row].flatten()[:VALUES].tolist()
        names = self.columns or tuple(f"column {place + 1}" for place in range(len(numbers)))
        return [(name, float(number)) for name, number in zip(names, numbers, strict=False)]


def jpeg_of(image: Image, quality: int = 85) -> bytes:
    """A picture as a JPEG file."""
    buffer = io.BytesIO()
    image.save(buffer, "JPEG", quality=quality)
    return buffer.getvalue()


def open_pictures(loaded: LoadedRun, data_dir: Path | None = None, source: Path | None = None) -> Pictures:
    """The looks of a run's training examples; where their source is gone or is not opened, ``missing`` says so.

    Parameters
    ----------
    loaded : the run
    data_dir : folder that holds benchmark data
    source : folder or table with the examples; without it, the one that the run names if it was made here
    """
    if source is not None and not source.exists():
        raise InputError(f"--source {str(source)!r} is not there. Name the folder or table with the run's examples.")
    try:
        if loaded.config["kind"] == "benchmark":
            return _of_benchmark(loaded, data_dir)
        return _of_own_data(loaded, source)
    except (SemimetricError, OSError) as error:
        return Pictures(len(loaded.fitted.labels), missing=f"The examples themselves cannot be shown: {error}")


def _of_benchmark(loaded: LoadedRun, data_dir: Path | None) -> Pictures:
    plan, names = benchmark_plan(Run(loaded.path)), loaded.fitted.examples.names
    found = find_photographs(plan.dataset, data_dir) if loaded.fitted.spec.kind == "photographs" else None
    if found is not None:
        album = found.parts()["training"]
        numbers = {found.name_of(path): number for number, path in enumerate(album.paths)}
        rows = _all_of(names, numbers)
        truth = torch.tensor([album.labels[row] for row in rows])
        return Pictures(len(names), paths=tuple(album.paths[row] for row in rows), truth=truth)
    data = benchmark_data(plan, load_dataset(plan.dataset, data_dir))
    if data.names.names != names:
        raise DataError(f"{plan.dataset} holds other examples than the run was trained on.")
    if data.inputs.ndim == 4:
        return Pictures(len(names), images=data.inputs[:], truth=data.classes)
    return Pictures(len(names), features=data.inputs[:], truth=data.classes)


def source_of(loaded: LoadedRun, named: Path | None) -> Path:
    """Where the examples of a run on own data are: where the user names it, or where a run says that was made here."""
    found = _named_source(loaded, named)
    if loaded.fitted.spec.kind == "photographs" and find_shards(found):
        raise InputError("its photographs are in shards. Unpack them into a folder, and fit that.")
    return found


def _named_source(loaded: LoadedRun, named: Path | None) -> Path:
    examples = loaded.fitted.examples
    if named is not None:
        return named
    if not examples.source:
        raise InputError(
            "the run does not say where they are, since it was saved by an estimator. Name it with --source PATH."
        )
    if not has_own_places(Run(loaded.path), examples):
        raise InputError(
            f"the run names {examples.source!r}, and it was not made by you on this machine: what such a run names is "
            "not opened. Name the folder or table yourself with --source PATH."
        )
    return Path(examples.source)


def _of_own_data(loaded: LoadedRun, named: Path | None) -> Pictures:
    examples, source = loaded.fitted.examples, source_of(loaded, named)
    if loaded.fitted.spec.kind == "photographs":
        if not source.is_dir():
            raise DataError(f"the folder {source} is not there any more. Name it with --source PATH.")
        ours = has_own_places(Run(loaded.path), examples)
        paths = (path_of(source, name) if ours or _stays_in(source, name) else None for name in examples.names)
        return Pictures(len(examples.names), paths=tuple(paths))
    table = new_examples(loaded, source)
    assert table.features is not None
    columns = () if table.schema is None else table.schema.features
    rows, changed = _rows_in(table, examples)
    told = f"{len(changed)} rows of {source.name} have changed since the run was trained: {_some(changed)}."
    digests = tuple(table.digests[row] for row in rows)
    return Pictures(len(rows), None, None, table.features[rows], columns, None, told if changed else "", digests)


def _rows_in(table: Collection, examples: ExampleNames) -> tuple[list[int], list[str]]:
    """The row of each example in its table, by content as far as that is known, and the names of those that changed."""
    if not examples.digests:
        return _all_of(examples.names, {name: number for number, name in enumerate(table.names)}), []
    digests = dict(zip(examples.names, examples.digests, strict=True))
    known = [Entry(row, "", "", "", name, digests[name], "", None) for row, name in enumerate(examples.names)]
    found, _ = matched(known, table.names, table.digest)
    place = {entry.example: row for row, entry in found.items()}
    changed = [name for name in examples.names if name not in place]
    same = {digest: row for row, digest in enumerate(table.digests)}  # of copies, any is right
    changed = [name for name in changed if digests[name] not in same]
    by_name = {name: row for row, name in enumerate(table.names)}
    by_copy = {name: same[digest] for name, digest in digests.items() if digest in same}
    return _all_of(examples.names, by_name | by_copy | place), changed


def _some(names: Sequence[str]) -> str:
    """The first few names."""
    return ", ".join(names[:SHOWN]) + (", ..." if len(names) > SHOWN else "")


def _stays_in(folder: Path, name: str) -> bool:
    """Whether a name leads to a file in the folder, and not out of it."""
    path = folder / name
    return ".." not in path.relative_to(folder).parts if path.is_relative_to(folder) else False


def _all_of(names: Sequence[str], numbers: dict[str, int]) -> list[int]:
    """The number of every name."""
    lost = [name for name in names if name not in numbers]
    if lost:
        raise DataError(
            f"{len(lost)} of {len(names)} examples are not in their source any more, such as {lost[0]}. If they were "
            "added from another table, put all rows into one, and fit that."
        )
    return [numbers[name] for name in names]
