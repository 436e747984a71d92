"""What is known about a benchmark dataset before it is loaded, and how to load it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from semimetric.core.errors import InputError

if TYPE_CHECKING:
    from semimetric.data.examples import Dataset, Examples
    from semimetric.data.photographs.images import Fit

Count = Callable[[int, int], None]
"""Called with the number of photographs done and their total."""


@dataclass(frozen=True, kw_only=True)
class BaseSpec:
    """What every dataset has.

    Parameters
    ----------
    name : str
        Name for ``load_dataset`` and the command line.
    summary : str
        A few words for the listing.
    train_size, test_size : int
        Numbers of examples as published; 0 if not stated.
    presets : mapping
        Settings by the name of a preset.
    shared_folders : tuple of Path
        Further folders to look in, such as that of a system package.
    """

    name: str
    summary: str
    train_size: int = 0
    test_size: int = 0
    presets: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    shared_folders: tuple[Path, ...] = ()


@dataclass(frozen=True, kw_only=True)
class DatasetSpec(BaseSpec):
    """A dataset that a function returns.

    Parameters
    ----------
    name, summary : str
        Its name, and a few words for the listing.
    train_size, test_size : int
        Numbers of examples.
    presets : mapping, optional
        Settings by the name of a preset.
    shared_folders : tuple of Path, optional
        Further folders in which it may lie.
    read : callable
        Returns the training and the test examples.
    class_names : tuple of str
        Names of the classes 0, 1, ...; if left out, the classes are called by their numbers.
    shape : tuple of int
        Shape of one example; empty if not stated.
    origin : str
        Where the data are, for the listing.
    """

    read: Callable[..., tuple[Examples, Examples]]
    class_names: tuple[str, ...] = ()
    shape: tuple[int, ...] = ()
    origin: str | None = "inside its package"

    source: ClassVar[None] = None

    @property
    def classes(self) -> int:
        """The number of classes."""
        return len(self.class_names)

    def not_fetched(self, folder: Path) -> str:
        """Why ``fetch_dataset`` cannot download it, and what to do."""
        return f"There is nothing to fetch for {self.name!r}: it is {self.origin}; load it as it is."

    def check_options(self, side: int | None, fit: Fit, workers: int | None) -> None:
        """Refuse options for photographs: these examples have one size."""
        if side is not None or fit != "crop":
            given = f"side={side}" if side is not None else f"fit={fit!r}"
            size = "x".join(map(str, self.shape)) or "of one shape"
            raise InputError(f"{given} is for datasets of photographs; the images of {self.name!r} are {size}.")

    def load(self, folder: Path, side: int | None, fit: Fit, workers: int | None, progress: Count | None) -> Dataset:
        """Read all examples; this is too fast to report progress."""
        from semimetric.data.examples import Dataset

        train, test = self.examples(folder)
        highest = max((int(part.labels.max()) for part in (train, test) if len(part)), default=-1)
        return Dataset(self.name, train, test, self.class_names or tuple(map(str, range(highest + 1))))

    def examples(self, folder: Path) -> tuple[Examples, Examples]:
        """The training and the test examples."""
        return self.read()
